"""One cell of the matrix: its own topic, its own group, and the messages the group received."""

import asyncio
import enum
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import rockoon
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.message import Message
from rockoon.offsets.start import Start
from rockoon.producer.producer import Producer
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import (
    CLASSIC,
    CONSUME_FROM_FIRST,
    CONSUME_FROM_LAST,
    CONSUME_FROM_TIMESTAMP,
    EXACT,
    GroupConfig,
    StartPolicy,
)

OLD_BROKER = "broker-a"
NEW_BROKER = "broker-b"
QUEUES_BEFORE = 2
QUEUES_ADDED = 2
# Messages in every queue: before the time of TIMESTAMP, after it, and after the group has read all.
EARLIER, LATER, AFTERWARDS = 10, 5, 5
LAGGING_HANDLED = 3
SECONDS_MAX = 60.0
# Store times are milliseconds: the time between two batches must differ from both.
BETWEEN_SECONDS = 0.02


class GroupIs(enum.StrEnum):
    """State of the group while the topic grows."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"
    LAGGING = "lagging"


class Growth(enum.StrEnum):
    """How the topic grows."""

    QUEUES = "queues added"
    BROKER = "broker added"


class Policy(enum.StrEnum):
    """Where the group starts on a queue that is older than its subscription."""

    FIRST = "FIRST"
    LAST = "LAST"
    TIMESTAMP = "TIMESTAMP"


class NewQueueRule(enum.StrEnum):
    """How the offset service decides that a queue is new to the group."""

    EXACT = "exact"
    CLASSIC = "classic"


class Difference(NamedTuple):
    """Messages that a group skipped or received twice, compared with its policy."""

    skipped: int
    replayed: int


class GrowthNotRead(Exception):
    """A condition did not hold in time; the text names it."""


@dataclass(slots=True)
class Cell:
    """A group while its topic grows.

    Call `prepare`, then `grow`, `come_back` and `finish`.
    """

    number: int
    group_is: GroupIs
    growth: Growth
    policy: Policy
    rule: NewQueueRule
    old_queues: list[MessageQueue] = field(default_factory=list)
    new_queues: list[MessageQueue] = field(default_factory=list)
    # The offset from which the group must read each queue, and the queue's end.
    wanted: dict[MessageQueue, int] = field(default_factory=dict)
    ends: Counter[MessageQueue] = field(default_factory=Counter)
    # The first start on each queue.
    starts: dict[MessageQueue, Start] = field(default_factory=dict)
    handled: Counter[tuple[MessageQueue, int]] = field(default_factory=Counter)
    # Messages stored before the time of TIMESTAMP.
    _before_time: Counter[MessageQueue] = field(default_factory=Counter)
    # Messages that a lagging group may handle before it blocks.
    _allowance: asyncio.Semaphore | None = None
    _consumer: PushConsumer | None = None

    @property
    def topic(self) -> str:
        return f"grows-{self.number}"

    @property
    def group(self) -> str:
        return f"group-{self.number}"

    async def prepare(self, cluster: rockoon.Cluster, producer: Producer) -> None:
        """Create topic and group; unless the group is new, let it read."""
        admin = cluster.admin
        made = await admin.create_topic(self.topic, placements={OLD_BROKER: QUEUES_BEFORE})
        route = await cluster.route(self.topic, min_revision=made.modified_revision)
        self.old_queues = sorted(route.queues)
        time_ms = await self._fill(producer, self.old_queues)
        if self.group_is is GroupIs.NEW:
            return
        await self._make_group(cluster, time_ms)
        for queue in self.old_queues:
            self.wanted[queue] = self._policy_offset(queue)
        if self.group_is is GroupIs.LAGGING:
            self._allowance = asyncio.Semaphore(LAGGING_HANDLED)
        await self._join(cluster)
        if self.group_is is not GroupIs.LAGGING:
            await self._wait_read()
        if self.group_is is GroupIs.STOPPED:
            await self._leave()

    async def grow(self, cluster: rockoon.Cluster, producer: Producer) -> None:
        """Add queues and fill them immediately, before a consumer sees the new route."""
        broker = OLD_BROKER if self.growth is Growth.QUEUES else NEW_BROKER
        grown = await cluster.admin.update_topic(self.topic, add={broker: QUEUES_ADDED})
        route = await cluster.route(self.topic, min_revision=grown.modified_revision)
        self.new_queues = sorted(set(route.queues) - set(self.old_queues))
        if len(self.new_queues) != QUEUES_ADDED:
            raise GrowthNotRead(f"{self.topic} has {self.new_queues} for new queues")
        time_ms = await self._fill(producer, self.new_queues)
        if self.group_is is GroupIs.NEW:
            await self._make_group(cluster, time_ms)

    async def come_back(self, cluster: rockoon.Cluster) -> None:
        """Let a stopped, new or lagging group read to the end."""
        if self.group_is is GroupIs.NEW:
            # Its subscription is younger than all queues: the policy decides for each queue.
            for queue in (*self.old_queues, *self.new_queues):
                self.wanted[queue] = self._policy_offset(queue)
        else:
            self.wanted.update(dict.fromkeys(self.new_queues, 0))
        self._allowance = None
        if self._consumer is None:
            await self._join(cluster)
        await self._wait_read()

    async def finish(self, producer: Producer) -> None:
        """Send more messages and wait until the group has read them."""
        await self._send(producer, (*self.old_queues, *self.new_queues), AFTERWARDS)
        await self._wait_read()
        await self._leave()

    def difference(self, queues: Iterable[MessageQueue]) -> Difference:
        """Messages of the queues that were skipped or replayed, compared with the policy."""
        skipped = replayed = 0
        for queue in queues:
            for offset in range(self.ends[queue]):
                times = self.handled[queue, offset]
                wanted = offset >= self.wanted[queue]
                skipped += wanted and not times
                replayed += max(0, times - wanted)
        return Difference(skipped, replayed)

    def _policy_offset(self, queue: MessageQueue) -> int:
        match self.policy:
            case Policy.FIRST:
                return 0
            case Policy.TIMESTAMP:
                return self._before_time[queue]
            case Policy.LAST:
                return self.ends[queue]

    async def _make_group(self, cluster: rockoon.Cluster, time_ms: int) -> None:
        kinds = {
            Policy.FIRST: CONSUME_FROM_FIRST,
            Policy.LAST: CONSUME_FROM_LAST,
            Policy.TIMESTAMP: CONSUME_FROM_TIMESTAMP,
        }
        policy = StartPolicy(consume_from=kinds[self.policy])
        if self.policy is Policy.TIMESTAMP:
            policy.timestamp_ms = time_ms
        rule = EXACT if self.rule is NewQueueRule.EXACT else CLASSIC
        await cluster.admin.create_group(
            GroupConfig(name=self.group, start_policy=policy, new_queue_rule=rule)
        )

    async def _fill(self, producer: Producer, queues: Iterable[MessageQueue]) -> int:
        """Send two batches; returns a time between them, epoch milliseconds."""
        queues = list(queues)
        await self._send(producer, queues, EARLIER)
        await asyncio.sleep(BETWEEN_SECONDS)
        self._before_time = self.ends.copy()
        time_ms = time.time_ns() // 1_000_000
        await asyncio.sleep(BETWEEN_SECONDS)
        await self._send(producer, queues, LATER)
        return time_ms

    async def _send(
        self, producer: Producer, queues: Iterable[MessageQueue], messages: int
    ) -> None:
        receipts = [
            producer.send(self.topic, b"%d" % number, queue=queue)
            for queue in queues
            for number in range(messages)
        ]
        for receipt in receipts:
            result = await receipt
            self.ends[result.queue] += 1

    async def _join(self, cluster: rockoon.Cluster) -> None:
        consumer = cluster.push_consumer(
            self.group,
            {self.topic: "*"},
            self._handle,
            member_id=f"member-of-{self.group}",
            create_group=False,
            concurrency=1,
        )
        await consumer.start()
        self._consumer = consumer

    async def _leave(self) -> None:
        assert self._consumer is not None
        self._record_starts()
        await self._consumer.close()
        self._consumer = None

    def _record_starts(self) -> None:
        assert self._consumer is not None
        for queue, start in self._consumer.starts.items():
            if queue.topic == self.topic:
                self.starts.setdefault(queue, start)

    async def _handle(self, message: Message) -> None:
        while (allowance := self._allowance) is not None:
            if not allowance.locked():
                await allowance.acquire()
                break
            await asyncio.sleep(BETWEEN_SECONDS)
        self.handled[message.queue, message.queue_offset] += 1

    async def _wait_read(self) -> None:
        """Wait until the group has read every queue to its end."""
        consumer = self._consumer
        assert consumer is not None

        def is_read() -> bool:
            views = consumer.queues()
            return all(
                queue in views and views[queue].commit_offset >= end
                for queue, end in self.ends.items()
            )

        await until(is_read, lambda: f"{self.describe()}: not everything is read")
        self._record_starts()

    def describe(self) -> str:
        return f"{self.group_is} group, {self.growth}, {self.policy}, {self.rule}"


async def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Wait for a condition.

    Raises:
        GrowthNotRead: it did not hold within SECONDS_MAX; the text is the result of `otherwise`.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise GrowthNotRead(otherwise())
        await asyncio.sleep(BETWEEN_SECONDS)
