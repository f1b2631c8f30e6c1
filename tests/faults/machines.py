"""One machine of three fails repeatedly while messages are sent.

Bits of a log's copy flip, a disk is put back to an older snapshot, a clock jumps, connections are
reset. After each trial the log must accept messages of both kinds of producers and commits. At
the end all acknowledged messages are stored at their offsets, and messages of idempotent producers
are stored once.
"""

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from faults.cluster import FaultyCluster
from faults.copies import COPIES, LOG, Adversary, same
from faults.kills import once
from faults.power import GROUPS, QUEUES, TOPIC
from faults.refusals import longest_pause
from faults.scenario import Outcome, Task
from faults.syncs import AFTERWARDS_SECONDS, AWAIT_FAULT_SECONDS, RESENT, working
from faults.workload import Books, Committer, Stored, read_topic, when_there

import rockoon
from load import payload
from rockoon.errors import RockoonError, SequenceUnknown, StoreCorrupt
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.sequences import SequenceBook
from rockoon_replica.replica_file import FILE, decode
from support.reset_connections import ResettingServer

MACHINES = tuple(f"{LOG}-{number}" for number in range(COPIES))
FLIPS, SNAPSHOTS, JUMPS, RESETS = 12, 5, 4, 4
REPAIRED_SECONDS = 60.0
RESET_SECONDS = 4.0
DAY_SECONDS = 86_400.0

SETTINGS: dict[str, dict[str, object]] = {
    "nameserver": {"node_lease_seconds": 2},
    # As fast as the workload writes: a flipped bit is found before the next one is made.
    "broker": {"scrub_bytes_per_second": 64 << 20},
}


@dataclass
class Machines:
    """Three copies of a log under load."""

    local: FaultyCluster
    cluster: rockoon.Cluster
    books: Books
    committer: Committer
    outcome: Outcome
    adversary: Adversary
    chance: random.Random

    async def goes_on(self, seconds: float = AWAIT_FAULT_SECONDS) -> list[str]:
        """Return whether both kinds of producers and the committer get acknowledgements from now
        on."""

        def counts() -> dict[str, int]:
            kinds = [each.stream // payload.LANES_MAX % 2 for each in self.books.acknowledged]
            return {
                "messages of an ordinary producer": kinds.count(0),
                "messages of an idempotent producer": kinds.count(1),
                "progress": len(self.committer.acknowledged),
            }

        before = counts()
        waiting = set(before)
        try:
            async with asyncio.timeout(seconds):
                while waiting:
                    await asyncio.sleep(AFTERWARDS_SECONDS / 50)
                    waiting = {kind for kind, count in counts().items() if count <= before[kind]}
        except TimeoutError:
            return [f"no {kind} acknowledged for {seconds:.0f} s" for kind in sorted(waiting)]
        return []

    async def check(self, where: str, *, damaged: Sequence[str] = ()) -> bool:
        """End a trial: the log accepts messages, every process runs, no sound copy counts as
        damaged.

        Args:
            where: name of the trial.
            damaged: copies whose disks the trial has changed.
        """
        self.outcome.runs += 1
        self.outcome.breaks(where, await self.goes_on())
        self.outcome.breaks(where, self.local.unexpected_ends())
        called = [name for name in MACHINES if name not in damaged and not self.is_sound(name)]
        self.outcome.breaks(where, [f"{name} is sound and is called damaged" for name in called])
        return not self.outcome.broken

    def is_sound(self, name: str) -> bool:
        """Return whether a copy is sound and undamaged by its `config/replica`."""
        path = self.local.store(name) / "config" / FILE
        facts = decode(path.read_bytes()).facts
        return facts.sound and not facts.damaged

    async def all_sound(self) -> list[str]:
        """Wait until every copy has all records that it acknowledged, undamaged."""
        try:
            async with asyncio.timeout(REPAIRED_SECONDS):
                while unsound := [name for name in MACHINES if not self.is_sound(name)]:
                    await asyncio.sleep(AFTERWARDS_SECONDS / 5)
        except TimeoutError:
            return [f"{name} is not sound after {REPAIRED_SECONDS:.0f} s" for name in unsound]
        return []

    async def up(self, *names: str) -> list[str]:
        refusals = {name: await self.local.up(name) for name in names}
        return [f"{name} does not start: {why}" for name, why in refusals.items() if why]

    def followers(self, leader: str) -> list[str]:
        found = [name for name in MACHINES if name != leader]
        self.chance.shuffle(found)
        return found


@asynccontextmanager
async def machines(
    task: Task, outcome: Outcome, purpose: str, *, watched: bool = False, equal: bool = True
) -> AsyncIterator[Machines]:
    """Run a cluster under load until the block ends; then check the stored messages.

    Args:
        watched: replicas run with the library.
        equal: the copies' files must be equal in the end.
    """
    chance = task.chance(purpose)
    local = FaultyCluster(
        task,
        watched=MACHINES if watched else (),
        settings=SETTINGS,
        nameservers=2,
        replicas=COPIES,
    )
    books = Books(TOPIC)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await when_there(
            lambda: cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES, if_absent=True)
        )
        for group in GROUPS:
            await cluster.admin.create_group(group)
        committer = Committer(cluster, books, GROUPS, (await cluster.route(TOPIC)).queues)
        adversary = Adversary(local, cluster, chance)
        async with working(cluster, books, committer, 0, chance):
            await asyncio.sleep(AFTERWARDS_SECONDS)
            yield Machines(local, cluster, books, committer, outcome, adversary, chance)
        outcome.pause_seconds = max(outcome.pause_seconds, longest_pause(books, 0))
        outcome.breaks("at the end", local.unexpected_ends())
        stored = without_damaged(await read_topic(cluster, TOPIC))
        outcome.breaks("at the end", books.judge(stored, RESENT))
        outcome.breaks("at the end", once(stored.messages.values()))
        unread = sum(map(len, stored.damaged.values()))
        outcome.breaks("at the end", [f"{unread} messages cannot be read"] if unread else [])
        outcome.breaks("at the end", await committer.judge())
        if equal:
            stores = [local.store(name) for name in MACHINES]
            outcome.breaks("at the end", await same("commitlog", stores))
    outcome.acknowledged += len(books.acknowledged) + len(committer.acknowledged)
    local.close_controls()


def without_damaged(stored: Stored) -> Stored:
    """Move messages that do not have their checksum to the damaged ones."""
    for queue, messages in stored.messages.items():
        sound = []
        for message in messages:
            try:
                message.body  # noqa: B018 - reading it checks it
                sound.append(message)
            except StoreCorrupt:
                stored.damaged[queue].append(message.queue_offset)
        stored.messages[queue] = sound
    return stored


async def flipped_bits(task: Task) -> Outcome:
    """Flip one bit of one copy's CommitLog, and restart the leader or a follower."""
    outcome = Outcome()
    # Each part has a new log. A scrub reads a log from its begin, so a bit of a log that grows for
    # an hour is not repaired within REPAIRED_SECONDS.
    trials = range(task.count(FLIPS))
    for part in range(0, len(trials), FLIPS):
        directory = task.directory / f"trials-{part}"
        directory.mkdir()
        own = replace(task, directory=directory)
        async with machines(own, outcome, f"flips {part}") as at_work:
            for number in trials[part : part + FLIPS]:
                await flipped_bit(at_work, number)
                if outcome.broken:
                    break
        shutil.rmtree(directory)
        if outcome.broken:
            break
    return outcome


async def flipped_bit(at_work: Machines, number: int) -> None:
    """Run one trial; its number decides the copy, and whether the leader is restarted."""
    outcome = at_work.outcome
    victim = MACHINES[number % COPIES]
    leader = await at_work.adversary.leader()
    is_leader = number // COPIES % 2 == 0
    restarted = leader if is_leader else at_work.followers(leader)[0]
    role = "leader" if victim == leader else "follower"
    flip = Flip(at_work, victim)
    where = f"{flip} of {victim} ({role}), {restarted} restarted"
    outcome.injected += 1
    outcome.breaks(where, await at_work.adversary.down_and_up(restarted))
    if not await at_work.check(where, damaged=[victim]):
        return
    if victim != restarted:
        # A scrub begins with a start; the next one comes ten minutes after its end.
        outcome.breaks(where, await at_work.adversary.down_and_up(victim))
    outcome.breaks(where, await flip.repaired())
    # The next trial uses another copy.
    outcome.breaks(where, await at_work.all_sound())


class Flip:
    """A flipped bit in a record that all copies have, in its header as often as elsewhere."""

    def __init__(self, at_work: Machines, victim: str) -> None:
        chance = at_work.chance
        files = sorted((at_work.local.store(victim) / "commitlog").iterdir())
        sizes = [len(path.read_bytes().rstrip(b"\0")) for path in files]
        # Not the newest records: a copy may lack them.
        at = chance.randrange(sum(sizes) * 4 // 5)
        number = 0
        while at >= sizes[number]:
            at -= sizes[number]
            number += 1
        self._path = files[number]
        data = self._path.read_bytes()
        if chance.random() < 0.5:
            # Size, magic, checksum and the fields after them. All records have the same magic.
            head = max(data.rfind(data[4:8], 0, at + 8) - 4, 0)
            at = head + chance.randrange(60)
        self._at, self._byte, self._bit = at, data[at], chance.randrange(8)
        with self._path.open("r+b", buffering=0) as file:
            file.seek(at)
            file.write(bytes([self._byte ^ 1 << self._bit]))

    def __str__(self) -> str:
        return f"bit {self._bit} of byte {self._at} of {self._path.name}"

    async def repaired(self) -> list[str]:
        """Wait until the byte is repaired."""
        deadline = time.monotonic() + REPAIRED_SECONDS
        while time.monotonic() < deadline:
            with self._path.open("rb") as file:
                file.seek(self._at)
                if file.read(1) == bytes([self._byte]):
                    return []
            await asyncio.sleep(AFTERWARDS_SECONDS / 5)
        return [f"it was not repaired within {REPAIRED_SECONDS:.0f} s"]


async def older_snapshots(task: Task) -> Outcome:
    """A follower's disk is restored, and its vote is needed for an election."""
    outcome = Outcome()
    async with machines(task, outcome, "snapshots", equal=False) as at_work:
        local = at_work.local
        for number in range(task.count(SNAPSHOTS)):
            leader = await at_work.adversary.leader()
            restored, away = at_work.followers(leader)
            where = f"trial {number}: an older disk of {restored}, {away} was away"
            await local.down(restored)
            snapshot = local.keep_store(restored)
            outcome.breaks(where, await at_work.up(restored))
            outcome.breaks(where, await at_work.goes_on())
            await local.down(away)
            # Acknowledged by the leader and the copy whose disk is restored, and by no other copy.
            outcome.breaks(where, await at_work.goes_on())
            await local.down(restored)
            await local.down(leader)
            local.put_store(restored, snapshot)
            outcome.injected += 1
            # They may or may not elect a leader: in both cases no acknowledged message is lost.
            for name in (restored, away):
                await asyncio.to_thread(local.start, name, wait=False)
            await asyncio.sleep(AFTERWARDS_SECONDS * at_work.chance.uniform(2, 4))
            outcome.breaks(where, await at_work.up(leader))
            if not await at_work.check(where, damaged=[restored]):
                break
    return outcome


@asynccontextmanager
async def forgotten_producers() -> AsyncIterator[list[str]]:
    """Record replies of brokers to unknown idempotent producers of this process.

    If the batch cannot be stored, the producer starts a new sequence, so a sender does not notice.
    """
    found: list[str] = []
    real = SequenceBook.renew_if_unknown

    def renew_if_unknown(book: SequenceBook, batch: ProducerBatch, error: RockoonError) -> bool:
        found.extend([str(error)] * isinstance(error, SequenceUnknown))
        return real(book, batch, error)

    SequenceBook.renew_if_unknown = renew_if_unknown  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        SequenceBook.renew_if_unknown = real  # type: ignore[method-assign]


async def jumping_clocks(task: Task) -> Outcome:
    """The clock of one machine is a day wrong, and it leads or is elected."""
    outcome = Outcome()
    async with (
        machines(task, outcome, "clocks", watched=True) as at_work,
        forgotten_producers() as forgotten,
    ):
        for number in range(task.count(JUMPS)):
            leader = await at_work.adversary.leader()
            seconds = DAY_SECONDS if number % 4 < 2 else -DAY_SECONDS
            wrong = leader if number % 2 else at_work.followers(leader)[0]
            where = f"the clock of {wrong} is {seconds:+.0f} s off"
            at_work.local.controls[wrong].shift_clock(seconds)
            outcome.injected += 1
            while not outcome.broken and (leads := await at_work.adversary.leader()) != wrong:
                outcome.breaks(where, await at_work.adversary.down_and_up(leads))
                outcome.breaks(where, await at_work.goes_on())
            outcome.breaks(f"{where}, it leads", await at_work.goes_on())
            at_work.local.controls[wrong].calm()
            outcome.breaks(where, forgotten[:1])
            if not await at_work.check(f"{where}, and is right again"):
                break
    return outcome


async def reset_connections(task: Task) -> Outcome:
    """At the address of a machine that is away, connections are accepted and reset."""
    outcome = Outcome()
    async with machines(task, outcome, "resets") as at_work:
        local = at_work.local
        for number in range(task.count(RESETS)):
            leader = await at_work.adversary.leader()
            away = leader if number % 2 else at_work.followers(leader)[0]
            where = f"{away} ({'leader' if away == leader else 'follower'}) is away"
            await local.down(away)
            port = int(local.node(away).address.rpartition(":")[2])
            with ResettingServer(port) as resets:
                await asyncio.sleep(RESET_SECONDS)
                outcome.breaks(where, await at_work.goes_on())
            outcome.injected += resets.count
            outcome.breaks(where, local.unexpected_ends())
            outcome.breaks(where, await at_work.up(away))
            if not await at_work.check(where):
                break
    return outcome
