"""Expiry of idle lite topics: closed by one scan, deleted by a later one.

    open ──idle──▶ closed (read only) ──still idle──▶ deleted
      ▲              │ a message was in transit, or a producer sends
      └──────────────┘

Any gateway scans; the state of a lite topic is in its permissions. Acknowledged messages are not
deleted early:

1. Only a broker's reply sent after it saw the closing counts: from then on it accepts no messages,
   and none waits there for a sync or for other copies.
2. The topic is deleted at the revision that was seen: reopening it changes its revision.

Times are the broker's, never this process's.
Source of the rule: AbstractLiteLifecycleManager#isLiteTopicExpired.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from rockoon import Cluster
from rockoon.admin.descriptions import QueueEnds
from rockoon.admin.queue_ends import ask_queue_ends
from rockoon.errors import RockoonError, TopicChanged, TopicNotFound
from rockoon.net.routes import TopicRoute
from rockoon_format.names import lite_topic_of
from rockoon_gateway.lite.lite_topics import CLOSED, OPEN, LiteTopics, is_lite
from rockoon_gateway.lite.subscriptions import LiteSubscriptions

log = logging.getLogger(__name__)

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
    """Closes and deletes idle lite topics: scans all lite topics periodically.

    Args:
        cluster: the connection.
        lite_topics: finds lite topics.
        subscriptions: lite topics that clients of this gateway read do not expire.
        scan_seconds: mean interval of scans.
        ask: reads queues' ends from brokers, like `ask_queue_ends`.
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
        self._ask = ask
        self._empty: dict[str, Emptiness] = {}
        # Whether any lite topic can expire.
        self._is_used = True

    async def run(self) -> None:
        """Scan the lite topics until cancelled. Several gateways scan at different times."""
        while True:
            pauses = 1 if self._is_used else SCANS_UNUSED
            await asyncio.sleep(pauses * self._scan_seconds * random.uniform(0.8, 1.2))
            try:
                await self.scan()
            except RockoonError as failure:
                log.info("idle lite topics were not scanned: %s; retrying", failure)
            except Exception:
                # The root of a task: it would end the process.
                log.exception("unexpected error while scanning lite topics (bug)")

    async def scan(self) -> None:
        """Close, reopen and delete lite topics as needed.

        Raises:
            RockoonError: no nameserver replied.
        """
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
