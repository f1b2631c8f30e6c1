"""Lite topics as the cluster keeps them: topics of one queue, made when they are first named.

    parent "chat", lite topic "session-7"   ->   topic %LITE%chat|session-7, one queue

Its broker is one of the parent's, by the name's hash, so the lite topics of a parent are spread. A
lite topic that expires is closed first and deleted later (see `Expiry`): who sends to one that is
closed opens it again.
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
# As many as a connection remembers to have changed.
MADE_TOGETHER_MAX = 500


def is_lite(route: TopicRoute) -> bool:
    """Whether a topic is a parent of lite topics."""
    return route.attributes.get(MESSAGE_TYPE, "").upper() == LITE


class LiteTopics:
    """Makes and finds them.

    Args:
        cluster: the connection.
        count_max: of all parents together.
    """

    def __init__(self, cluster: Cluster, count_max: int) -> None:
        self._cluster = cluster
        self._count_max = count_max
        self._making = asyncio.Lock()
        self._is_counted = False
        self.count = 0
        """How many there are, as of the last look and what was made here since."""

    def known(self, parent: str, lite_topic: str) -> TopicRoute | None:
        """Its route, from memory."""
        return self._cluster.routes.topic(stored_lite_topic(parent, lite_topic))

    async def provide(
        self, parent: TopicRoute, lite_topics: Collection[str], *, to_send: bool = True
    ) -> None:
        """Have lite topics exist, with their routes in the cache.

        Args:
            parent: their parent's route.
            lite_topics: names, checked.
            to_send: have them open, too. Who reads leaves one that is about to expire as it is, or
                gateways would open and close it in turns.

        Raises:
            Refusal: LITE_TOPIC_QUOTA_EXCEEDED, or ILLEGAL_LITE_TOPIC with its parent's name.
            RockoonError: the nameservers cannot tell, or make none.
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
            async with self._making:
                await self._provide(parent, some, to_send=to_send)

    async def open_again(self, parent: TopicRoute, lite_topic: str) -> None:
        """Have a lite topic take messages that has just refused one: it was about to expire.

        Raises:
            Refusal, RockoonError: as `provide`.
        """
        async with self._making:
            await self._open_again(parent, lite_topic)

    async def _open_again(self, parent: TopicRoute, lite_topic: str) -> None:
        name = stored_lite_topic(parent.name, lite_topic)
        # As nameservers have it: what this connection has heard may be of before.
        now = await get_topic(self._cluster, name)
        if now is not None and not now.writable:
            try:
                now = await self._cluster.admin.update_topic(name, permissions=OPEN)
            except TopicNotFound:
                now = None
        if now is None:
            await self._make(parent, [lite_topic], to_send=True)
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
            await self._make(parent, absent, to_send=to_send)
            await self._cluster.learn_routes(names)
        for each in lite_topics if to_send else ():
            if not self._is_open(parent.name, each):
                await self._open_again(parent, each)

    async def _make(self, parent: TopicRoute, lite_topics: list[str], *, to_send: bool) -> None:
        # Who may only read must not use up what others need to send.
        most = self._count_max if to_send else self._count_max // 2
        if not self._is_counted or self.count + len(lite_topics) > most:
            self.noted(await self._cluster.admin.list_topics(include_system=True))
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

    def noted(self, topics: Iterable[TopicRoute]) -> list[TopicRoute]:
        """Lite topics among all topics that there are, whose count is noted."""
        found = [each for each in topics if lite_topic_of(each.name) is not None]
        self.count, self._is_counted = len(found), True
        return found

    def forget_deleted(self, there: Collection[str]) -> None:
        """Follow those no more that there are no more: names of lite topics come only once."""
        self._cluster.forget_routes(
            lambda name: lite_topic_of(name) is not None and name not in there
        )
