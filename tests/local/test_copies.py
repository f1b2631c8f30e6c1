"""Brokers with copies of their logs, as real processes: disks that are lost, one copy that becomes
three.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc import aio

import rockoon
from rockoon.admin.logs import LogDescription, ReplicaDescription
from rockoon.local import LocalCluster
from rockoon_runtime.process import Stop
from support.broker import RunningBroker
from support.eventually import answered
from support.waiting import DEADLINE_SECONDS

LOG, TOPIC = "broker-a", "orders"


class Orders:
    """Sends numbers one after another, and reads the stored ones."""

    def __init__(self, local: LocalCluster, connection: rockoon.Cluster, sent: int) -> None:
        self.local = local
        self.connection = connection
        self.sent = sent

    async def send(self, count: int) -> None:
        async with self.connection.producer() as producer:
            for number in range(self.sent, self.sent + count):
                await producer.send(TOPIC, b"%d" % number)
        self.sent += count

    async def stored(self) -> list[int]:
        """Return them without numbers that were sent twice because their reply was lost."""
        log = await self.log(lambda log: log.confirmed and log.leader and log.leader.address)
        assert log.leader is not None
        assert log.leader.address is not None
        async with aio.insecure_channel(log.leader.address) as channel:
            bodies = await RunningBroker(log.leader.address, channel, Stop()).bodies(TOPIC)
        return list(dict.fromkeys(map(int, bodies)))

    async def log(self, holds: Callable[[LogDescription], object]) -> LogDescription:
        return await answered(lambda: self.connection.admin.logs.describe(LOG), holds)


@asynccontextmanager
async def running(
    directory: Path, replicas: int | None = None, sent: int = 0
) -> AsyncIterator[Orders]:
    async with (
        LocalCluster(directory, replicas=replicas) as local,
        rockoon.connect(local.nameservers) as connection,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        yield Orders(local, connection, sent)


def led_by_three(log: LogDescription) -> bool:
    return log.confirmed and len(log.in_sync) == 3 and not log.moves


def replaced(lost: ReplicaDescription) -> Callable[[LogDescription], bool]:
    """Return whether a replica of the same name has replaced a lost one."""

    def holds(log: LogDescription) -> bool:
        names = {each.id: each.name for each in log.in_sync}
        # Also not among the replicas that do not count.
        is_gone = len(log.replicas) == 3 and lost.id not in names
        return led_by_three(log) and is_gone and lost.name in names.values()

    return holds


def wipe(local: LocalCluster, replica: str) -> None:
    local.kill(replica)
    shutil.rmtree(local.directory / replica)


@pytest.mark.soak
async def test_one_copy_becomes_three_of_which_any_may_lose_its_disk(tmp_path: Path) -> None:
    async with running(tmp_path) as orders:
        await orders.connection.admin.create_topic(TOPIC, queues_per_broker=1)
        await orders.send(10)
    async with running(tmp_path, replicas=3, sent=10) as orders:
        await orders.log(led_by_three)
        await orders.send(10)
        # A leader's disk, then that of a follower which has copied everything from it.
        for leads in (True, False):
            log = await orders.log(led_by_three)
            lost = next(each for each in log.in_sync if each.is_leader == leads)
            wipe(orders.local, lost.name)
            await orders.send(10)
            orders.local.start(lost.name, wait=False)
            await orders.log(replaced(lost))
        assert await orders.stored() == list(range(40))
