"""kill -9 of every kind of process, and processes that are stopped, doubled, or get another time."""

import asyncio
import os
import signal
import time
from collections import Counter

from faults.cluster import BROKER, OFFSET, FaultyCluster
from faults.power import GROUPS, QUEUES, TOPIC
from faults.scenario import Outcome, Task
from faults.syncs import AFTERWARDS_SECONDS, RESENT, goes_on, working
from faults.workload import RUN, Books, Committer, read_topic, when_there
from load import payload

import rockoon
from rockoon import Message, Resolution
from rockoon.errors import RockoonError

KILLS = 6
VICTIMS = (BROKER, OFFSET, "nameserver-a", BROKER, OFFSET, BROKER)
TRANSACTIONS = "paid"
DELAYED = "later"
DELAY_SECONDS = 2.0
SETTLE_SECONDS_MAX = 60.0
CLOCK_JUMPS = (3600.0, -3600.0, 86_400.0, -86_400.0)


class Deals:
    """Transactions and delayed messages, until it is told to end.

    Each body is its number; the books say what was decided and what was acknowledged.
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
        """Wait until nothing waits any more, while somebody is there to be asked."""
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

    async def judge(self) -> list[str]:
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
        # A send that was repeated waits twice; what waits once comes once. The message id is new
        # in neither case, so only those that were never repeated could be told: counted as notes.
        return faults


async def kills(task: Task) -> Outcome:
    """Kill one process after another under a whole workload."""
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
        outcome.breaks("at the end", once(books, stored.messages.values()))
        outcome.breaks("at the end", await committer.judge())
        outcome.breaks("at the end", await deals.judge())
    outcome.acknowledged = (
        len(books.acknowledged)
        + len(committer.acknowledged)
        + len(deals.decided)
        + len(deals.delayed)
    )
    return outcome


def once(books: Books, queues) -> list[str]:  # type: ignore[no-untyped-def]
    """Whether an idempotent producer's messages (odd senders) are stored once."""
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
    """SIGSTOP for longer than the lease: who comes back neither loses nor takes back anything."""
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
        outcome.breaks("at the end", once(books, stored.messages.values()))
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
    """A second process on one store, and a copy of a store under the same name."""
    outcome, _ = Outcome(), task.chance("doubles")
    local = FaultyCluster(task)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        async with cluster.producer() as producer:
            await producer.send_many(TOPIC, [b"%d" % number for number in range(100)])
            for node in (BROKER, OFFSET):
                copy = local.keep_store(node)
                for name, store in (("the same store", local.store(node)), ("a copy", copy)):
                    ended = await second_process(local, node, str(store))
                    outcome.runs += 1
                    outcome.injected += 1
                    if ended is None:
                        outcome.breaks(node, [f"a second process serves on {name}"])
                    elif ended == 1:
                        outcome.breaks(node, [f"a second process on {name} ends without a reason"])
            await producer.send(TOPIC, b"after")
        outcome.breaks("at the end", local.unexpected_ends())
        stored = await read_topic(cluster, TOPIC)
        bodies = [message.body for messages in stored.messages.values() for message in messages]
        outcome.acknowledged = 101
        if bodies != [*(b"%d" % number for number in range(100)), b"after"]:
            outcome.breaks("at the end", [f"{len(bodies)} messages are there, not 101"])
    return outcome


async def second_process(local: FaultyCluster, node: str, store: str) -> int | None:
    """Start a second process of a node; its exit status, None if it serves."""
    command = [
        f"--store-path={store}"
        if part.startswith("--store-path=")
        else "--listen=127.0.0.1:0"
        if part.startswith("--listen=")
        else part
        for part in local.node(node).command
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            line = await process.stdout.readline()
            if line:
                # It serves; is it in the routes beside, or instead of, the first one?
                try:
                    async with asyncio.timeout(AFTERWARDS_SECONDS):
                        await process.wait()
                except TimeoutError:
                    return None
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
