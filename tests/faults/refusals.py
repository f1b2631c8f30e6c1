"""Three copies of a broker's log: writes of the leader's files are refused, or its disk is full.

Another copy must become leader and acknowledge messages. Replies to senders are checked as in
`faults.syncs`; at the end the copies are equal, byte for byte.
"""

import asyncio
import errno
import itertools
import time
from typing import NamedTuple

from faults.cluster import OFFSET, FaultyCluster
from faults.copies import COPIES, LOG, same
from faults.power import GROUPS, QUEUES, TOPIC
from faults.scenario import Outcome, Task
from faults.syncs import AFTERWARDS_SECONDS, AWAIT_FAULT_SECONDS, RESENT, goes_on, working
from faults.workload import Books, Committer, read_topic, when_there

import rockoon
from rockoon.local.node_maker import replica_names

NUMBERS = (errno.ENOSPC, errno.EIO, errno.EBADF)
PARTS = ("/commitlog/", "/consumequeue/")


class Refusal(NamedTuple):
    """Refused writes of a leader's disk.

    Attributes:
        log: log of this leader.
        part: part of the paths of refused files; empty: all writes that need new blocks.
        number: the errno.
    """

    log: str
    part: str
    number: int

    def __str__(self) -> str:
        files = self.part or "any new blocks"
        return f"{errno.errorcode[self.number]} for {files} of the leader of {self.log}"


REFUSALS = (
    *(Refusal(LOG, part, number) for part in PARTS for number in NUMBERS),
    Refusal(LOG, "", errno.ENOSPC),
    Refusal(OFFSET, "", errno.ENOSPC),
)


async def leader_of(cluster: rockoon.Cluster, log: str, other_than: str = "") -> str:
    """Return the replica that leads, once another one than this does."""
    while True:
        described = await when_there(lambda: cluster.admin.logs.describe(log))
        if described.leader is not None and described.leader.name != other_than:
            return str(described.leader.name)
        await asyncio.sleep(AFTERWARDS_SECONDS / 50)


def longest_pause(books: Books, since_ns: int) -> float:
    """Return seconds between two acknowledgements of messages."""
    times = sorted(each.time_ns for each in books.acknowledged if each.time_ns >= since_ns)
    return max((b - a for a, b in itertools.pairwise(times)), default=0) / 1e9


async def refused(local: FaultyCluster, cluster: rockoon.Cluster, refusal: Refusal) -> list[str]:
    """Refuse a leader's writes until another copy leads; return violations."""
    leader = await leader_of(cluster, refusal.log)
    control = local.controls[leader]
    if refusal.part:
        control.refuse_writes(refusal.part, refusal.number)
    else:
        control.fill_disk(True)
    faults: list[str] = []
    try:
        async with asyncio.timeout(AWAIT_FAULT_SECONDS):
            await leader_of(cluster, refusal.log, other_than=leader)
    except TimeoutError:
        faults.append(f"{leader} leads on")
    while (ended := await local.ended_by_itself(AFTERWARDS_SECONDS)) is not None:
        may_end = not refusal.part or refusal.number == errno.EBADF
        if ended.name != leader or not may_end:
            faults.append(f"it ended: {' '.join(str(ended).split())[-300:]}")
            break
        # Without any space a copy cannot persist its promises and ends; the other copies continue.
        # A process whose descriptor was closed by other code cannot trust its descriptors and ends.
        control.calm()
        if why := await local.up(leader):
            faults.append(f"{leader} does not start: {why}")
    control.calm()
    return faults


async def refused_writes(task: Task) -> Outcome:
    """Refuse writes of the leaders of both logs, in one way after another."""
    outcome, chance = Outcome(), task.chance("refused writes")
    watched = [*replica_names(LOG, (), COPIES), *replica_names(OFFSET, (), COPIES)]
    settings = {"nameserver": {"node_lease_seconds": 2}}
    local = FaultyCluster(task, watched=watched, settings=settings, replicas=COPIES)
    books = Books(TOPIC)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await when_there(
            lambda: cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES, if_absent=True)
        )
        for group in GROUPS:
            await cluster.admin.create_group(group)
        queues = (await cluster.route(TOPIC)).queues
        committer = Committer(cluster, books, GROUPS, queues)
        async with working(cluster, books, committer, 0, chance):
            for refusal in task.count(1) * chance.sample(REFUSALS, len(REFUSALS)):
                outcome.breaks(str(refusal), await goes_on(books, committer))
                since_ns = time.monotonic_ns()
                outcome.breaks(str(refusal), await refused(local, cluster, refusal))
                outcome.breaks(str(refusal), await goes_on(books, committer))
                pause_seconds = longest_pause(books, since_ns)
                outcome.pause_seconds = max(outcome.pause_seconds, pause_seconds)
                outcome.runs += 1
                outcome.injected += 1
                if outcome.broken:
                    break
        outcome.breaks("at the end", local.unexpected_ends())
        outcome.breaks("at the end", books.judge(await read_topic(cluster, TOPIC), RESENT))
        outcome.breaks("at the end", await committer.judge())
        stores = [local.store(name) for name in local.replicas_of(LOG)]
        for part in ("commitlog", "consumequeue"):
            outcome.breaks("at the end", await same(part, stores))
    outcome.acknowledged = len(books.acknowledged) + len(committer.acknowledged)
    local.close_controls()
    return outcome
