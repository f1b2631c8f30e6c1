"""Route requests for topics that the cache does not have; one request per topic at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from rockoon.errors import InvalidTopicName, TopicNotFound
from rockoon.net.route_watch import RouteWatch
from rockoon.net.routes import TopicRoute
from rockoon_core.valid_text import text_fault
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest

# A nameserver answers from memory, and waits at most five seconds for a revision to arrive. If it
# does not answer for longer, the next one is called: its host may have vanished.
ROUTE_SECONDS_MAX = 6.0
TOPICS_PER_CALL_MAX = 1000
CHANGES_MAX = 1000


class RouteRequests:
    """Requests routes from nameservers and adds their topics to the watch.

    Args:
        watch: the watch with the cache.
        call: `Connection.call_nameserver`.
    """

    def __init__(self, watch: RouteWatch, call: Callable[..., Awaitable[Any]]) -> None:
        self._watch = watch
        self._routes = watch.routes
        self._call = call
        # Topics changed through this connection and not requested since → revision of the change.
        self._changed_at: dict[str, int] = {}
        # Prevents parallel requests for one topic.
        self._asking = asyncio.Lock()

    async def route(self, topic: str, min_revision: int, retry_seconds: float | None) -> TopicRoute:
        """Return one topic's route; see `Connection.route`."""
        if fault := text_fault(topic):
            raise InvalidTopicName(topic=topic, reason=fault)
        # This connection must see its own changes at every nameserver.
        min_revision = max(min_revision, self._changed_at.pop(topic, 0))
        route = self._cached(topic, min_revision)
        if route is not None:
            return route
        async with self._asking:
            route = self._cached(topic, min_revision)
            if route is not None:
                return route
            await self._ask([topic], min_revision, retry_seconds)
            found = self._routes.topic(topic)
            if found is None:
                raise TopicNotFound(topic=topic)
            return found

    async def learn(self, topics: Collection[str]) -> None:
        """Load the routes of many topics; see `Connection.learn_routes`."""
        for topic in topics:
            if fault := text_fault(topic):
                raise InvalidTopicName(topic=topic, reason=fault)
        async with self._asking:
            unknown = {
                each: changed_at
                for each in topics
                if self._cached(each, changed_at := self._changed_at.pop(each, 0)) is None
            }
            names = list(unknown)
            for at in range(0, len(names), TOPICS_PER_CALL_MAX):
                some = names[at : at + TOPICS_PER_CALL_MAX]
                await self._ask(some, max(unknown[each] for each in some), None)

    def note_change(self, topic: str, revision: int) -> None:
        """Record that a topic was created, changed or deleted through this connection."""
        self._changed_at[topic] = revision
        if len(self._changed_at) > CHANGES_MAX:
            del self._changed_at[next(iter(self._changed_at))]

    async def _ask(
        self, topics: Collection[str], min_revision: int, retry_seconds: float | None
    ) -> None:
        request = GetRouteRequest(
            topics=topics, min_revision=max(min_revision, self._routes.revision)
        )
        update = await self._call(
            "GetRoute", request, retry_seconds=retry_seconds, timeout_seconds=ROUTE_SECONDS_MAX
        )
        if self._routes.learn(update, topics):
            self._watch.changed.note()
        self._watch.follow(*(each for each in topics if self._routes.topic(each) is not None))

    def _cached(self, topic: str, min_revision: int) -> TopicRoute | None:
        if self._watch.follows(topic) and self._routes.topic_revision(topic) >= min_revision:
            return self._routes.topic(topic)
        return None
