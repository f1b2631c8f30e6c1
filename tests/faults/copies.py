"""Three copies of a broker's log: replicas are killed, paused, stopped in order, two or all at
once, while messages are sent, read and consumed, and topics are created and deleted.

The replies to senders and readers are checked as a history of each queue (`support.log_history`).
In the end the copies are equal, byte for byte.
"""

import asyncio
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.cluster import OFFSET, FaultyCluster
from faults.history import History
from faults.power import GROUPS, QUEUES, TOPIC
from faults.scenario import Outcome, Task
from faults.syncs import AFTERWARDS_SECONDS, goes_on, working
from faults.workload import Books, Committer, read_topic, when_there

import rockoon
from rockoon.consumer.pull import PullLimits, PullOutOfRange, pull
from rockoon.errors import RockoonError, TopicNotFound
from rockoon.message import Message
from rockoon.producer.producer import Producer
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from support.eventually import moves_until

LOG = "broker-a"
COPIES = 3
ACTS = 9
CONSUMERS = "everything"
# Longer than a follower waits for a silent leader, and than a lease.
PAUSE_SECONDS = (3.0, 10.0)
# Always among the acts: no other act reveals a leader that counts itself alone.
ALONE = "leader killed, the others behind"

Act = Callable[[], Coroutine[Any, Any, list[str]]]
"""Type of an act on processes; it returns the violations."""


class Reader:
    """Reads queues repeatedly, from offsets that it chooses."""

    def __init__(
        self,
        cluster: rockoon.Cluster,
        queues: Iterable[MessageQueue],
        history: History,
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._queues = list(queues)
        self._history = history
        self.faults: list[str] = []
        self._chance = chance
        self._ended = False

    def end(self) -> None:
        self._ended = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for queue in self._queues:
                tasks.create_task(self._read(queue), name=f"reader of {queue}")

    async def _read(self, queue: MessageQueue) -> None:
        limits, wanted = PullLimits(messages_max=200, wait_ms=200), Subscription.parse(TOPIC, "*")
        offset = end = 0
        while not self._ended:
            began_ns = time.monotonic_ns()
            try:
                pulled = await pull(self._cluster, queue, offset, wanted, limits)
            except RockoonError as error:
                if not error.retriable:
                    self.faults.append(f"{queue} at {offset}: {error}")
                await asyncio.sleep(AFTERWARDS_SECONDS / 50)
                continue
            self._history.pulled(queue, offset, began_ns, pulled)
            # Beyond the end: a broker's reply has led it there, and this will be reported.
            offset = 0 if isinstance(pulled, PullOutOfRange) else pulled.next_offset
            end = max(end, offset)
            if self._chance.random() < 0.1:
                offset = self._chance.randrange(end + 1)


class Topics:
    """Creates topics, sends messages to each, and deletes them; later ones reuse their names."""

    def __init__(self, cluster: rockoon.Cluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._ended = False
        self.kept: dict[str, dict[tuple[MessageQueue, int], bytes]] = {}
        self._gone: set[bytes] = set()
        """Return topics that were not deleted, with the positions of acknowledged messages."""

    def end(self) -> None:
        self._ended = True

    async def run(self) -> None:
        async with self._cluster.producer(delivery_timeout_seconds=60) as producer:
            while not self._ended:
                name = f"passing-{self._chance.randrange(6)}"
                if name in self.kept and self._chance.random() < 0.7:
                    await self._delete(name)
                else:
                    await self._fill(name, producer)
                await asyncio.sleep(AFTERWARDS_SECONDS / 5)

    async def _fill(self, name: str, producer: Producer) -> None:
        await when_there(
            lambda: self._cluster.admin.create_topic(name, queues_per_broker=2, if_absent=True)
        )
        sent = self.kept.setdefault(name, {})
        for _ in range(self._chance.randrange(1, 20)):
            body = self._chance.randbytes(20)
            with suppress(RockoonError):
                result = await producer.send(name, body)
                sent[result.queue, result.queue_offset] = body

    async def _delete(self, name: str) -> None:
        with suppress(TopicNotFound):
            await when_there(lambda: self._cluster.admin.delete_topic(name))
        self._gone.update(self.kept.pop(name).values())

    async def judge(self) -> list[str]:
        faults = []
        for name, sent in self.kept.items():
            stored = await read_topic(self._cluster, name)
            faults += stored.troubles
            found = {
                (queue, message.queue_offset): message.body
                for queue, messages in stored.messages.items()
                for message in messages
            }
            gone = [place for place, body in sent.items() if found.get(place) != body]
            if back := self._gone & {*found.values()}:
                faults.append(f"{name} shows {len(back)} messages of a topic that was deleted")
            if gone:
                faults.append(
                    f"{len(gone)} of {len(sent)} messages of {name} are not where they were "
                    f"acknowledged: {gone[0][0]} {gone[0][1]}"
                )
        return faults


class EndedByItself(Exception):
    """A process to be acted on has ended by itself."""


class Adversary:
    """Acts on the processes."""

    def __init__(self, local: FaultyCluster, cluster: rockoon.Cluster, chance: random.Random):
        self._local = local
        self._cluster = cluster
        self._chance = chance
        self.acts: Mapping[str, Act] = {
            "leader killed": self._kill_leader,
            "one killed": lambda: self._kill(1),
            "two killed": lambda: self._kill(2),
            "all killed": lambda: self._kill(COPIES),
            "leader paused": self._pause_leader,
            "one paused, one killed": self._pause_and_kill,
            ALONE: self._kill_leader_alone,
            "one ended in order": self._end_in_order,
            "nameserver killed": self._kill_nameserver,
            "offset leader killed": lambda: self._kill_leader(OFFSET),
            "offset leader paused": lambda: self._pause_leader(OFFSET),
            "all offset services killed": lambda: self.down_and_up(
                *self._local.replicas_of(OFFSET)
            ),
        }

    def choose(self, count: int) -> list[str]:
        """Return a number of acts, with ALONE; each occurs once before one is repeated."""
        acts = [name for name in self.acts if name != ALONE]
        chosen: list[str] = []
        while len(chosen) < count - 1:
            chosen += self._chance.sample(acts, min(len(acts), count - 1 - len(chosen)))
        chosen.insert(self._chance.randrange(count), ALONE)
        return chosen

    async def leader(self, log: str = LOG) -> str:
        while True:
            described = await when_there(lambda: self._cluster.admin.logs.describe(log))
            if described.leader is not None:
                return str(described.leader.name)
            await asyncio.sleep(AFTERWARDS_SECONDS / 50)

    def _some(self, count: int) -> list[str]:
        return self._chance.sample(self._local.replicas_of(LOG), count)

    async def down_and_up(self, *names: str) -> list[str]:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._local.down(name))
        await asyncio.sleep(AFTERWARDS_SECONDS * self._chance.random())
        async with asyncio.TaskGroup() as tasks:
            started = {name: tasks.create_task(self._local.up(name)) for name in names}
        refusals = {name: task.result() for name, task in started.items()}
        return [f"{name} does not start: {why}" for name, why in refusals.items() if why]

    async def _kill_leader(self, log: str = LOG) -> list[str]:
        return await self.down_and_up(await self.leader(log))

    async def _kill(self, count: int) -> list[str]:
        return await self.down_and_up(*self._some(count))

    async def _kill_nameserver(self) -> list[str]:
        return await self.down_and_up("nameserver-a")

    def _stop(self, name: str) -> int:
        """Stop a process with SIGSTOP; return its pid."""
        pid = self._local.node(name).pid
        if pid is None:
            raise EndedByItself(name)
        os.kill(pid, signal.SIGSTOP)
        return pid

    async def _pause(self, name: str, meanwhile: Act) -> list[str]:
        pid = self._stop(name)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(self._chance.uniform(*PAUSE_SECONDS)))
                done = tasks.create_task(meanwhile())
            return done.result()
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _pause_leader(self, log: str = LOG) -> list[str]:
        async def nothing() -> list[str]:
            return []

        return await self._pause(await self.leader(log), nothing)

    async def _pause_and_kill(self) -> list[str]:
        paused, killed = self._some(2)
        return await self._pause(paused, lambda: self.down_and_up(killed))

    async def _kill_leader_alone(self) -> list[str]:
        """No replica that continues without the leader has its last messages.

        The others are killed while they are stopped: if they continued, they would read from their
        sockets the records that it had sent. It returns after their election, which it would win.
        """
        leader = await self.leader()
        others = [name for name in self._local.replicas_of(LOG) if name != leader]
        for name in others:
            self._stop(name)
        await asyncio.sleep(AFTERWARDS_SECONDS)
        await self._local.down(leader)
        faults = await self.down_and_up(*others)
        while not faults and await self.leader() == leader:
            await asyncio.sleep(AFTERWARDS_SECONDS / 50)
        refusal = await self._local.up(leader)
        return [*faults, f"{leader} does not start: {refusal}"] if refusal else faults

    async def _end_in_order(self) -> list[str]:
        (name,) = self._some(1)
        await asyncio.to_thread(self._local.stop, name)
        refusal = await self._local.up(name)
        return [f"{name} does not start: {refusal}"] if refusal else []


async def copies(task: Task) -> Outcome:
    """Act on one or several replicas, one after another, under a full workload."""
    outcome, chance = Outcome(), task.chance("copies")
    settings = {"nameserver": {"node_lease_seconds": 2}}
    local = FaultyCluster(task, settings=settings, nameservers=2, replicas=COPIES)
    books = Books(TOPIC)
    history, consumed = History(books), set[tuple[MessageQueue, int]]()

    async def consume(message: Message) -> None:
        history.given(message)
        consumed.add((message.queue, message.queue_offset))

    async with local, rockoon.connect(local.nameservers) as cluster:
        await when_there(
            lambda: cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES, if_absent=True)
        )
        for group in GROUPS:
            await cluster.admin.create_group(group)
        queues = (await cluster.route(TOPIC)).queues
        committer = Committer(cluster, books, GROUPS, queues)
        reader = Reader(cluster, queues, history, task.chance("reader"))
        topics = Topics(cluster, task.chance("topics"))
        adversary = Adversary(local, cluster, chance)
        async with (
            asyncio.TaskGroup() as tasks,
            cluster.push_consumer(CONSUMERS, {TOPIC: "*"}, consume, consume_from="first"),
        ):
            tasks.create_task(reader.run(), name="readers")
            tasks.create_task(topics.run(), name="topics")
            try:
                async with working(cluster, books, committer, 0, chance):
                    for name in adversary.choose(task.count(ACTS)):
                        await asyncio.sleep(AFTERWARDS_SECONDS * chance.random())
                        outcome.runs += 1
                        outcome.injected += 1
                        try:
                            outcome.breaks(name, await adversary.acts[name]())
                        except EndedByItself as ended:
                            outcome.breaks(name, [f"{ended} is no more"])
                        outcome.breaks(name, await goes_on(books, committer))
                        outcome.breaks(name, local.unexpected_ends())
                        if outcome.broken:
                            break
                with suppress(TimeoutError):
                    await moves_until(
                        lambda: len(consumed), lambda _: consumed >= acknowledged_places(books)
                    )
            finally:
                reader.end()
                topics.end()
        outcome.breaks("at the end", local.unexpected_ends())
        missed = len(acknowledged_places(books) - consumed)
        if missed:
            outcome.breaks("at the end", [f"{missed} messages were never consumed"])
        began_ns = time.monotonic_ns()
        stored = await read_topic(cluster, TOPIC)
        history.at_the_end(stored, began_ns)
        outcome.breaks("at the end", history.judge() + stored.troubles + reader.faults)
        outcome.breaks("at the end", await committer.judge())
        outcome.breaks("at the end", await topics.judge())
        stores = [local.store(name) for name in local.replicas_of(LOG)]
        for part in ("commitlog", "consumequeue"):
            outcome.breaks("at the end", await same(part, stores))
    outcome.acknowledged = len(books.acknowledged) + len(committer.acknowledged)
    outcome.acknowledged += sum(map(len, topics.kept.values()))
    return outcome


def acknowledged_places(books: Books) -> set[tuple[MessageQueue, int]]:
    return {(each.queue, each.offset) for each in books.acknowledged}


async def same(part: str, stores: list[Path]) -> list[str]:
    """Return whether a range of all copies becomes equal, once no records are added."""
    try:
        await moves_until(
            lambda: [contents(store / part) for store in stores],
            lambda found: all(each == found[0] for each in found[1:]),
        )
    except TimeoutError:
        found = [contents(store / part) for store in stores]
        names = sorted(set().union(*found))
        return [
            f"{part}/{name} differs: {[each.get(name) for each in found]}"
            for name in names
            if len({each.get(name) for each in found}) > 1
        ]
    return []


def contents(directory: Path) -> dict[str, tuple[int, int]]:
    """Return length without trailing zeros, and CRC, of each file that is not empty."""
    found = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            data = path.read_bytes().rstrip(b"\0")
            if data:
                found[str(path.relative_to(directory))] = (len(data), zlib.crc32(data))
    return found
