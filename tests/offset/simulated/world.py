"""Surroundings of the simulated offset service: etcd with its history, brokers' logs, time.

No call waits: a coroutine that would wait yields `Pause`, and its driver (`Simulation`) decides
when it continues, and which events happen before.
"""

import random
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rockoon_core.errors import BrokerUnavailable, NotReady, QueueNotFound, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1.broker_pb2 import DELETED_EXPIRED

SECOND_NS = 10**9
MESSAGE_MS = 7
ETCD_CLUSTER_ID = 0xE7CD
# Duration of a slow reply: routes, groups and owners may have changed when it arrives.
SLOW_PAUSES_MAX = 100


class Pause:
    """Awaited where the real code would wait for a network, a disk or a clock."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass(slots=True)
class Log:
    """One incarnation of a queue on its broker."""

    base_ms: int
    min: int = 0
    max: int = 0
    # Highest end so far; `max` decreases when the log loses its tail.
    highest: int = 0

    def append(self, count: int) -> None:
        self.max += count
        self.highest = max(self.highest, self.max)

    def offset_at(self, time_ms: int) -> int:
        found = -(-(time_ms - self.base_ms) // MESSAGE_MS)
        return min(max(found, self.min), self.max)


@dataclass(frozen=True, slots=True)
class View:
    """Content of etcd at one revision. Never changed: views share common parts."""

    revision: int
    # topic → queue → create revision.
    topics: Mapping[str, Mapping[MessageQueue, int]]
    modified: Mapping[str, int]
    groups: Mapping[str, ns.Group]
    subscriptions: Mapping[tuple[str, str], int]

    def create_revision(self, queue: MessageQueue) -> int | None:
        return self.topics.get(queue.topic, {}).get(queue)


@dataclass(slots=True)
class World:
    """etcd, the brokers and the clocks.

    Args:
        chance: source of all random choices.
        slow_share: share of slow replies among those of brokers.
    """

    chance: random.Random
    slow_share: float
    now_ns: int = SECOND_NS
    wall_ms: int = 1_700_000_000_000
    # One per revision, oldest first; the first has revision 1.
    history: list[View] = field(default_factory=lambda: [View(1, {}, {}, {}, {})])
    logs: dict[tuple[MessageQueue, int], Log] = field(default_factory=dict)
    away: dict[str, bool] = field(default_factory=dict)

    @property
    def view(self) -> View:
        return self.history[-1]

    def at(self, revision: int) -> View:
        """Return the view of a revision; the oldest kept view is used for all earlier ones."""
        return self.history[max(0, revision - self.history[0].revision)]

    def forget_history(self, before: int) -> None:
        del self.history[: max(0, before - self.history[0].revision)]

    def log(self, queue: MessageQueue) -> Log | None:
        create_revision = self.view.create_revision(queue)
        return None if create_revision is None else self.logs[queue, create_revision]

    def advance(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds
        self.wall_ms += nanoseconds // 1_000_000

    # etcd.

    def _changed(self, **parts: Any) -> int:
        before = self.view
        revision = before.revision + 1
        fields = {name: parts.get(name, getattr(before, name)) for name in View.__slots__}
        self.history.append(View(**{**fields, "revision": revision}))
        return revision

    def add_queues(self, topic: str, broker: str, count: int) -> None:
        """Create a topic, or expand it."""
        revision = self.view.revision + 1
        create_revisions = dict(self.view.topics.get(topic, {}))
        first = sum(1 for queue in create_revisions if queue.broker == broker)
        for queue_id in range(first, first + count):
            queue = MessageQueue(topic, broker, queue_id)
            create_revisions[queue] = revision
            self.logs[queue, revision] = Log(self.wall_ms)
        self._changed(
            topics={**self.view.topics, topic: dict(sorted(create_revisions.items()))},
            modified={**self.view.modified, topic: revision},
        )

    def delete_topic(self, topic: str) -> None:
        for queue, create_revision in self.view.topics[topic].items():
            del self.logs[queue, create_revision]
        self._changed(
            topics=without(self.view.topics, topic),
            subscriptions={
                key: value for key, value in self.view.subscriptions.items() if key[1] != topic
            },
        )

    def set_group(self, config: ns.GroupConfig) -> None:
        """Create a group, or change its settings."""
        revision = self.view.revision + 1
        known = self.view.groups.get(config.name)
        group = ns.Group(
            config=config,
            incarnation=revision if known is None else known.incarnation,
            modified_revision=revision,
        )
        self._changed(groups={**self.view.groups, config.name: group})

    def delete_group(self, name: str) -> None:
        self._changed(
            groups=without(self.view.groups, name),
            subscriptions={
                key: value for key, value in self.view.subscriptions.items() if key[0] != name
            },
        )

    def subscribe(self, group: str, topic: str) -> int:
        """Record a subscription once; return its revision."""
        known = self.view.subscriptions.get((group, topic))
        if known is not None:
            return known
        revision = self.view.revision + 1
        return self._changed(subscriptions={**self.view.subscriptions, (group, topic): revision})


def without(items: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in items.items() if key != name}


def update_between(old: View | None, new: View) -> ns.RouteUpdate:
    """Return a nameserver's updates since an old view; a snapshot if that is unknown."""
    topics, groups = new.topics, new.groups
    update = ns.RouteUpdate(
        revision=new.revision,
        snapshot=old is None,
        etcd_cluster_id=ETCD_CLUSTER_ID,
        etcd_reachable=True,
    )
    was = old or View(0, {}, {}, {}, {})
    for name, create_revisions in topics.items():
        if was.topics.get(name) is not create_revisions:
            topic = update.topics.add(modified_revision=new.modified[name])
            topic.config.name = name
            for queue, create_revision in create_revisions.items():
                topic.blocks.add(
                    broker=queue.broker,
                    first_queue_id=queue.queue_id,
                    queues=1,
                    create_revision=create_revision,
                )
    update.groups.extend(group for name, group in groups.items() if was.groups.get(name) != group)
    update.subscriptions.extend(
        ns.Subscription(group=group, topic=topic, revision=revision)
        for (group, topic), revision in new.subscriptions.items()
        if was.subscriptions.get((group, topic)) != revision
    )
    update.removed_topics.extend(name for name in was.topics if name not in topics)
    update.removed_groups.extend(name for name in was.groups if name not in groups)
    update.removed_subscriptions.extend(
        ns.Subscription(group=group, topic=topic)
        for group, topic in was.subscriptions
        if (group, topic) not in new.subscriptions
    )
    return update


class SimulatedRoutes:
    """The service's routes: a random number of revisions behind etcd. Replaces `Routes`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._view: View | None = None
        self.table = OffsetRoutes()

    def require(self) -> None:
        if self._view is None:
            raise NotReady(service="the offset service", reason="no nameserver has answered yet")

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        deadline_ns = self._world.now_ns + round(seconds * SECOND_NS)
        while self.table.revision < revision and self._world.now_ns < deadline_ns:
            await Pause()
        return self.table.revision >= revision

    def follow(self, view: View, *, from_nothing: bool) -> Any:
        """Apply a nameserver's update to a later view; return the change."""
        update = update_between(None if from_nothing else self._view, view)
        self._view = view
        return self.table.apply(update)


class SimulatedNameservers:
    """Records subscriptions. Replaces `Nameservers`."""

    metadata = ()

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        return await ask(self)

    async def Subscribe(self, request: Any, **_: Any) -> ns.SubscribeReply:
        await Pause()
        group = self._world.view.groups.get(request.group)
        if group is None or request.topic not in self._world.view.topics:
            raise NotReady(service="a nameserver", reason="deleted meanwhile")
        revision = self._world.subscribe(request.group, request.topic)
        entry = ns.Subscription(group=request.group, topic=request.topic, revision=revision)
        return ns.SubscribeReply(group=group, subscription=entry)


class SimulatedBrokers:
    """The queues' ends, with delayed replies. Replaces `Brokers`.

    Args:
        world: has the logs.
        on_told: called with each queue's state of a reply.
    """

    def __init__(self, world: World, on_told: Callable[[MessageQueue, QueueState], None]) -> None:
        self._world = world
        self._on_told = on_told

    async def queue_states(
        self, queues: Iterable[MessageQueue], *, offsets_only: bool = False
    ) -> dict[MessageQueue, QueueState | RockoonError]:
        chance = self._world.chance
        if chance.random() < 0.2:
            await Pause()
        answers = {queue: self._state(queue, offsets_only=offsets_only) for queue in queues}
        # A reply needs some time, and is old when it arrives.
        way = chance.random()
        for _ in range(
            chance.randrange(SLOW_PAUSES_MAX) if way < self._world.slow_share else int(way < 0.3)
        ):
            await Pause()
        return answers

    async def deletion_reasons(
        self, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        return dict.fromkeys(offsets, DELETED_EXPIRED)

    def _state(self, queue: MessageQueue, *, offsets_only: bool) -> QueueState | RockoonError:
        if self._world.away.get(queue.broker):
            return BrokerUnavailable(broker=queue.broker)
        log = self._world.log(queue)
        if log is None:
            return QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
        is_unread = offsets_only or log.max == log.min
        in_memory = None if is_unread else log.min == 0 and log.max < 500
        state = QueueState(log.min, log.max, in_memory, self._world.wall_ms)
        self._on_told(queue, state)
        return state

    async def search(
        self, times_ms: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int | RockoonError]:
        if not times_ms:
            return {}
        await Pause()
        found: dict[MessageQueue, int | RockoonError] = {}
        for queue, time_ms in times_ms.items():
            log = self._world.log(queue)
            if log is None or self._world.away.get(queue.broker):
                found[queue] = BrokerUnavailable(broker=queue.broker)
            else:
                found[queue] = log.offset_at(time_ms)
        return found


class SimulatedEnds:
    """The last known ends of queues. Replaces `QueueEnds`, which shares calls between tasks."""

    def __init__(self, brokers: SimulatedBrokers) -> None:
        self._brokers = brokers
        self._ends: dict[MessageQueue, int] = {}
        self._unknown: set[MessageQueue] = set()

    def known(self, queue: MessageQueue) -> int:
        return self._ends.get(queue, 0)

    def is_unknown(self, queue: MessageQueue) -> bool:
        return queue in self._unknown

    def drop_topics(self, topics: Iterable[str]) -> None:
        names = frozenset(topics)
        self._ends = {queue: end for queue, end in self._ends.items() if queue.topic not in names}
        self._unknown = {queue for queue in self._unknown if queue.topic not in names}

    async def refresh(self, queues: Iterable[MessageQueue]) -> None:
        for queue, state in (await self._brokers.queue_states(sorted(queues))).items():
            if isinstance(state, QueueState):
                self._ends[queue] = state.max_offset
                self._unknown.discard(queue)
            else:
                self._unknown.add(queue)
