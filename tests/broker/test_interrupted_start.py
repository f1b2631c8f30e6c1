"""A broker that is stopped while it recovers its store ends at once and loses nothing."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from rockoon_broker.server import serve
from rockoon_core.disk import Disk
from rockoon_runtime.process import Stop
from support.broker import running_broker, settings_of
from support.broker_routes import BrokerRoutes
from support.store_directory import crashed_copy

SECONDS_MAX = 20
MESSAGES = 40
# Small files, so that recovery reads several of them.
FILES = {"commit_log_file_bytes": 4096, "consume_queue_file_entries": 10}


class AskingDisk(Disk):
    """Requests the broker's stop at one of a start's reads; the read continues after the
    request."""

    def __init__(self, read: int, ask: Callable[[], None]) -> None:
        self._left = read
        self._ask = ask
        self._heard = threading.Event()
        self._loop_thread = threading.current_thread()

    def interrupt(self) -> None:
        super().interrupt()
        self._heard.set()

    def pread(self, fd: int, count: int, position: int) -> bytes:
        # The event loop's own thread cannot wait for the loop.
        if threading.current_thread() is not self._loop_thread:
            self._left -= 1
            if self._left == 0:
                self._ask()
                assert self._heard.wait(SECONDS_MAX), "nobody interrupts the start"
        return super().pread(fd, count, position)


async def start_stopped_at_read(root: Path, nameserver: BrokerRoutes, read: int) -> bool:
    """Start a broker and stop it at the n-th read; return False if it had started before."""
    stop, loop = Stop(), asyncio.get_running_loop()
    disk = AskingDisk(read, lambda: loop.call_soon_threadsafe(stop.request, "the test asks"))
    served = []

    def announce(*_: str) -> None:
        served.append(True)
        stop.request("it serves")

    async with asyncio.timeout(SECONDS_MAX):
        await serve(
            settings_of(root, [nameserver.address], **FILES), stop, disk=disk, announce=announce
        )
    assert stop.fatal is None
    return not served


async def test_a_start_that_is_interrupted_anywhere_is_only_begun_again(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    bodies = [b"%d" % number for number in range(MESSAGES)]
    async with running_broker(tmp_path / "used", [nameserver.address], **FILES) as broker:
        for body in bodies:
            await broker.append("T", 0, body)
        store = crashed_copy(tmp_path / "used", tmp_path / "store")
    aborted: list[bool] = []
    while await start_stopped_at_read(store, nameserver, len(aborted) + 1):
        assert nameserver.nodes == {}
        aborted.append((store / "abort").exists())
    # The start after an interrupted start must know it.
    assert aborted[0]
    assert len(aborted) > 3
    async with running_broker(store, [nameserver.address], **FILES) as broker:
        assert await broker.bodies("T") == bodies
        assert (await broker.append("T", 0, b"next")).first_queue_offset == MESSAGES
