"""A connection to a cluster: cached routes, channels, calls with the error table's exceptions.

The routes are followed beside (`route_watch`). While no nameserver answers, everything goes on with
the routes last known.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from grpc import RpcError, aio

from rockoon.errors import (
    BrokerUnavailable,
    Closed,
    InvalidArgument,
    NameserverUnavailable,
    OffsetServiceUnavailable,
    RockoonError,
)
from rockoon.net.access import AccessKey
from rockoon.net.addresses import reachable
from rockoon.net.broker_stub import broker_stub
from rockoon.net.calls_in_flight import CallsInFlight, Moved
from rockoon.net.forks import Forkable, watch_forks
from rockoon.net.route_questions import RouteQuestions
from rockoon.net.route_watch import RouteWatch
from rockoon.net.routes import TopicRoute
from rockoon.net.tls import Tls, open_channels
from rockoon.text_checks import check_text
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.failover_order import FailoverOrder
from rockoon_core.nameservers import call_any
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_core.repeated_lines import limited
from rockoon_core.signature import Credentials
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceStub
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub

if TYPE_CHECKING:
    from rockoon.hooks import Hooks
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub
    from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceAsyncStub
    from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceAsyncStub

log = limited(logging.getLogger(__name__))

CALL_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 10.0
RETRY_SECONDS = 30.0
# An offset service that is out of the routes for so long is called where it was. One that is
# restarted is back in them by then; one that only the nameservers do not reach still serves, and
# nobody else could: its progress is on its disk.
UNLISTED_SECONDS = 5.0

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Closable(Forkable, Protocol):
    """A producer or consumer on a connection, which closes it before itself."""

    async def close(self) -> None: ...


class Connection:
    """A connection to a cluster, shared by its producers and consumers.

    Entering it waits for the first routes; leaving it closes what was made with it, last first.

    Raises:
        NameserverUnavailable: on entering, when no nameserver answers in time.
        WrongCluster: on entering, when a nameserver bears another cluster's name.
        TlsFailed: on entering, when one of two sides does not trust the other, or knows no TLS.
        NotAuthenticated: on entering, when a nameserver does not accept the access key, or wants
            one and none is given.
    """

    def __init__(
        self,
        nameservers: Sequence[str],
        *,
        cluster: str | None = None,
        client_id: str | None = None,
        connect_seconds_max: float = CONNECT_SECONDS_MAX,
        retry_seconds: float = RETRY_SECONDS,
        tls: Tls | None = None,
        access: AccessKey | None = None,
        tracing: "Hooks | None" = None,
    ) -> None:
        check_text("client_id", client_id or "")
        if cluster and not (cluster.isascii() and cluster.isprintable()):
            # It is sent in a header.
            raise InvalidArgument(reason=f"cluster {cluster!r} is not printable ASCII")
        self.nameservers = tuple(nameservers)
        self.client_id_is_given = bool(client_id)
        self.client_id = client_id or f"{socket.gethostname()}@{os.getpid()}@{secrets.token_hex(4)}"
        self.metadata: tuple[tuple[str, str], ...] = (
            ((CLUSTER_METADATA_KEY, cluster),) if cluster else ()
        )
        self.hooks = tracing
        self.retry_seconds = retry_seconds
        self._connect_seconds_max = connect_seconds_max
        self._channels = open_channels(tls, access)
        self._watch = RouteWatch(self.nameservers, self._channels, self.metadata)
        self.routes = self._watch.routes
        self.routes_changed = self._watch.changed
        self._tasks = asyncio.TaskGroup()
        self._children: list[Closable] = []
        self._closed = True
        # In a forked child of the process that opened the connection: the error of every call.
        self._refused_in_child: str | None = None
        self._failover = FailoverOrder(self.nameservers)
        # Where the offset service was last, and since when calls have found none in the routes.
        self._last_offset_service: str | None = None
        self._unlisted_from_seconds: float | None = None
        self._questions = RouteQuestions(self._watch, self.call_nameserver)
        self._watch_task: asyncio.Task[None] | None = None
        self._moves_task: asyncio.Task[None] | None = None
        self._in_flight = CallsInFlight()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._closed = False
        watch_forks(self)
        self._watch_task = self._tasks.create_task(self._watch.run(), name="rockoon routes")
        self._moves_task = self._tasks.create_task(self._follow_moves(), name="rockoon moves")
        try:
            async with asyncio.timeout(self._connect_seconds_max):
                await self.routes_changed.wait(0)
        except TimeoutError:
            await self._shut()
            raise self._watch.unreachable() from None
        except BaseException:
            await self._shut()
            raise
        if self._watch.refused is not None:
            await self._shut()
            raise self._watch.refused
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._refused_in_child is not None:
            return  # the parent closes its connection; here no task is left to wait for
        untold: Exception | None = None
        cut: BaseException | None = failure if isinstance(failure, asyncio.CancelledError) else None
        wait_seconds: float | None = None
        while self._children:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._children.pop().close()
            except Exception as error:  # noqa: BLE001 - the others are closed first
                if wait_seconds is None:
                    untold = untold or error
            except BaseException as error:  # noqa: BLE001 - raised by `_shut`
                # Whoever cuts closing short does not wait for what is left; but it is closed, or
                # the tasks of the rest would go on, and so this would wait for ever.
                cut, wait_seconds = error, 0.0
        await self._shut(cut)
        if untold is None:
            return
        if failure is None:
            raise untold
        # What the body raised comes first, and may well be why.
        log.warning("closing after a failure: %s", untold)

    async def _shut(self, cancelled: BaseException | None = None) -> None:
        self._closed = True
        for task in (self._watch_task, self._moves_task):
            if task is not None:
                task.cancel()
        try:
            # A failure of the caller's own is not passed on: it would come back in a group.
            kind = None if cancelled is None else type(cancelled)
            await self._tasks.__aexit__(kind, cancelled, None)
        finally:
            await self._channels.close()

    @property
    def tls(self) -> Tls | None:
        """How servers are called; None when plainly."""
        return self._channels.tls

    @property
    def access(self) -> Credentials | None:
        """What signs the calls; None when they are not signed."""
        return self._channels.access

    @property
    def tasks(self) -> asyncio.TaskGroup:
        """The group that owns the background tasks of everything made with this cluster."""
        self._check_process()
        if self._closed:
            raise Closed(what="the connection to the cluster")
        return self._tasks

    def adopt(self, child: Closable) -> None:
        """Close `child` before this cluster, unless it is released first."""
        self._check_process()
        self._children.append(child)

    def release(self, child: Closable) -> None:
        """Forget a child that has been closed."""
        if child in self._children:
            self._children.remove(child)

    def refuse_in_child(self, reason: str) -> None:
        """As `Forkable.refuse_in_child`, for all producers and consumers on the connection too."""
        self._refused_in_child = reason
        for child in self._children:
            child.refuse_in_child(reason)

    def _check_process(self) -> None:
        if self._refused_in_child is not None:
            raise Closed(self._refused_in_child)

    # Routes

    async def route(
        self, topic: str, min_revision: int = 0, *, retry_seconds: float | None = None
    ) -> TopicRoute:
        """Return a topic's route, true for `min_revision` or later; from the cache if possible.

        Args:
            topic: its name.
            min_revision: a revision that the caller has seen.
            retry_seconds: how long to go on asking while no nameserver can tell; None means as
                long as the connection says.

        Raises:
            TopicNotFound: there is no such topic.
            NameserverUnavailable: it is not in the cache and no nameserver answers.
            RouteNotReached: nameservers answer, but none has reached `min_revision`.
        """
        return await self._questions.route(topic, min_revision, retry_seconds)

    async def learn_routes(self, topics: Collection[str]) -> None:
        """Have the routes of many topics in the cache, by few questions. Of one that does not exist
        there is none afterwards.

        Raises:
            NameserverUnavailable, RouteNotReached: as `route`.
        """
        await self._questions.learn(topics)

    def forget_routes(self, is_forgotten: Callable[[str], bool]) -> None:
        """Follow topics no more that do not exist, and that are not expected to come back.

        Args:
            is_forgotten: says of a topic's name whether it is one of them.
        """
        self._watch.forget(is_forgotten)

    def note_change(self, topic: str, revision: int) -> None:
        """The topic was created, changed or deleted through this connection."""
        self._questions.note_change(topic, revision)

    # Calls

    async def call_nameserver(
        self,
        method_name: str,
        request: Any,
        *,
        retry_seconds: float | None = None,
        timeout_seconds: float = CALL_SECONDS_MAX,
        service: Callable[[aio.Channel], Any] = NameServerStub,
    ) -> Any:
        """Call any nameserver; another one, or again, while the failure is one that can pass.

        A call that changes something may have been done although its answer was lost: where that
        matters, ask in a way that may be repeated (`if_absent`).

        Args:
            method_name: for example "CreateTopic".
            request: its request message.
            retry_seconds: how long to go on trying; None means as long as the connection says.
            timeout_seconds: how long one try may take.
            service: makes the stub; the one of the routes by default.

        Raises:
            RockoonError: the last answer, or NameserverUnavailable.
        """

        def ask(address: str) -> Awaitable[Any]:
            stub = self._channels.stub(address, service)
            return self.call(
                getattr(stub, method_name),
                request,
                unavailable=NameserverUnavailable,
                timeout_seconds=timeout_seconds,
                address=address,
            )

        seconds = self.retry_seconds if retry_seconds is None else retry_seconds
        return await call_any(self._failover, ask, seconds)

    async def call(
        self,
        method: Callable[..., Awaitable[Reply]],
        request: Any,
        *,
        unavailable: type[RockoonError],
        timeout_seconds: float | None = CALL_SECONDS_MAX,
        farewell_seconds: float = 0.0,
        **details: object,
    ) -> Reply:
        """Call once and raise the error table's exceptions.

        Args:
            method: a unary method of a stub.
            request: its request message.
            unavailable: what to raise when the peer itself does not answer, or another process
                stands in its place by now: a broker's, when `details` names one, or the offset
                service's, when this is OffsetServiceUnavailable.
            timeout_seconds: how long it may take, None for ever.
            farewell_seconds: see `CallsInFlight.answer`; for calls that are not to be made twice.
            details: what the sentence of `unavailable` names, for example `broker="broker-a"`.

        Raises:
            RockoonError: what the server answered, `unavailable`, or TimedOut.
        """
        self._check_process()
        broker = details.get("broker")

        def address_now() -> str | None:
            if isinstance(broker, str):
                return self.routes.broker_address(broker)
            if unavailable is OffsetServiceUnavailable:
                service = self.routes.offset_service()
                return service.address or None if service is not None else None
            return None

        metadata = self.metadata
        if self.hooks is not None:
            metadata += self.hooks.call_metadata()

        async def answer() -> Reply:
            begun = method(request, timeout=timeout_seconds, metadata=metadata)
            return await self._in_flight.answer(begun, address_now, farewell_seconds)

        try:
            try:
                return await answer()
            except RpcError as failure:
                error = from_rpc_error(failure, unavailable, **details)
                if not clock_corrected(self._channels.access, error):
                    raise error from None
            try:
                return await answer()
            except RpcError as failure:
                raise from_rpc_error(failure, unavailable, **details) from None
        except Moved:
            raise unavailable(**details) from None
        except aio.UsageError:
            # The channel was closed under the call.
            raise Closed(what="the connection to the cluster") from None

    def followed(self, call: Any, broker: str) -> AbstractContextManager[None]:
        """Cancel a stream to a broker, while this is entered, when another process takes its
        place."""
        return self._in_flight.follow(call, lambda: self.routes.broker_address(broker))

    def broker(self, name: str) -> "BrokerAsyncStub":
        """Return the stub of a live broker.

        Raises:
            BrokerUnavailable: the routes have no broker of this name at the moment.
            NoExternalAddress: it cannot be reached from where this client is.
        """
        stub: BrokerAsyncStub = self._channels.stub(self.broker_address(name), broker_stub)
        return stub

    def broker_address(self, name: str) -> str:
        """Return "host:port" of a live broker; errors as `broker`."""
        node = self.routes.broker(name)
        if node is None:
            raise BrokerUnavailable(broker=name)
        return reachable(node)

    async def wait_broker(self, name: str, wait_seconds: float) -> "BrokerAsyncStub":
        """Return the stub of a broker, waiting for it to come back if it is away.

        Raises:
            BrokerUnavailable: it did not within `wait_seconds`.
        """
        return await self._wait_node(lambda: self.broker(name), wait_seconds)

    def offset_service(self) -> "OffsetServiceAsyncStub":
        """Return the stub of the offset service: of the last one, if there is none for long.

        Raises:
            OffsetServiceUnavailable: it has left the routes within the last UNLISTED_SECONDS, or
                they never had one.
            NoExternalAddress: it cannot be reached from where this client is.
        """
        return self._offset_stub(self._offset_address())

    def in_flight_service(self) -> "InFlightServiceAsyncStub":
        """Likewise, the stub for consumption message by message."""
        stub: InFlightServiceAsyncStub = self._channels.stub(
            self._offset_address(), InFlightServiceStub
        )
        return stub

    def _offset_address(self) -> str:
        try:
            return self._listed_offset_address()
        except OffsetServiceUnavailable:
            now_seconds = asyncio.get_running_loop().time()
            if self._unlisted_from_seconds is None:
                self._unlisted_from_seconds = now_seconds
            is_long = now_seconds - self._unlisted_from_seconds >= UNLISTED_SECONDS
            if self._last_offset_service is None or not is_long:
                raise
            return self._last_offset_service

    def _listed_offset_address(self) -> str:
        node = self.routes.offset_service()
        if node is None:
            raise OffsetServiceUnavailable
        self._last_offset_service = reachable(node)
        self._unlisted_from_seconds = None
        return self._last_offset_service

    def _offset_stub(self, address: str) -> "OffsetServiceAsyncStub":
        stub: OffsetServiceAsyncStub = self._channels.stub(address, OffsetServiceStub)
        return stub

    async def wait_offset_service(self, wait_seconds: float) -> "OffsetServiceAsyncStub":
        """Return the stub of the offset service, waiting for it to come back if it is away.

        Raises:
            OffsetServiceUnavailable: it did not within `wait_seconds`.
        """
        try:
            address = await self._wait_node(self._listed_offset_address, wait_seconds)
        except OffsetServiceUnavailable:
            return self.offset_service()
        return self._offset_stub(address)

    async def pause_for_broker(self, name: str, seconds: float) -> None:
        """Wait before a broker is asked again: less than `seconds` if it comes back meanwhile, or
        another process, such as a log's next leader, stands for it."""
        node = self.routes.broker(name)
        if node is not None:
            await self._pause_while(lambda: self.routes.broker(name) == node, seconds)
            return
        with suppress(BrokerUnavailable):
            await self.wait_broker(name, seconds)

    async def pause_for_offset_service(self, seconds: float) -> None:
        """Likewise, before the offset service is."""
        node = self.routes.offset_service()
        if node is not None:
            await self._pause_while(lambda: self.routes.offset_service() == node, seconds)
            return
        with suppress(OffsetServiceUnavailable):
            await self._wait_node(self._listed_offset_address, seconds)

    async def _follow_moves(self) -> None:
        seen = -1
        while True:
            seen = await self.routes_changed.wait(seen)
            self._in_flight.look()

    async def _pause_while(self, is_same: Callable[[], bool], seconds: float) -> None:
        # Another address, or another process there: what failed before says nothing about it.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    seen = self.routes_changed.count
                    if not is_same():
                        return
                    await self.routes_changed.wait(seen)

    async def _wait_node(self, find: Callable[[], Reply], wait_seconds: float) -> Reply:
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while True:
            seen = self.routes_changed.count
            try:
                return find()
            except RockoonError as error:
                if not error.retriable:
                    raise
                absent = error
            try:
                async with asyncio.timeout_at(deadline):
                    await self.routes_changed.wait(seen)
            except TimeoutError:
                raise absent from None
