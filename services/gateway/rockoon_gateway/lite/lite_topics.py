"""Lite topics as stored by the cluster: topics of one queue, created on first use.

    parent "chat", lite topic "session-7"   ->   topic %LITE%chat|session-7, one queue

The name's hash selects one of the parent's brokers, so the lite topics of a parent are spread. A
lite topic that expires is closed first and deleted later (see `Expiry`): a send to a closed one
reopens it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice
from zlib import crc32

from rockoon import Cluster
from rockoon.admin.reads import get_topic
from rockoon.errors import InvalidTopicName, TopicNotFound
from rockoon.net.routes import PERMISSION_READ, PERMISSION_WRITE, TopicRoute
from rockoon_format.names import lite_topic_of, stored_lite_topic, topic_fault
from rockoon_format.topic_attributes import MESSAGE_TYPE
from rockoon_gateway.codes import Refusal
from rockoon_gateway.routes import live_queues
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, MessageType

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
        cluster: the connection.
        count_max: limit for all parents together.
    """

    def __init__(self, cluster: Cluster, count_max: int) -> None:
        self._cluster = cluster
        self._count_max = count_max
        self._creating = asyncio.Lock()
        self._is_counted = False
        self.count = 0

    """Number of lite topics at the last scan, plus those created by this gateway since."""

    def known(self, parent: str, lite_topic: str) -> TopicRoute | None:
        """Return the cached route of a lite topic."""
        return self._cluster.routes.topic(stored_lite_topic(parent, lite_topic))

    async def provide(
        self, parent: TopicRoute, lite_topics: Collection[str], *, to_send: bool = True
    ) -> None:
        """Create missing lite topics, and cache the routes of all lite topics in a request.

        Args:
            parent: their parent's route.
            lite_topics: names, checked.
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
        """Reopen a lite topic that has just refused a message: it was about to expire.

        Raises:
            Refusal, RockoonError: see `provide`.
        """
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
            self._cluster.note_change(name, now.modified_revision)
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
        most = self._count_max if to_send else self._count_max // 2
        if not self._is_counted or self.count + len(lite_topics) > most:
            self.count_lite_topics(await self._cluster.admin.list_topics(include_system=True))
        if self.count + len(lite_topics) > most:
            raise Refusal(
                Code.LITE_TOPIC_QUOTA_EXCEEDED,
                f"there are {self.count} lite topics, and lite_topics_max is {self._count_max}, "
                "half of it for subscriptions",
            )
        queues = live_queues(self._cluster, parent)
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
