"""Copies whose disks give other bytes than they took: found out, and made anew from good ones."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

import rockoon
from replica.test_broker_copies import created, is_serving, leader_of, led_log
from rockoon_broker.server import serve
from rockoon_runtime.process import Stop
from support.broker import settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.log_watch import WatchingLog
from support.nameserver import Nameserver, running_nameserver
from support.store_directory import crashed_copy

NAMES = tuple(f"broker-a-{number}" for number in range(4))
LOG = Path("commitlog", f"{0:020}")


class Brokers:
    """Replicas of one log, in this process."""

    def __init__(self, tasks: asyncio.TaskGroup, nameserver: Nameserver, cluster: str) -> None:
        self._tasks = tasks
        self._nameserver = nameserver
        self._cluster = cluster
        self._running: dict[str, tuple[Stop, asyncio.Task[None]]] = {}
        self.roots: dict[str, Path] = {}

    def start(self, name: str, root: Path) -> None:
        stop, nameservers = Stop(), [self._nameserver.address]
        settings = settings_of(root, nameservers, cluster=self._cluster, copies=3, replica=name)
        self.roots[name] = root
        self._running[name] = stop, self._tasks.create_task(serve(settings, stop), name=name)

    async def stop(self, name: str) -> None:
        stop, task = self._running.pop(name)
        stop.request("the test says so")
        await task

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
    """What a replica's file says of it."""
    told = json.loads((root / "config" / "replica").read_bytes().splitlines()[0])
    return bool(told["sound"])


def damage(root: Path, body: bytes) -> bytes:
    """Change a byte of a message; returns what the log is then."""
    path = root / LOG
    content = bytearray(path.read_bytes())
    content[content.index(body)] ^= 1
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.soak
async def test_a_damaged_copy_elects_nobody_copies_again_and_is_set_aside_when_it_cannot(
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
                # Its recovery point is from before the messages; the other one has none of them.
                await brokers.stop(name)
                brokers.start(name, tmp_path / name)
                await brokers.level()
                await brokers.stop(other)
                for number in range(20):
                    await producer.send("orders", b"message %03d" % number)
                # A process that is killed leaves this; then its disk changes a byte.
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

                # Below the recovery point nobody looks before the leader's checksum does.
                await brokers.stop(name)
                content = damage(after, b"message 015")
                brokers.start(name, after)
                await eventually(lambda: not is_sound(after))
                # It votes, so it keeps its log until another one has its place.
                assert not any((after / "lost").glob("replica-*"))
                brokers.start(NAMES[3], tmp_path / NAMES[3])
                await answered(lambda: replaced(client, name, NAMES[3]), bool)
                await eventually(lambda: any((after / "lost").glob("replica-*/config")))
                (aside,) = (after / "lost").glob("replica-*")
                assert (aside / LOG).read_bytes() == content
                await producer.send("orders", b"message 021")
                await brokers.level()
        finally:
            brokers.stop_all()


async def replaced(client: rockoon.Cluster, old: str, new: str) -> bool:
    """Ask for one replica instead of another, by their names, once both are there."""
    log = await client.admin.logs.describe("broker-a")
    ids = {each.name: each.id for each in log.replicas}
    if new in ids:
        await client.admin.logs.replace("broker-a", ids[old], ids[new])
    return new in ids
