"""The broker as a process: killed, stopped, and started on unusable stores."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from rockoon_core.errors import NodeNameTaken, NotReady
from rockoon_node.registration import boot_seconds
from rockoon_runtime.process import ExitStatus
from support.broker import CHANNEL_OPTIONS, RunningBroker, batch, running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import answered, eventually
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

HERE = Path(__file__).parent
QUEUES = 4
MODULE = ("-m", "rockoon_broker")


class Process:
    """A broker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait_ready(self) -> str:
        """Return its address, once it serves."""
        assert self._process.stdout is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            line = await self._process.stdout.readline()
        assert line, await self.end()
        return str(json.loads(line)["address"])

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        """Return exit status and standard error."""
        assert self._process.stderr is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            text = (await self._process.stderr.read()).decode()
            return await self._process.wait(), text

    def put_away(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


@asynccontextmanager
async def process(
    root: Path, nameserver: str, *more: str, program: tuple[str, ...] = MODULE
) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *("--listen", "127.0.0.1:0", "--name", "broker-a", "--nameservers", nameserver),
        *("--store-path", str(root), "--disk-full-percent", "100", "--disk-forced-percent", "100"),
        *("--commit-log-file-bytes", "4MiB", "--consume-queue-file-entries", "1000", *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )
    running = Process(started)
    try:
        yield running
    finally:
        running.put_away()
        await started.wait()


@asynccontextmanager
async def calls_to(address: str) -> AsyncIterator[RunningBroker]:
    async with aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield RunningBroker(address, channel, None)  # type: ignore[arg-type]


def numbered(queue_id: int, serial: int) -> list[bytes]:
    """Return the bodies of a queue's batch: ten lines that name their queue and number."""
    return [b"queue %d batch %d line %d" % (queue_id, serial, line) for line in range(10)]


async def send_until_acknowledged(broker: RunningBroker, batches: int) -> list[int]:
    """Keep 40 batches in flight; return the number of acknowledged batches of each queue."""
    call = broker.stub.AppendStream()
    acknowledged = [0] * QUEUES
    for turn in range(batches + 40):
        queue_id, serial = turn % QUEUES, turn // QUEUES
        await call.write(batch("T", queue_id, *numbered(queue_id, serial), request_id=queue_id))
        if turn >= 40:
            reply: Any = await call.read()
            assert reply.HasField("appended"), reply
            assert reply.appended.first_queue_offset == acknowledged[reply.request_id] * 10
            acknowledged[reply.request_id] += 1
    call.cancel()
    return acknowledged


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", seeds(1))
async def test_a_kill_during_load_loses_nothing_that_was_acknowledged(
    tmp_path: Path, nameserver: BrokerRoutes, flush: str, seed: int
) -> None:
    """With `async` too: the process dies, but the system and its page cache do not."""
    randomness = random.Random(seed)
    await nameserver.create_topic("T", {"broker-a": QUEUES})
    acknowledged = [0] * QUEUES
    async with process(tmp_path, nameserver.address, "--flush", flush) as first:
        async with calls_to(await first.wait_ready()) as broker:
            acknowledged = await send_until_acknowledged(broker, randomness.randrange(50, 1000))
            first.signal(signal.SIGKILL)
        assert (await first.end())[0] == -signal.SIGKILL

    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert not (await broker.describe()).recovery_was_clean
        for queue_id in range(QUEUES):
            found = await broker.bodies("T", queue_id)
            assert len(found) % 10 == 0, "a batch was torn"
            assert len(found) >= acknowledged[queue_id] * 10
            expected = [
                body for serial in range(len(found) // 10) for body in numbered(queue_id, serial)
            ]
            assert found == expected
            appended = await broker.append("T", queue_id, b"next")
            assert appended.first_queue_offset == len(found)


async def test_a_signal_stops_it_cleanly(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with process(tmp_path, nameserver.address) as first:
        async with calls_to(await first.wait_ready()) as broker:
            await broker.append("T", 0, b"x")
            first.signal(signal.SIGTERM)
            status, text = await first.end()
        assert status == ExitStatus.STOPPED, text
        assert "Traceback" not in text
        assert nameserver.nodes == {}
    assert not (tmp_path / "abort").exists()


async def test_a_broker_that_was_stopped_for_longer_than_its_lease_acknowledges_nothing(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """Another process with a copy of its store may have its name by then."""
    nameserver.lease_seconds = 2.0
    await nameserver.create_topic("T", {"broker-a": 1})
    async with process(tmp_path, nameserver.address) as paused:
        async with calls_to(await paused.wait_ready()) as broker:
            await answered(lambda: appended_or_none(broker), lambda appended: appended)
            stream = broker.stub.AppendStream()
            await stream.write(batch("T", 0, b"before"))
            assert (await stream.read()).HasField("appended")
            # From now on it gets no reply: neither that its lease is valid nor that it is not.
            nameserver.registering.clear()
            paused.signal(signal.SIGSTOP)
            nameserver.refuse_register = NodeNameTaken(name="broker-a", address="there:1")
            over = boot_seconds() + nameserver.lease_seconds
            await eventually(lambda: boot_seconds() > over)
            await stream.write(batch("T", 0, b"late"))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(refused(broker.append("T", 0, b"late")))
                tasks.create_task(refused(broker.pull("T")))
                paused.signal(signal.SIGCONT)
            with pytest.raises(grpc.RpcError, match="its lease is over"):
                await stream.read()
            nameserver.registering.set()
        status, text = await paused.end()
    assert status == ExitStatus.CONFIGURATION, text
    assert "there:1" in text


async def refused(call: Awaitable[Any]) -> None:
    with pytest.raises(NotReady, match="its lease is over"):
        await call


async def appended_or_none(broker: RunningBroker) -> Any:
    """On a slow machine it may be unsure for a moment."""
    try:
        return await broker.append("T", 0, b"early")
    except NotReady:
        return None


async def test_connections_that_nobody_uses_leave_a_broker_its_files(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    few_files = (
        "-c",
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400)); "
        "runpy.run_module('rockoon_broker', run_name='__main__', alter_sys=True)",
    )
    await nameserver.create_topic("T", {"broker-a": 1})
    async with process(tmp_path, nameserver.address, program=few_files) as running:
        address = await running.wait_ready()
        async with calls_to(address) as broker:
            await broker.append("T", 0, b"before")
            with contextlib.ExitStack() as stack:
                host, _, port = address.rpartition(":")
                for _ in range(2000):
                    stack.enter_context(socket.create_connection((host, int(port))))
                # Each queue is a separate file.
                revision = await nameserver.create_topic("U", {"broker-a": 100})
                for queue_id in range(100):
                    await broker.append("U", queue_id, b"x", route_revision=revision)
        running.signal(signal.SIGTERM)
        assert (await running.end())[0] == ExitStatus.STOPPED


async def test_a_sync_that_fails_ends_the_process_with_its_own_status(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    program = (str(HERE / "broker_on_a_failing_disk.py"),)
    async with process(tmp_path, nameserver.address, program=program) as first:
        async with calls_to(await first.wait_ready()) as broker:
            await broker.append("T", 0, b"good")
            first.signal(signal.SIGUSR1)
            call = broker.stub.AppendStream()
            reply: Any = None
            for serial in range(1000):
                await call.write(batch("T", 0, b"bad"))
                reply = await call.read()
                if reply is aio.EOF or reply.HasField("error"):
                    break
                assert serial < 999, "it goes on acknowledging"
            status, text = await first.end()
        assert status == ExitStatus.DISK_FAILED, text
        assert text.splitlines()[-1].startswith("rockoon-broker: a sync of ")
    assert (tmp_path / "abort").exists()


async def test_a_store_it_cannot_use_ends_the_start_with_one_sentence(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address]),
        process(tmp_path, nameserver.address) as second,
    ):
        status, text = await second.end()
    assert status == ExitStatus.STORE
    assert text.splitlines()[-1].endswith("is in use by another process")
    assert "Traceback" not in text


async def test_topics_it_cannot_serve_end_the_start_with_the_file_and_the_entry(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text('{"topicConfigTable":{"T":{"readQueueNums":-1}}}')
    async with process(tmp_path, nameserver.address) as first:
        status, text = await first.end()
    assert status == ExitStatus.STORE
    assert f"{file} cannot be read: topic 'T': readQueueNums is -1" in text.splitlines()[-1]
    assert "Traceback" not in text


async def test_a_setting_that_does_not_exist_is_named(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('flush_mode = "sync"\n')
    async with process(tmp_path, "127.0.0.1:1", "--config", str(config)) as first:
        status, text = await first.end()
    assert status == ExitStatus.CONFIGURATION
    assert "unknown setting 'flush_mode'" in text
