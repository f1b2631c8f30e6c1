"""Orderly group while the offset service's leader is killed, stopped and replaced: real processes.

Rule besides the order (see `support.ordered_group`): acknowledged progress never decreases.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon.cluster import Cluster
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from support.eventually import answered, eventually
from support.ordered_group import Members, loaded

LOG, TOPIC = "offset", "orders"
LEASES = {"lease_seconds": 2.0, "heartbeat_seconds": 0.4, "handover_seconds_max": 10.0}


class Progress:
    """The offset service's replies about the group's progress, queried all the time."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self.stopping = False
        self.answers = 0
        self.told: dict[int, int] = {}

    async def run(self) -> None:
        while not self.stopping:
            try:
                found = await self._cluster.admin.progress(self._group, TOPIC)
            except RockoonError:
                # No replica leads at the moment.
                continue
            for each in found:
                before = self.told.get(each.queue.queue_id, 0)
                assert each.offset >= before, f"progress went back from {before}: {each}"
                self.told[each.queue.queue_id] = each.offset
            self.answers += 1
            await asyncio.sleep(0)


class Leader:
    """The process that leads the offset service's log."""

    def __init__(self, local: LocalCluster, cluster: Cluster) -> None:
        self._local = local
        self._cluster = cluster

    async def name(self, holds: Callable[[LogDescription], object] = lambda _: True) -> str:
        """Return once all replicas are level."""
        log: LogDescription = await answered(
            lambda: self._cluster.admin.logs.describe(LOG),
            lambda log: log.confirmed and log.leader is not None and holds(log),
        )
        assert log.leader is not None
        return log.leader.name

    async def other_than(self, name: str) -> None:
        await self.name(lambda log: log.leader is not None and log.leader.name != name)

    async def ready(self, name: str) -> None:
        """Return once a replica that was away is level again."""

        async def is_ready() -> bool:
            log = await self._cluster.admin.logs.describe(LOG)
            standings = await self._cluster.admin.logs.ask_replicas(log)
            names = {each.id: each.name for each in log.replicas}
            return any(names[who] == name and each.ready for who, each in standings.items())

        await answered(is_ready, bool)

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = self._local.node(name).pid
        assert pid is not None
        os.kill(pid, number)


async def more(members: Members, *names: str) -> None:
    for name in names:
        await members.wait_reading(name, 100)


@pytest.mark.soak
async def test_an_orderly_group_works_on_while_the_offset_leader_is_killed_stopped_and_replaced(
    tmp_path: Path,
) -> None:
    settings = {"offset": LEASES}
    async with (
        LocalCluster(replicas=3, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        leader, progress = Leader(local, cluster), Progress(cluster, f"{TOPIC}-readers")
        async with (
            asyncio.TaskGroup() as tasks,
            loaded(local, cluster, TOPIC, tmp_path / "log") as members,
        ):
            await members.join("a")
            await members.join("b")
            await more(members, "a", "b")
            watching = tasks.create_task(progress.run())
            for number in range(3):
                killed = await leader.name()
                await asyncio.to_thread(local.kill, killed)
                await leader.other_than(killed)
                await more(members, "a", "b")
                local.start(killed, wait=False)
                await leader.ready(killed)
                # It is stopped for longer than a member's lease, and wakes as a leader.
                stopped = await leader.name()
                leader.signal(stopped, signal.SIGSTOP)
                await leader.other_than(stopped)
                await members.join(f"c{number}")
                await more(members, "a", "b", f"c{number}")
                leader.signal(stopped, signal.SIGCONT)
                await leader.ready(stopped)
                await members.leave(f"c{number}")
                # An orderly stop hands over.
                left = await leader.name()
                await asyncio.to_thread(local.restart, left, wait=False)
                await leader.ready(left)
                await more(members, "a", "b")
            answers = progress.answers
            await eventually(lambda: progress.answers > answers)
            progress.stopping = True
            await watching
    members.log.check()
