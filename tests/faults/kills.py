"""kill -9 of every kind of process; processes that are stopped or doubled, or whose clock jumps."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from faults.cluster import BROKER, OFFSET, TESTS, FaultyCluster
from faults.power import GROUPS, QUEUES, TOPIC
from faults.scenario import Outcome, Task
from faults.syncs import AFTERWARDS_SECONDS, RESENT, forgiving, goes_on, working
from faults.workload import RUN, Books, Committer, read_topic, when_there

import rockoon
from load import payload
from rockoon import Message, Resolution
from rockoon.errors import RockoonError
from rockoon.producer.producer import Producer

KILLS = 6
VICTIMS = (BROKER, OFFSET, "nameserver-a", BROKER, OFFSET, BROKER)
TRANSACTIONS = "paid"
DELAYED = "later"
DELAY_SECONDS = 2.0
SETTLE_SECONDS_MAX = 60.0
CLOCK_JUMPS = (3600.0, -3600.0, 86_400.0, -86_400.0)


class Deals:
    """Sends transactions and delayed messages until it is stopped.

    Each body is its number; the books have the decisions and the acknowledgements.
    """

    def __init__(self, cluster: rockoon.Cluster) -> None:
        self._cluster = cluster
        self._ended = False
        self.decided: dict[str, Resolution] = {}
        self.delayed: set[bytes] = set()
        self.tried = 0

    def end(self) -> None:
        self._ended = True

    def check(self, message: Message) -> Resolution:
        return self.decided.get(message.message_id, Resolution.ROLLBACK)

    async def run(self) -> None:
        async with (
            self._cluster.transactional_producer("payers", check=self.check) as payers,
            self._cluster.producer(delivery_timeout_seconds=60) as producer,
        ):
            while not self._ended:
                self.tried += 1
                try:
                    transaction = await payers.begin(TRANSACTIONS, b"x", check_after_seconds=0)
                    choice = Resolution.COMMIT if self.tried % 3 else Resolution.ROLLBACK
                    self.decided[transaction.message_id] = choice
                    if choice is Resolution.COMMIT:
                        await transaction.commit()
                    else:
                        await transaction.rollback()
                except RockoonError:
                    # The check answers for it.
                    pass
                try:
                    body = b"%d" % self.tried
                    await producer.send(DELAYED, body, delay_seconds=DELAY_SECONDS)
                    self.delayed.add(body)
                except RockoonError:
                    pass
            await self._settled()

    async def _settled(self) -> None:
        """Wait until no message waits any more, while a producer can answer checks."""
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while True:
                status = await when_there(self._cluster.admin.status)
                states = [each.broker for each in status.brokers]
                if states and all(
                    each is not None
                    and each.transactions_pending == 0
                    and each.delayed.pending_timed == 0
                    and not any(each.delayed.pending_by_level.values())
                    for each in states
                ):
                    return
                await asyncio.sleep(0.1 * DELAY_SECONDS)

    async def judge(self, kills: int) -> list[str]:
        faults = []
        found: Counter[str] = Counter()
        for messages in (await read_topic(self._cluster, TRANSACTIONS)).messages.values():
            found.update(message.message_id for message in messages)
        committed = {key for key, value in self.decided.items() if value is Resolution.COMMIT}
        if committed - found.keys():
            faults.append(f"{len(committed - found.keys())} committed transactions are missing")
        if found.keys() - committed:
            faults.append(f"{len(found.keys() - committed)} are there that nobody committed")
        if found.total() > len(found):
            faults.append(f"{found.total() - len(found)} copies of committed messages")
        came: Counter[bytes] = Counter()
        for messages in (await read_topic(self._cluster, DELAYED)).messages.values():
            came.update(message.body for message in messages)
        if self.delayed - came.keys():
            faults.append(f"{len(self.delayed - came.keys())} delayed messages never came")
        # One is under way when a broker is killed, and may be sent again.
        copies = came.total() - len(came)
        if copies > kills:
            faults.append(f"{copies} delayed messages came again, {kills} may")
        return faults


async def kills(task: Task) -> Outcome:
    """Kill one process after another under a full workload."""
    outcome, chance = Outcome(), task.chance("kills")
    local = FaultyCluster(task, nameservers=2)
    books = Books(TOPIC)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        for name in (TRANSACTIONS, DELAYED):
            await cluster.admin.create_topic(name, queues_per_broker=1)
        for group in GROUPS:
            await cluster.admin.create_group(group)
        queues = (await cluster.route(TOPIC)).queues
        committer, deals = Committer(cluster, books, GROUPS, queues), Deals(cluster)
        victims = [VICTIMS[number % len(VICTIMS)] for number in range(task.count(KILLS))]
        chance.shuffle(victims)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deals.run(), name="deals")
            async with working(cluster, books, committer, 0, chance):
                for victim in victims:
                    await asyncio.sleep(AFTERWARDS_SECONDS * chance.random())
                    await local.down(victim)
                    outcome.runs += 1
                    outcome.injected += 1
                    refusal = await local.up(victim)
                    if refusal:
                        outcome.breaks(victim, [f"it does not start: {refusal}"])
                        break
                    outcome.breaks(victim, await goes_on(books, committer))
                    outcome.breaks(victim, await committer.judge(time.monotonic_ns()))
            deals.end()
        outcome.breaks("at the end", local.unexpected_ends())
        stored = await read_topic(cluster, TOPIC)
        outcome.breaks("at the end", books.judge(stored, RESENT))
        outcome.breaks("at the end", once(stored.messages.values()))
        outcome.breaks("at the end", await committer.judge())
        outcome.breaks("at the end", await deals.judge(victims.count(BROKER)))
    outcome.acknowledged = (
        len(books.acknowledged)
        + len(committer.acknowledged)
        + len(deals.decided)
        + len(deals.delayed)
    )
    return outcome


def once(queues: Iterable[Sequence[Message]]) -> list[str]:
    """Check that an idempotent producer's messages (odd senders) are stored once."""
    found: Counter[tuple[int, int]] = Counter()
    for messages in queues:
        headers, _ = payload.decode([message.body for message in messages], RUN)
        found.update(
            (int(header["stream"]), int(header["sequence"]))
            for header in headers
            if int(header["stream"]) // payload.LANES_MAX % 2
        )
    copies = found.total() - len(found)
    return [f"{copies} copies of an idempotent producer's messages"] if copies else []


async def stops(task: Task) -> Outcome:
    """SIGSTOP for longer than the lease: a process that continues neither loses nor undoes
    anything."""
    outcome, chance = Outcome(), task.chance("stops")
    settings = {"nameserver": {"node_lease_seconds": 2}}
    local = FaultyCluster(task, settings=settings)
    books = Books(TOPIC)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        await cluster.admin.create_group(GROUPS[0])
        committer = Committer(cluster, books, GROUPS[:1], queues)
        async with working(cluster, books, committer, 0, chance):
            for node in (BROKER, OFFSET, "nameserver-a") * task.count(1):
                pid = local.node(node).pid
                assert pid is not None
                os.kill(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(chance.uniform(2.5, 5.0))
                finally:
                    os.kill(pid, signal.SIGCONT)
                outcome.runs += 1
                outcome.injected += 1
                outcome.breaks(f"{node} stopped", await goes_on(books, committer))
        outcome.breaks("at the end", local.unexpected_ends())
        stored = await read_topic(cluster, TOPIC)
        outcome.breaks("at the end", books.judge(stored, RESENT))
        outcome.breaks("at the end", once(stored.messages.values()))
        outcome.breaks("at the end", await committer.judge())
    outcome.acknowledged = len(books.acknowledged) + len(committer.acknowledged)
    return outcome


async def clocks(task: Task) -> Outcome:
    """The wall clock of broker and offset service jumps, while they run and across a start."""
    outcome, chance = Outcome(), task.chance("clocks")
    local = FaultyCluster(task, watched=[BROKER, OFFSET])
    books = Books(TOPIC)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        await cluster.admin.create_group(GROUPS[0])
        committer = Committer(cluster, books, GROUPS[:1], queues)
        async with working(cluster, books, committer, 0, chance):
            for number in range(task.count(len(CLOCK_JUMPS))):
                seconds = CLOCK_JUMPS[number % len(CLOCK_JUMPS)]
                for control in local.controls.values():
                    control.shift_clock(seconds)
                where = f"clock {seconds:+.0f} s"
                outcome.injected += 1
                outcome.breaks(where, await goes_on(books, committer))
                if number % 2:
                    continue
                for node in (BROKER, OFFSET):
                    await local.down(node)
                    outcome.runs += 1
                    refusal = await local.up(node)
                    if refusal:
                        outcome.breaks(where, [f"{node} does not start: {refusal}"])
                        return outcome
                outcome.breaks(f"{where}, started", await goes_on(books, committer))
        outcome.breaks("at the end", local.unexpected_ends())
        outcome.breaks("at the end", books.judge(await read_topic(cluster, TOPIC), RESENT))
        outcome.breaks("at the end", await committer.judge())
    outcome.acknowledged = len(books.acknowledged) + len(committer.acknowledged)
    local.close_controls()
    return outcome


async def doubles(task: Task) -> Outcome:
    """A second process on one store; and a copy of a store, which gets the former's name."""
    outcome, chance = Outcome(), task.chance("doubles")
    settings = {"nameserver": {"node_lease_seconds": 2}}
    local = FaultyCluster(task, settings=settings)
    answers: list[tuple[int, bytes]] = []
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        for node in (BROKER, OFFSET):
            async with second_process(local, node, local.store(node)) as (second, serves):
                outcome.runs += 1
                outcome.injected += 1
                if serves:
                    outcome.breaks(node, ["a second process serves from the same store"])
                elif second.returncode in (0, 1):
                    outcome.breaks(node, [f"a second process ends with {second.returncode}"])
        for run in range(task.count(2)):
            copy = local.keep_store(BROKER)
            async with forgiving(cluster.producer(delivery_timeout_seconds=30)) as producer:
                ended = asyncio.Event()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(answered(producer, answers, ended), name="sender")
                    await asyncio.sleep(AFTERWARDS_SECONDS)
                    async with second_process(local, BROKER, copy) as (_, serves):
                        await asyncio.sleep(AFTERWARDS_SECONDS * chance.uniform(1, 3))
                        ended.set()
            outcome.runs += 1
            outcome.injected += 1
            outcome.breaks(f"a copy, run {run}", side_by_side(answers))
            outcome.acknowledged += len(answers)
            answers.clear()
            await local.down(BROKER)
            outcome.breaks(f"a copy, run {run}", [t for t in [await local.up(BROKER)] if t])
    return outcome


async def answered(
    producer: Producer, answers: list[tuple[int, bytes]], ended: asyncio.Event
) -> None:
    """Send, and record the time and the process of each acknowledgement."""
    while not ended.is_set():
        try:
            result = await producer.send(TOPIC, b"x")
            answers.append((time.monotonic_ns(), result.store_host))
        except RockoonError:
            continue


def side_by_side(answers: Sequence[tuple[int, bytes]]) -> list[str]:
    """Return whether two processes acknowledged in turns: the second one after the first."""
    hosts = [host for _, host in sorted(answers)]
    changes = [(one, other) for one, other in pairwise(hosts) if one != other]
    if len(changes) > 1:
        return [f"two processes acknowledge in turns, {len(changes)} times"]
    return []


@asynccontextmanager
async def second_process(
    local: FaultyCluster, node: str, store: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, bool]]:
    """Start a second process of a node; yield whether it serves instead of ending immediately."""
    command = [
        f"--store-path={store}"
        if part.startswith("--store-path=")
        else "--listen=127.0.0.1:0"
        if part.startswith("--listen=")
        else part
        for part in local.node(node).command
    ]
    paths = os.pathsep.join((str(TESTS), *filter(None, (os.environ.get("PYTHONPATH"),))))
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            serves = bool(await process.stdout.readline())
            if not serves:
                await process.wait()
        yield process, serves
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
