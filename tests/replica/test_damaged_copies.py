"""Brokers whose disks return other bytes than were written: repairs from other copies."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import rockoon
from replica.test_broker_copies import created, is_serving, leader_of, led_log
from rockoon_broker.server import serve
from rockoon_core.errors import RockoonError
from rockoon_format.record import AT_BODY_V4, AT_MAGIC
from rockoon_runtime.process import Fatal, Stop
from support.broker import RunningBroker, settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.log_watch import WatchingLog
from support.nameserver import Nameserver, running_nameserver
from support.store_directory import crashed_copy

NAMES = tuple(f"broker-a-{number}" for number in range(4))
LOG = Path("commitlog", f"{0:020}")


class Brokers:
    """Replicas of one log, in this process."""

    def __init__(
        self, tasks: asyncio.TaskGroup, nameserver: Nameserver, cluster: str, **changes: Any
    ) -> None:
        self._changes = changes
        self._tasks = tasks
        self._nameserver = nameserver
        self._cluster = cluster
        self._running: dict[str, tuple[Stop, asyncio.Task[None]]] = {}
        self.roots: dict[str, Path] = {}

    def start(self, name: str, root: Path, **more: Any) -> None:
        stop, nameservers = Stop(), [self._nameserver.address]
        of_copy = {"cluster": self._cluster, "copies": 3, "replica": name, **self._changes, **more}
        settings = settings_of(root, nameservers, **of_copy)
        self.roots[name] = root
        self._running[name] = stop, self._tasks.create_task(serve(settings, stop), name=name)

    async def stop(self, name: str) -> Fatal | None:
        """End a process; return the error that determines its exit status."""
        stop, task = self._running.pop(name)
        stop.request("the test says so")
        await task
        return stop.fatal

    def stop_all(self) -> None:
        for stop, _ in self._running.values():
            stop.request("the test is over")

    async def level(self) -> None:
        """Wait until each is level with the leader, and all have the same bytes."""
        for node in (await led_log(self._nameserver)).nodes:
            await answered(partial(is_serving, node.address), bool)
        logs = [self.roots[name] / LOG for name in self._running]
        await eventually(lambda: all(log.exists() for log in logs))
        await eventually(lambda: len({log.read_bytes() for log in logs}) == 1)


def is_sound(root: Path) -> bool:
    """Return the content of a replica's file."""
    told = json.loads((root / "config" / "replica").read_bytes().splitlines()[0])
    return bool(told["sound"])


def damage(root: Path, body: bytes) -> bytes:
    """Change a byte of a message; return the content of the log after it."""
    path = root / LOG
    content = bytearray(path.read_bytes())
    content[content.index(body)] ^= 1
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.soak
async def test_a_copy_that_cut_damaged_records_at_its_start_elects_nobody_and_copies_again(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        brokers = Brokers(tasks, nameserver, cluster)
        for name in NAMES[:3]:
            brokers.start(name, tmp_path / name)
        try:
            async with (
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                leader = leader_of(await led_log(nameserver))
                name, other = (each for each in NAMES[:3] if each != leader)
                # Its recovery point is older than the messages; the other one has none of them.
                await brokers.stop(name)
                brokers.start(name, tmp_path / name)
                await brokers.level()
                await brokers.stop(other)
                for number in range(20):
                    await producer.send("orders", b"message %03d" % number)
                # The state after a kill; then its disk changes a byte.
                after = crashed_copy(tmp_path / name, tmp_path / "after")
                await brokers.stop(name)
                await brokers.stop(leader)
                damage(after, b"message 010")
                assert is_sound(after)
                brokers.start(name, after)
                brokers.start(other, tmp_path / other)
                async with WatchingLog(nameserver) as watching:
                    log = await watching.until(lambda log: len(log.state.reports) == 2)
                assert not log.state.leader
                assert not is_sound(after)
                brokers.start(leader, tmp_path / leader)
                await producer.send("orders", b"message 020")
                await brokers.level()
                assert is_sound(after)
        finally:
            brokers.stop_all()


async def test_a_damaged_record_that_a_reader_meets_at_the_leader_is_repaired_and_read(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        brokers = Brokers(tasks, nameserver, cluster, scrub_bytes_per_second=0)
        for name in NAMES[:3]:
            brokers.start(name, tmp_path / name)
        try:
            async with (
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                for number in range(3):
                    await producer.send("orders", b"message %d" % number)
                # The newest messages are read from memory, but not after a start.
                for name in NAMES[:3]:
                    await brokers.stop(name)
                for name in NAMES[:3]:
                    brokers.start(name, tmp_path / name)
                await brokers.level()
                leader = leader_of(await led_log(nameserver))
                path = tmp_path / leader / LOG
                content = bytearray(path.read_bytes())
                # The magic code of the record: no reader gets this record.
                at = content.index(b"message 1") - AT_BODY_V4
                with path.open("r+b") as file:
                    file.seek(at + AT_MAGIC)
                    file.write(bytes([content[at + AT_MAGIC] ^ 1]))

                bodies = await answered(
                    lambda: bodies_of(nameserver), lambda found: len(found) == 3
                )
                assert bodies == [b"message %d" % number for number in range(3)]
                assert path.read_bytes() == bytes(content)
                await brokers.level()
        finally:
            brokers.stop_all()


async def bodies_of(nameserver: Nameserver) -> list[bytes]:
    """Return the messages that the leader sends to a reader; empty while it refuses."""
    log = await led_log(nameserver)
    addresses = {node.store_id: node.address for node in log.nodes}
    if log.state.leader not in addresses:
        return []
    address = addresses[log.state.leader]
    async with aio.insecure_channel(address) as channel:
        try:
            return list(await RunningBroker(address, channel, Stop()).bodies("orders"))
        except RockoonError:
            return []


async def test_a_damaged_record_of_an_epoch_is_repaired_before_the_copy_opens_its_log(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A start reads this record, and cannot continue without it."""
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        brokers = Brokers(tasks, nameserver, cluster)
        for name in NAMES[:3]:
            brokers.start(name, tmp_path / name)
        try:
            async with (
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                await producer.send("orders", b"before")
                await brokers.level()
                leader = leader_of(await led_log(nameserver))
                name = next(each for each in NAMES[:3] if each != leader)
                await brokers.stop(name)
                # The log begins with the only record of an epoch.
                content = bytearray((tmp_path / name / LOG).read_bytes())
                content[100] ^= 1
                (tmp_path / name / LOG).write_bytes(content)
                brokers.start(name, tmp_path / name)
                await producer.send("orders", b"after")
                await brokers.level()
                assert "cannot be opened" in caplog.text
                assert is_sound(tmp_path / name)
        finally:
            brokers.stop_all()
