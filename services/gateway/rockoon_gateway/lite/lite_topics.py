"""Lite topics as stored by the cluster: topics of one queue, created on first use.

    parent "chat", lite topic "session-7"   ->   topic %LITE%chat|session-7, one queue

The name's hash selects one of the parent's brokers, so the lite topics of a parent are spread. A
lite topic that expires is closed first and deleted later (see `Expiry`): a send to a closed one
reopens it.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from rockoon import Cluster
from rockoon.admin.descriptions import QueueEnds
from rockoon.admin.reads import ask_queue_ends, get_topic
from rockoon.errors import InvalidTopicName, RockoonError, TopicChanged, TopicNotFound
from rockoon.net.routes import PERMISSION_READ, PERMISSION_WRITE, TopicRoute
from rockoon_format.names import lite_topic_of, stored_lite_topic, topic_fault
from rockoon_format.topic_attributes import MESSAGE_TYPE
from rockoon_gateway.codes import Refusal
from rockoon_gateway.lite.subscriptions import LiteSubscriptions
from rockoon_gateway.routes import queues_to_send
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, MessageType

log = logging.getLogger(__name__)

LITE = MessageType.Name(MessageType.LITE)
OPEN = PERMISSION_READ | PERMISSION_WRITE
CLOSED = PERMISSION_READ
# Limit of the changes that a connection remembers.
MADE_TOGETHER_MAX = 500


def is_lite(route: TopicRoute) -> bool:
    """True if a topic is a parent of lite topics."""
    return route.attributes.get(MESSAGE_TYPE, "").upper() == LITE


class LiteTopics:
    """Creates, finds and reopens the lite topics of parent topics.

    Args:
        count_max: limit for all parents together.

    Attributes:
        count_max: see the argument; may change.
    """

    def __init__(self, cluster: Cluster, count_max: int) -> None:
        self._cluster = cluster
        self.count_max = count_max
        self._creating = asyncio.Lock()
        self._is_counted = False
        # Lite topics at the last scan, plus those created by this gateway since.
        self.count = 0

    def known(self, parent: str, lite_topic: str) -> TopicRoute | None:
        """Return the cached route of a lite topic."""
        return self._cluster.routes.topic(stored_lite_topic(parent, lite_topic))

    async def provide(
        self, parent: TopicRoute, lite_topics: Collection[str], *, to_send: bool = True
    ) -> None:
        """Create missing lite topics, and cache the routes of all lite topics in a request.

        Args:
            to_send: reopen closed ones too. A reader does not reopen a topic that is about to
                expire, or gateways would open and close it alternately.

        Raises:
            Refusal: LITE_TOPIC_QUOTA_EXCEEDED, or ILLEGAL_LITE_TOPIC with its parent's name.
            RockoonError: the nameservers do not reply, or refuse.
        """
        is_ready = self._is_open if to_send else self._is_known
        missing = [each for each in lite_topics if not is_ready(parent.name, each)]
        if not missing:
            return
        for each in missing:
            if fault := topic_fault(stored_lite_topic(parent.name, each)):
                raise Refusal(Code.ILLEGAL_LITE_TOPIC, fault)
        rest = iter(missing)
        while some := list(islice(rest, MADE_TOGETHER_MAX)):
            async with self._creating:
                await self._provide(parent, some, to_send=to_send)

    async def open_again(self, parent: TopicRoute, lite_topic: str) -> None:
        """Reopen a lite topic that refused a message, about to expire. Raises as `provide`."""
        async with self._creating:
            await self._open_again(parent, lite_topic)

    async def _open_again(self, parent: TopicRoute, lite_topic: str) -> None:
        name = stored_lite_topic(parent.name, lite_topic)
        # From the nameservers: this connection's routes may be older.
        now = await get_topic(self._cluster, name)
        if now is not None and not now.writable:
            try:
                now = await self._cluster.admin.update_topic(name, permissions=OPEN)
            except TopicNotFound:
                now = None
        if now is None:
            await self._create(parent, [lite_topic], to_send=True)
        else:
            self._cluster.record_change(name, now.modified_revision)
        await self._cluster.route(name)

    def _is_open(self, parent: str, lite_topic: str) -> bool:
        route = self.known(parent, lite_topic)
        return route is not None and route.writable

    def _is_known(self, parent: str, lite_topic: str) -> bool:
        return self.known(parent, lite_topic) is not None

    async def _provide(self, parent: TopicRoute, lite_topics: list[str], *, to_send: bool) -> None:
        names = [stored_lite_topic(parent.name, each) for each in lite_topics]
        await self._cluster.learn_routes(names)
        absent = [each for each in lite_topics if self.known(parent.name, each) is None]
        if absent:
            await self._create(parent, absent, to_send=to_send)
            await self._cluster.learn_routes(names)
        for each in lite_topics if to_send else ():
            if not self._is_open(parent.name, each):
                await self._open_again(parent, each)

    async def _create(self, parent: TopicRoute, lite_topics: list[str], *, to_send: bool) -> None:
        # Subscriptions must not use up the limit that producers need.
        most = self.count_max if to_send else self.count_max // 2
        if not self._is_counted or self.count + len(lite_topics) > most:
            self.count_lite_topics(await self._cluster.admin.list_topics(include_system=True))
        if self.count + len(lite_topics) > most:
            raise Refusal(
                Code.LITE_TOPIC_QUOTA_EXCEEDED,
                f"there are {self.count} lite topics, and lite_topics_max is {self.count_max}, "
                "half of it for subscriptions",
            )
        queues = queues_to_send(self._cluster, parent)
        if not queues:
            raise InvalidTopicName(topic=parent.name, reason="it has no queues")
        by_broker = defaultdict[str, list[str]](list)
        for each in lite_topics:
            broker = queues[crc32(each.encode()) % len(queues)].broker
            by_broker[broker].append(stored_lite_topic(parent.name, each))
        for broker, names in by_broker.items():
            await self._cluster.admin.create_topics(names, placements={broker: 1}, if_absent=True)
            self.count += len(names)

    def count_lite_topics(self, topics: Iterable[TopicRoute]) -> list[TopicRoute]:
        """Return the lite topics among all existing topics, and record their number."""
        found = [each for each in topics if lite_topic_of(each.name) is not None]
        self.count, self._is_counted = len(found), True
        return found

    def remove_deleted(self, there: Collection[str]) -> None:
        """Remove the routes of deleted lite topics, whose names are rarely used again."""
        self._cluster.forget_routes(
            lambda name: lite_topic_of(name) is not None and name not in there
        )


EXPIRATION = "lite.topic.expiration"
"""Attribute of a parent topic: minutes without messages after which its lite topics expire.
RocketMQ's name. Missing, or not above 0: never.
"""
MINUTE_MS = 60_000
# Each scan lists all topics: if nothing can expire, only one in this many is made.
SCANS_UNUSED = 10


class Emptiness(NamedTuple):
    """A lite topic that was without messages at a scan."""

    incarnation: int
    """Create revision of the topic."""
    next_offset: int
    since_ms: int
    """Time when the topic was first seen empty, by its broker's clock."""


class Expiry:
    """Closes idle lite topics, and deletes them at a later scan.

        open ──idle──▶ closed (read only) ──still idle──▶ deleted
          ▲              │ a message was in transit, or a producer sends
          └──────────────┘

    Any gateway scans; the state of a lite topic is in its permissions. Acknowledged messages are
    not deleted early:

    1. Only a broker's reply sent after it saw the closing counts: from then on it accepts no
       messages, and none waits there for a sync or for other copies.
    2. The topic is deleted at the revision that was seen: reopening it changes its revision.

    Times are the broker's, never this process's.
    Source of the rule: AbstractLiteLifecycleManager#isLiteTopicExpired.

    Args:
        subscriptions: lite topics that clients of this gateway read do not expire.
        scan_seconds: mean interval of scans.
        ask: reads queues' ends from brokers, like `ask_queue_ends`.

    Attributes:
        scan_seconds: see the argument; may change.
    """

    def __init__(
        self,
        cluster: Cluster,
        lite_topics: LiteTopics,
        subscriptions: LiteSubscriptions,
        scan_seconds: float,
        ask: Callable[..., Awaitable[list[QueueEnds]]] = ask_queue_ends,
    ) -> None:
        self._cluster = cluster
        self._lite_topics = lite_topics
        self._subscriptions = subscriptions
        self._scan_seconds = scan_seconds
        self._interval_changed = asyncio.Event()
        self._ask = ask
        self._empty: dict[str, Emptiness] = {}
        # Whether any lite topic can expire.
        self._is_used = True

    @property
    def scan_seconds(self) -> float:
        return self._scan_seconds

    @scan_seconds.setter
    def scan_seconds(self, seconds: float) -> None:
        if seconds != self._scan_seconds:
            self._scan_seconds = seconds
            self._interval_changed.set()

    async def run(self) -> None:
        """Scan the lite topics until cancelled. Several gateways scan at different times."""
        while True:
            await self._pause()
            try:
                await self.scan()
            except RockoonError as failure:
                log.info("idle lite topics were not scanned: %s; retrying", failure)
            except Exception:
                # The root of a task: it would end the process.
                log.exception("unexpected error while scanning lite topics (bug)")

    async def _pause(self) -> None:
        """Wait until a scan is due. If `scan_seconds` changes, the pause begins again: a pause of
        the former interval may last for days.
        """
        while True:
            self._interval_changed.clear()
            pauses = 1 if self._is_used else SCANS_UNUSED
            try:
                async with asyncio.timeout(pauses * self._scan_seconds * random.uniform(0.8, 1.2)):
                    await self._interval_changed.wait()
            except TimeoutError:
                return

    async def scan(self) -> None:
        """Close, reopen and delete lite topics. Raises RockoonError if no nameserver replies."""
        all_topics = await self._cluster.admin.list_topics(include_system=True)
        found = self._lite_topics.count_lite_topics(all_topics)
        minutes = {each.name: expiration(each) for each in all_topics if is_lite(each)}
        self._is_used = any(minutes.values())
        there = {each.name for each in found}
        self._lite_topics.remove_deleted(there)
        self._empty = {name: each for name, each in self._empty.items() if name in there}
        read = self._subscriptions.read()
        may_expire = [
            (route, limit)
            for route in found
            if len(route.queues) == 1
            and (limit := self._expiration(route, minutes))
            and lite_topic_of(route.name) not in read
        ]
        ends = await self._ask(self._cluster, *(route for route, _ in may_expire))
        of_topic = {each.queue.topic: each for each in ends}
        for route, limit in may_expire:
            try:
                await self._settle(route, of_topic.get(route.name), limit)
            except (TopicNotFound, TopicChanged):
                # Another gateway was faster, or a producer sends.
                continue

    async def _settle(self, route: TopicRoute, ends: QueueEnds | None, minutes: int) -> None:
        if ends is None or ends.state is None:
            # Its broker does not reply.
            return
        admin = self._cluster.admin
        is_idle = await self._is_idle(route, ends, minutes)
        if route.writable:
            if is_idle:
                await admin.update_topic(route.name, permissions=CLOSED)
        elif not is_idle:
            await admin.update_topic(route.name, permissions=OPEN)
        elif not ends.state.writable and ends.route_revision >= route.modified_revision:
            # The revision protects messages that arrived since a producer reopened it.
            await admin.delete_topic(route.name, expected_modified_revision=route.modified_revision)
            log.info("%s has expired: nothing came for %d minutes", route.name, minutes)

    async def _is_idle(self, route: TopicRoute, ends: QueueEnds, minutes: int) -> bool:
        """True if no message arrived for this time, and no group has unread messages."""
        state = ends.state
        assert state is not None
        # A broker without `next_offset` does not report either whether it accepts messages.
        if not state.HasField("next_offset") or state.next_offset != state.max_offset:
            return False
        if state.HasField("last_store_timestamp_ms"):
            self._empty.pop(route.name, None)
            since_ms = state.last_store_timestamp_ms
        else:
            since_ms = self._empty_since_ms(route, state.next_offset, ends.as_of_ms)
        if ends.as_of_ms - since_ms < minutes * MINUTE_MS:
            return False
        progress = await self._cluster.admin.progress(topic=route.name)
        return all(each.offset >= state.max_offset for each in progress)

    def _empty_since_ms(self, route: TopicRoute, next_offset: int, now_ms: int) -> int:
        """Return the time since which a topic is known to be empty. An earlier topic of the same
        name, or one that had messages since, does not count.
        """
        known = self._empty.get(route.name)
        if known is None or known[:2] != (route.incarnation, next_offset):
            known = self._empty[route.name] = Emptiness(route.incarnation, next_offset, now_ms)
        return known.since_ms

    def _expiration(self, route: TopicRoute, minutes: Mapping[str, int]) -> int:
        found = lite_topic_of(route.name)
        # Lite topics of a deleted parent never expire: it may be created again.
        return minutes.get(found[0], 0) if found is not None else 0


def expiration(parent: TopicRoute) -> int:
    """Return the minutes without a message after which a parent's lite topics expire; 0: never."""
    text = parent.attributes.get(EXPIRATION, "")
    return int(text) if text.isascii() and text.isdecimal() else 0
