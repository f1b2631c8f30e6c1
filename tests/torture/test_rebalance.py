"""Messages handled twice because of a rebalance: processes of members join, leave, are killed.

A leave or a join costs nothing. A kill costs at most the handled and uncommitted messages.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from torture.chaos import MemberProcess, Members
from torture.judge import Call
from torture.test_group_torture import SETTINGS, TOPIC, WATCH_SECONDS, Load

import rockoon
from rockoon.local import LocalCluster

GROUP = "plain"
SETTLED_SECONDS_MAX = 60.0
# After a rebalance, until its duplicates are counted.
FLOWING_CALLS = 150


class Cost(NamedTuple):
    """One rebalance."""

    what: str
    members: int
    seconds: float
    duplicates: int
    # Handled by the killed and not committed, at the time of the kill.
    duplicates_max: int


class Group:
    """A group of members in processes, and its rebalances so far."""

    def __init__(self, cluster: rockoon.Cluster, members: Members, per_process: int) -> None:
        self._cluster = cluster
        self._members = members
        self._per_process = per_process
        self._calls_before = 0
        self._seen: set[tuple[str, int]] = set()
        self.costs: list[Cost] = []

    def start(self, processes: int) -> None:
        for _ in range(processes):
            self._members.start([GROUP] * self._per_process)

    async def settled(self, what: str, duplicates_max: int = 0) -> None:
        """Wait until live members share all queues evenly, and messages flow; record the cost."""
        began = time.monotonic()
        while not await self._is_completed():
            assert time.monotonic() < began + SETTLED_SECONDS_MAX, self._members.errors()
            await asyncio.sleep(WATCH_SECONDS)
        seconds = time.monotonic() - began
        # Repeated messages come first on a queue.
        enough = len(self._members.calls()) + FLOWING_CALLS
        while len(self._members.calls()) < enough:
            await asyncio.sleep(WATCH_SECONDS)
        running = sum(len(each.members) for each in self._members.running)
        self.costs.append(Cost(what, running, seconds, self._duplicates(), duplicates_max))

    async def _is_completed(self) -> bool:
        alive = {member for each in self._members.running for member in each.members}
        progress = await self._cluster.admin.progress(GROUP, TOPIC)
        shares = Counter(dict.fromkeys(alive, 0))
        shares.update(each.owner for each in progress)
        queues = len((await self._cluster.route(TOPIC)).queues)
        return (
            len(progress) == queues
            and shares.keys() == alive
            and max(shares.values()) - min(shares.values()) <= 1
        )

    def _duplicates(self) -> int:
        """Return calls for a message that an earlier call has finished, since the last query."""
        found = 0
        calls = self._members.calls()
        for call in calls[self._calls_before :]:
            found += (call.queue, call.offset) in self._seen
            self._seen.add((call.queue, call.offset))
        self._calls_before = len(calls)
        return found

    async def unstored_by(self, killed: MemberProcess) -> int:
        """Return calls of killed members on their queues that were not committed."""
        progress = await self._cluster.admin.progress(GROUP, TOPIC)
        theirs = {
            f"{each.queue.topic}@{each.queue.broker}:{each.queue.queue_id}": each.offset
            for each in progress
            if each.owner in killed.members
        }
        begun: set[tuple[str, int]] = {
            (call.queue, call.offset) for call in self._members.calls() if is_unstored(call, theirs)
        }
        return len(begun)


def is_unstored(call: Call, stored: dict[str, int]) -> bool:
    return call.queue in stored and call.offset >= stored[call.queue]


async def measure(
    directory: Path, queues_per_broker: int, processes: int, per_process: int
) -> list[Cost]:
    async with (
        LocalCluster(brokers=2, settings=SETTINGS) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.producer() as producer,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=queues_per_broker)
        members, load = Members(local, directory, TOPIC), Load(producer)
        group = Group(cluster, members, per_process)
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(load.run())
                group.start(processes)
                await group.settled("all join")
                for each in members.running[:2]:
                    members.leave(each)
                    await members.wait_left(each)
                await group.settled("two processes leave")
                group.start(2)
                await group.settled("two processes join")
                for _ in range(2):
                    killed = members.running[0]
                    members.kill(killed)
                    unstored = await group.unstored_by(killed)
                    await group.settled("one process is killed", unstored)
                load.stopping = True
                await sending
        finally:
            members.end()
        assert not members.errors()
    print(f"\n{'':24}{'members':>8}{'seconds':>9}{'duplicates':>12}{'at most':>9}")
    for cost in group.costs:
        print(
            f"{cost.what:24}{cost.members:8}{cost.seconds:9.2f}{cost.duplicates:12}"
            f"{cost.duplicates_max:9}"
        )
    return group.costs


@pytest.mark.soak
async def test_members_that_leave_or_join_cost_nothing_and_killed_ones_what_they_had_not_stored(
    tmp_path: Path,
) -> None:
    costs = await measure(tmp_path, queues_per_broker=6, processes=3, per_process=4)
    check(costs)


@pytest.mark.soak
async def test_fifty_members_rebalance_at_the_same_cost(tmp_path: Path) -> None:
    costs = await measure(tmp_path, queues_per_broker=60, processes=10, per_process=5)
    check(costs)


def check(costs: list[Cost]) -> None:
    for cost in costs:
        assert cost.duplicates <= cost.duplicates_max, cost
