"""Expiry of lite topics that nobody sends to: closed at one look, deleted at a later one.

    open ──idle──▶ closed (read only) ──still idle──▶ deleted
      ▲              │ a message had been on its way, or somebody sends
      └──────────────┘

Any gateway looks; what a lite topic has come to is in its permissions. A broker says when the last
message came only after it has heard that the topic is closed, and takes none from then on: what
was acknowledged is not deleted before its time.
Source of the rule: AbstractLiteLifecycleManager#isLiteTopicExpired.
"""

import asyncio
import logging
import random
from collections.abc import Mapping

from rockoon import Cluster
from rockoon.admin.descriptions import QueueEnds
from rockoon.admin.queue_ends import ask_queue_ends
from rockoon.errors import RockoonError, TopicNotFound
from rockoon.net.routes import TopicRoute
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_format.names import lite_topic_of
from rockoon_gateway.lite.lite_topics import CLOSED, OPEN, LiteTopics, is_lite
from rockoon_gateway.lite.subscriptions import LiteSubscriptions

log = logging.getLogger(__name__)

EXPIRATION = "lite.topic.expiration"
"""Attribute of a parent, minutes; RocketMQ's name for it. Not above 0, or none: never."""
MINUTE_MS = 60_000


class Expiry:
    """Looks at all lite topics now and then.

    Args:
        cluster: the connection.
        lite_topics: which there are.
        subscriptions: what clients of this gateway read does not expire.
        look_seconds: from one look to the next, about.
        clock: epoch milliseconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        lite_topics: LiteTopics,
        subscriptions: LiteSubscriptions,
        look_seconds: float,
        clock: Clock = wall_clock_ms,
    ) -> None:
        self._cluster = cluster
        self._lite_topics = lite_topics
        self._subscriptions = subscriptions
        self._look_seconds = look_seconds
        self._clock = clock
        # When those without any message were seen first.
        self._empty_since_ms: dict[str, int] = {}

    async def run(self) -> None:
        """Look, until cancelled. Several gateways look at different times."""
        while True:
            await asyncio.sleep(self._look_seconds * random.uniform(0.8, 1.2))
            try:
                await self.look()
            except RockoonError as failure:
                log.info("lite topics that are idle are looked for later: %s", failure)

    async def look(self) -> None:
        """Close, open and delete what is to be.

        Raises:
            RockoonError: nobody can tell.
        """
        all_topics = await self._cluster.admin.list_topics(include_system=True)
        found = self._lite_topics.noted(all_topics)
        self._lite_topics.forget_deleted(found)
        minutes = {each.name: expiration(each) for each in all_topics if is_lite(each)}
        self._empty_since_ms = {
            name: since
            for name, since in self._empty_since_ms.items()
            if name in {each.name for each in found}
        }
        may_expire = [
            (route, limit)
            for route in found
            if (limit := self._expiration(route, minutes)) and not self._is_subscribed(route)
        ]
        ends = await ask_queue_ends(self._cluster, *(route for route, _ in may_expire))
        of_topic = {each.queue.topic: each for each in ends}
        for route, limit in may_expire:
            try:
                await self._settle(route, of_topic.get(route.name), limit)
            except TopicNotFound:
                # Another gateway was first.
                continue

    async def _settle(self, route: TopicRoute, ends: QueueEnds | None, minutes: int) -> None:
        admin = self._cluster.admin
        is_idle = ends is not None and await self._is_idle(ends, minutes)
        if route.writable and is_idle:
            await admin.update_topic(route.name, permissions=CLOSED)
        elif not route.writable and is_idle:
            await admin.delete_topic(route.name)
            log.info("%s has expired: nothing came for %d minutes", route.name, minutes)
        elif not route.writable:
            await admin.update_topic(route.name, permissions=OPEN)

    async def _is_idle(self, ends: QueueEnds, minutes: int) -> bool:
        """Whether nothing came for so long, and nobody who reads it has something left."""
        if ends.state is None:
            return False
        topic, state = ends.queue.topic, ends.state
        now_ms = self._clock()
        if state.HasField("last_store_timestamp_ms"):
            since_ms = state.last_store_timestamp_ms
        else:
            since_ms = self._empty_since_ms.setdefault(topic, now_ms)
        if now_ms - since_ms < minutes * MINUTE_MS:
            return False
        progress = await self._cluster.admin.progress(topic=topic)
        return all(each.offset >= state.max_offset for each in progress)

    def _expiration(self, route: TopicRoute, minutes: Mapping[str, int]) -> int:
        found = lite_topic_of(route.name)
        # Of a parent that was deleted they never expire: it may be made again.
        return minutes.get(found[0], 0) if found is not None else 0

    def _is_subscribed(self, route: TopicRoute) -> bool:
        found = lite_topic_of(route.name)
        return found is not None and self._subscriptions.has_reader(*found)


def expiration(parent: TopicRoute) -> int:
    """After how many minutes without a message a parent's lite topics expire; 0: never."""
    text = parent.attributes.get(EXPIRATION, "")
    return int(text) if text.isascii() and text.isdecimal() else 0
