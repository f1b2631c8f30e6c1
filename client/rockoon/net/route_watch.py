"""Watch of the routes of the topics in use.

The watch is one WatchRoutes stream to any nameserver. After a failure it is resumed at the last
revision, also at another nameserver. While no nameserver answers, the routes do not change.

The routes of topics that the cache does not have are requested, one request per topic at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

from grpc import RpcError, StatusCode, aio

from rockoon.errors import (
    InvalidArgument,
    InvalidTopicName,
    NameserverUnavailable,
    NotAuthenticated,
    RockoonError,
    TlsFailed,
    TopicNotFound,
    WrongCluster,
)
from rockoon.net.routes import Routes, TopicRoute
from rockoon.net.tls import TlsTroubles, why_no_tls
from rockoon_core.changes import Changes
from rockoon_core.channels import Channels
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.nameservers import WatchRotation
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import text_fault
from rockoon_format.names import DEFAULT_TOPIC
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest, WatchRoutesRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub


log = limited(logging.getLogger(__name__))

# An empty list would select all topics. This name is reserved by RocketMQ and cannot be created
# here, so a watch on it delivers only the nodes.
_NO_TOPIC = DEFAULT_TOPIC


class RouteWatch:
    """Route cache of one connection, kept up to date by a WatchRoutes stream.

    Args:
        nameservers: "host:port" of each.

    Attributes:
        routes: the cached routes.
        changed: incremented when the routes change, and once when `refused` is set.
        refused: permanent error of all nameservers; only set before the first reply.
    """

    def __init__(
        self,
        nameservers: tuple[str, ...],
        channels: Channels,
        metadata: tuple[tuple[str, str], ...],
    ) -> None:
        self.routes = Routes()
        self.changed = Changes()
        self.refused: RockoonError | None = None
        self._nameservers = nameservers
        self._channels = channels
        self._metadata = metadata
        self._followed: set[str] = {_NO_TOPIC}
        self._call: aio.UnaryStreamCall[Any, Any] | None = None
        self._rotation = WatchRotation(nameservers)
        self._tls_troubles = TlsTroubles()
        self._not_nameservers: set[str] = set()

    def follows(self, topic: str) -> bool:
        """Return whether the watch includes a topic."""
        return topic in self._followed

    def follow(self, *topics: str) -> None:
        """Add topics to the watch, from the cached revision on."""
        if not self._followed.issuperset(topics):
            self._followed.update(topics)
            if self._call is not None:
                self._call.cancel()

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Remove topics that do not exist from the watch."""
        absent = {each for each in self._followed if is_forgotten(each)}
        absent = {each for each in absent if self.routes.topic(each) is None and each != _NO_TOPIC}
        # The current call still includes them; the next one will not.
        self._followed -= absent
        for each in absent:
            self.routes.drop(each)

    def unreachable(self) -> RockoonError:
        """Return the error for a connection that no nameserver has answered."""
        if self._tls_troubles.first is None:
            return NameserverUnavailable(address=", ".join(self._nameservers))
        address, reason = self._tls_troubles.first
        return TlsFailed(address=address, reason=reason)

    async def run(self) -> None:
        """Watch the routes until cancelled."""
        is_repeated = False
        while True:
            address = self._rotation.address
            try:
                if await self._watch_at(address):
                    continue
                log.debug("nameserver %s ended the route watch; connecting again", address)
            except RpcError as failure:
                error = from_rpc_error(failure, NameserverUnavailable, address=address)
                if not is_repeated and may_sign_again(self._channels.access, error):
                    is_repeated = True
                    continue
                if not self.changed.count:
                    self._record_refusal(address, failure, error)
                log.debug("route watch at %s failed: %s; trying another nameserver", address, error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # `follow` has cancelled the call to add a topic.
                continue
            finally:
                self._call = None
            is_repeated = False
            await asyncio.sleep(self._rotation.failed())

    def _record_refusal(self, address: str, failure: RpcError, error: RockoonError) -> None:
        """Set `refused` if the nameservers' error is permanent, so that retries are useless."""
        now_seconds = asyncio.get_running_loop().time()
        self._tls_troubles.record(address, why_no_tls(failure, self._channels.tls), now_seconds)
        if isinstance(error, WrongCluster | NotAuthenticated):
            self.refused = error
        elif failure.code() is StatusCode.UNIMPLEMENTED:
            self._not_nameservers.add(address)
            if self._not_nameservers.issuperset(self._nameservers):
                self.refused = InvalidArgument(
                    reason=f"{', '.join(self._nameservers)} answers, but is not a nameserver: use "
                    "the address of a nameserver (port 9876 by default), not of another service"
                )
        elif self._tls_troubles.lasting(self._nameservers, now_seconds):
            self.refused = self.unreachable()
        if self.refused is not None:
            self.changed.notify()

    async def _watch_at(self, address: str) -> bool:
        """Watch the routes at one nameserver; return True if a snapshot is needed."""
        topics = frozenset(self._followed)
        request = WatchRoutesRequest(
            topics=sorted(topics),
            after_revision=self.routes.revision,
            history=self.routes.history,
        )
        stub: NameServerAsyncStub = NameServerStub(self._channels.get(address))
        call = stub.WatchRoutes(request, metadata=self._metadata)
        self._call = call
        try:
            async for update in call:
                self._rotation.answered()
                self._channels.learn(update.nodes)
                is_first = not self.changed.count
                if self.routes.apply(update, topics) or is_first:
                    self.changed.notify()
                if not self.routes.revision:
                    # etcd was replaced by another one.
                    return True
            return False
        finally:
            call.cancel()


# A nameserver answers from memory, and waits at most five seconds for a revision to arrive. If it
# does not answer for longer, the next one is called: its host may have vanished.
ROUTE_SECONDS_MAX = 6.0
TOPICS_PER_CALL_MAX = 1000
CHANGES_MAX = 1000


class RouteRequests:
    """Requests routes from nameservers and adds their topics to the watch. `call`:
    `Connection.call_nameserver`."""

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

    def record_change(self, topic: str, revision: int) -> None:
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
            self._watch.changed.notify()
        self._watch.follow(*(each for each in topics if self._routes.topic(each) is not None))

    def _cached(self, topic: str, min_revision: int) -> TopicRoute | None:
        if self._watch.follows(topic) and self._routes.topic_revision(topic) >= min_revision:
            return self._routes.topic(topic)
        return None
