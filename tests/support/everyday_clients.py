"""Clients that do the usual work of programs on a cluster, and record all failures.

Every sender awaits its sends, so a pause of the cluster shows as its longest wait. Every reader
records its messages, so loss, repetition and disorder show at the end.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import rockoon
from rockoon.errors import RockoonError
from rockoon.message import Message
from rockoon.transactions.transaction import Resolution
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest

EVERYDAY, ONCE, ORDERED, PAID, LATER, LONELY = (
    "everyday",
    "once",
    "ordered",
    "paid",
    "later",
    "lonely",
)
TOPICS = (EVERYDAY, ONCE, ORDERED, PAID, LATER, LONELY)
ANY_BROKER = {"send", "send_many", "idempotent", "delayed"}
KEYS = 4
BATCH = 20
DELAY_SECONDS = 1.0
PACE_SECONDS = 0.04
ADMIN_PACE_SECONDS = 0.05


@dataclass
class Client:
    """One program: number of its operations, its longest wait, and its failures."""

    name: str
    any_broker: bool = False
    """True if any of several brokers can serve each of its calls."""
    done: int = 0
    longest_seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def call(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RockoonError as error:
            self.failures.append(f"{self.name} after {time.monotonic() - began:.2f} s: {error!r}")
        else:
            self.done += 1
        self.waits.append(time.monotonic() - began)
        self.longest_seconds = max(self.longest_seconds, self.waits[-1])

    def percentile_ms(self, share: float) -> float:
        waits = sorted(self.waits)
        return 1000 * waits[min(int(len(waits) * share), len(waits) - 1)] if waits else 0.0

    def __str__(self) -> str:
        return (
            f"{self.name:<16}{self.done:>6} calls, ms: p50 {self.percentile_ms(0.5):7.1f}, "
            f"p99 {self.percentile_ms(0.99):7.1f}, longest {1000 * self.longest_seconds:7.1f}; "
            f"{len(self.failures)} failed"
        )


class Place(NamedTuple):
    """Position of a message."""

    queue: str
    offset: int
    message_id: str


class Received:
    """Received messages of one reader, by topic."""

    def __init__(self) -> None:
        self.bodies: dict[str, Counter[bytes]] = defaultdict(Counter)
        # Position at which each received message was read, by topic and body.
        self.places: dict[str, dict[bytes, list[Place]]] = defaultdict(lambda: defaultdict(list))
        self.order: dict[bytes, list[int]] = defaultdict(list)
        self.last_at: dict[str, float] = {}
        self.longest_gap_seconds: dict[str, float] = defaultdict(float)

    def take(self, message: Message) -> None:
        topic, body = message.topic, bytes(message.body)
        self.bodies[topic][body] += 1
        place = Place(str(message.queue), message.queue_offset, message.message_id)
        self.places[topic][body].append(place)
        now = time.monotonic()
        gap = now - self.last_at.get(topic, now)
        self.longest_gap_seconds[topic] = max(self.longest_gap_seconds[topic], gap)
        self.last_at[topic] = now
        if topic.endswith(ORDERED):
            key, _, number = body.partition(b" ")
            self.order[key].append(int(number))

    def repeated(self, topic: str) -> int:
        return sum(self.bodies[topic].values()) - len(self.bodies[topic])

    def twice(self, topic: str) -> list[str]:
        """Return bodies that came more than once: stored twice by a sender, or delivered twice from
        one position."""
        return [
            f"{body!r} {'stored' if len({*places}) > 1 else 'delivered'} twice: {places}"
            for body, places in self.places[topic].items()
            if len(places) > 1
        ]


class EverydayClients:
    """All clients on one connection; `run` ends some time after `stopping` was set.

    Args:
        cluster: the connection.
        patience_seconds: timeout of a call.
        prefix: prefix of the names of topics and groups.
    """

    def __init__(self, cluster: rockoon.Cluster, patience_seconds: float, prefix: str = "") -> None:
        self._cluster = cluster
        self._prefix = prefix
        self.topics = [prefix + topic for topic in TOPICS]
        self._patience_seconds = patience_seconds
        self.stopping = False
        self._newcomers = 0
        self.acknowledged: dict[str, set[bytes]] = defaultdict(set)
        self.clients: list[Client] = []
        self.pushed = Received()
        self.in_order = Received()
        self.pulled = Received()

    @property
    def failures(self) -> list[str]:
        return [failure for client in self.clients for failure in client.failures]

    def reader_of(self, topic: str) -> Received:
        return self.in_order if topic.endswith(ORDERED) else self.pushed

    def client(self, name: str) -> Client:
        made = Client(name, name in ANY_BROKER)
        self.clients.append(made)
        return made

    def missing(self) -> dict[str, int]:
        """Return acknowledged messages that a reader has not received yet, by reader and topic."""
        readers = {topic: (topic, self.reader_of(topic)) for topic in self.topics}
        readers["pull"] = (self._prefix + EVERYDAY, self.pulled)
        counts = {
            name: len(self.acknowledged[topic] - got.bodies[topic].keys())
            for name, (topic, got) in readers.items()
        }
        return {name: count for name, count in counts.items() if count}

    async def make_topics(self, lonely_broker: str) -> None:
        admin = self._cluster.admin
        for topic in self.topics:
            if topic.endswith(LONELY):
                await admin.create_topic(topic, placements={lonely_broker: 1})
            else:
                await admin.create_topic(topic, queues_per_broker=2)

    async def run(self) -> None:
        cluster, prefix = self._cluster, self._prefix
        patient: dict[str, Any] = {"delivery_timeout_seconds": self._patience_seconds}
        everyday, once, ordered, paid, later, lonely = self.topics
        topics = [everyday, once, paid, later, lonely]
        pushed = prefix + "pushed"
        async with (
            cluster.push_consumer(
                pushed, dict.fromkeys(topics, "*"), self.pushed.take, consume_from="first"
            ),
            cluster.push_consumer(
                prefix + "orderly",
                {ordered: "*"},
                self.in_order.take,
                orderly=True,
                consume_from="first",
            ),
            cluster.pull_consumer(prefix + "pulled", consume_from="first") as puller,
            cluster.producer(**patient) as plain,
            cluster.producer(idempotent=True, **patient) as idempotent,
            cluster.transactional_producer(
                prefix + "payments", check=unsure, **patient
            ) as transactional,
        ):
            await puller.assign_all(everyday)
            senders: dict[str, Callable[[int], Awaitable[list[tuple[str, bytes]]]]] = {
                "send": lambda n: sent(plain, everyday, b"one %d" % n),
                "send_many": lambda n: many(plain, everyday, n),
                "idempotent": lambda n: sent(idempotent, once, b"%d" % n),
                "by key": lambda n: keyed(plain, ordered, n),
                "transaction": lambda n: committed(transactional, paid, n),
                "delayed": lambda n: sent(plain, later, b"%d" % n, delay_seconds=DELAY_SECONDS),
                "one broker only": lambda n: sent(plain, lonely, b"%d" % n),
            }
            looks: dict[str, Callable[[], Awaitable[object]]] = {
                "route": lambda: cluster.call_nameserver(
                    "GetRoute", GetRouteRequest(topics=[everyday])
                ),
                "newcomer": self._come_and_go,
                "list topics": cluster.admin.list_topics,
                "lag": lambda: cluster.admin.lag(pushed),
                "members": lambda: cluster.admin.members(pushed),
            }
            async with asyncio.TaskGroup() as tasks:
                for name, send in senders.items():
                    tasks.create_task(self._send(self.client(name), send))
                for name, look in looks.items():
                    tasks.create_task(self._look(self.client(name), look))
                tasks.create_task(self._pull(self.client("poll and commit"), puller))

    async def _come_and_go(self) -> None:
        """Connect, send and close, as a script does."""
        everyday, body = self._prefix + EVERYDAY, b"newcomer %d" % self._newcomers
        self._newcomers += 1
        async with rockoon.connect(self._cluster.nameservers) as cluster:
            await cluster.producer().send(everyday, body)
        self.acknowledged[everyday].add(body)

    async def _send(
        self, client: Client, send: Callable[[int], Awaitable[list[tuple[str, bytes]]]]
    ) -> None:
        number = 0
        while not self.stopping:
            with client.call():
                for topic, body in await send(number):
                    self.acknowledged[topic].add(body)
            number += 1
            await asyncio.sleep(PACE_SECONDS)

    async def _look(self, client: Client, look: Callable[[], Awaitable[object]]) -> None:
        while not self.stopping:
            with client.call():
                await look()
            await asyncio.sleep(ADMIN_PACE_SECONDS)

    async def _pull(self, client: Client, puller: rockoon.PullConsumer) -> None:
        while not self.stopping or self.missing():
            with client.call():
                for message in await puller.poll(timeout=PACE_SECONDS):
                    self.pulled.take(message)
                await puller.commit()


async def sent(
    producer: rockoon.Producer, topic: str, body: bytes, delay_seconds: float | None = None
) -> list[tuple[str, bytes]]:
    await producer.send(topic, body, delay_seconds=delay_seconds)
    return [(topic, body)]


async def many(producer: rockoon.Producer, topic: str, number: int) -> list[tuple[str, bytes]]:
    bodies = [b"many %d %d" % (number, index) for index in range(BATCH)]
    await producer.send_many(topic, bodies)
    return [(topic, body) for body in bodies]


async def keyed(producer: rockoon.Producer, topic: str, number: int) -> list[tuple[str, bytes]]:
    body = b"%d %d" % (number % KEYS, number)
    await producer.send(topic, body, ordering_key=str(number % KEYS))
    return [(topic, body)]


async def committed(
    producer: rockoon.TransactionalProducer, topic: str, number: int
) -> list[tuple[str, bytes]]:
    async with producer.transaction(topic, b"%d" % number):
        pass
    return [(topic, b"%d" % number)]


def unsure(message: Message) -> Resolution:
    return Resolution.UNKNOWN
