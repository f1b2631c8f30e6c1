"""Connection to a cluster: cached routes, channels, and calls that raise the error table's classes.

`route_watch` keeps the routes up to date. While no nameserver answers, the last routes are used.

A call that is pending at a process which, according to the routes, has been replaced by another one
is cancelled. A machine that has vanished does not answer: a long poll there would wait for its
whole timeout, although the log's next leader has the messages.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from grpc import RpcError, aio

from rockoon.bounds import check_text
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
from rockoon.net.forks import Forkable, watch_forks
from rockoon.net.large_replies import append_reply, pull_stream_reply
from rockoon.net.route_watch import RouteRequests, RouteWatch
from rockoon.net.routes import TopicRoute
from rockoon.net.tls import Tls, open_channels
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.nameservers import FailoverOrder, call_any
from rockoon_core.protocol import AGENT_METADATA_KEY, CLUSTER_METADATA_KEY
from rockoon_core.repeated_lines import limited
from rockoon_core.signature import Credentials
from rockoon_proto.v1.broker_pb2 import Agent as AgentOnWire
from rockoon_proto.v1.broker_pb2 import PullStreamRequest
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceStub
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub

if TYPE_CHECKING:
    from rockoon.hooks import Hooks
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub
    from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceAsyncStub
    from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceAsyncStub

Reply = TypeVar("Reply")
# Current address of the service; None if the routes have none, which does not mean that it moved.
AddressNow = Callable[[], str | None]


LANGUAGE = "PYTHON"
AGENT_TEXT_BYTES_MAX = 255


class Agent(NamedTuple):
    """Language and version of a program's SDK, as services show them to operators. Both are empty
    for a gateway, whose clients have SDKs of their own. `gateway`: its name; empty for other
    programs."""

    client_id: str
    gateway: str = ""

    @property
    def language(self) -> str:
        return "" if self.gateway else LANGUAGE

    @property
    def version(self) -> str:
        return "" if self.gateway else sdk_version()

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Return the metadata of a call whose broker shows the program."""
        agent = AgentOnWire(
            client_id=cut(self.client_id),
            language=self.language,
            version=self.version,
            gateway=cut(self.gateway),
        )
        return ((AGENT_METADATA_KEY, agent.SerializeToString()),)


@cache
def sdk_version() -> str:
    """Return the version of the package; empty if the package is not installed."""
    # Imported here: commands that only administer a cluster do not need it.
    from importlib import metadata

    try:
        return cut(metadata.version("rockoon"))
    except metadata.PackageNotFoundError:
        return ""


def cut(text: str) -> str:
    return text.encode()[:AGENT_TEXT_BYTES_MAX].decode(errors="ignore")


class Moved(Exception):
    """Raised if another process has replaced the peer of a call; the call may have been
    executed."""


class CallsInFlight:
    """The calls of a connection that have no reply yet. Used only by the event loop's thread."""

    def __init__(self) -> None:
        # Call → function for the current address, address of the call, and its farewell time.
        self._calls: dict[Any, tuple[AddressNow, str, float]] = {}
        self._moved: set[Any] = set()

    async def answer(
        self, call: Awaitable[Reply], address_now: AddressNow, farewell_seconds: float = 0.0
    ) -> Reply:
        """Return the reply to a call that was just started.

        Args:
            address_now: returns the current address of the called service.
            farewell_seconds: how long to wait for the reply after the service has moved. A leader
                that hands over has answered by then, but the new routes may arrive first.

        Raises:
            Moved: another process has replaced the peer.
            RpcError: as the call.
        """
        if not hasattr(call, "cancel"):
            return await call
        with self.follow(call, address_now, farewell_seconds):
            try:
                return await call
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if call in self._moved and task is not None and not task.cancelling():
                    raise Moved from None
                raise

    @contextmanager
    def follow(
        self, call: Any, address_now: AddressNow, farewell_seconds: float = 0.0
    ) -> Iterator[None]:
        """Cancel a call that was just started as soon as its service moves; arguments as in
        `answer`."""
        address = address_now()
        if address is None:
            yield
            return
        self._calls[call] = address_now, address, farewell_seconds
        try:
            yield
        finally:
            del self._calls[call]
            self._moved.discard(call)

    def cancel_moved(self) -> None:
        """Cancel the calls to services that have moved; called after a change of the routes."""
        for call, (address_now, address, farewell_seconds) in list(self._calls.items()):
            if call not in self._moved and address_now() not in (None, address):
                self._moved.add(call)
                if farewell_seconds:
                    asyncio.get_running_loop().call_later(farewell_seconds, self._end, call)
                else:
                    call.cancel()

    def _end(self, call: Any) -> None:
        if call in self._moved:
            call.cancel()


log = limited(logging.getLogger(__name__))

CALL_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 10.0
RETRY_SECONDS = 30.0
# After the offset service has been out of the routes for this long, its last address is called. A
# restarted service is back in the routes by then. A service that only the nameservers cannot reach
# still works, and no other one could replace it, because the progress is on its disk.
UNLISTED_SECONDS = 5.0

Request = TypeVar("Request")
_SERVICE = "/rockoon.v1.Broker/"


def broker_stub(channel: Any) -> BrokerStub:
    """Return a broker stub whose AppendStream sends bytes and yields `Answers`, and whose
    PullStream yields `Replies`."""
    stub: BrokerStub = BrokerStub(channel)
    stub.AppendStream = channel.stream_stream(f"{_SERVICE}AppendStream", None, append_reply)
    stub.PullStream = channel.stream_stream(
        f"{_SERVICE}PullStream", PullStreamRequest.SerializeToString, pull_stream_reply
    )
    return stub


class Closable(Forkable, Protocol):
    """Interface of a producer or consumer: its connection closes it before the connection
    closes."""

    async def close(self) -> None: ...


class Connection:
    """A connection to a cluster, shared by its producers and consumers.

    On enter it waits for the first routes. On exit it closes its producers and consumers, in
    reverse order of creation.

    Raises:
        NameserverUnavailable: on enter, if no nameserver answers in time.
        WrongCluster: on enter, if a nameserver belongs to a cluster of another name.
        TlsFailed: on enter, if client or server does not trust the other, or only one uses TLS.
        NotAuthenticated: on enter, if a nameserver refuses the access key, or requires one.
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
            # The name is sent in a header.
            raise InvalidArgument(reason=f"cluster {cluster!r} is not printable ASCII")
        self.nameservers = tuple(nameservers)
        self.client_id_is_given = bool(client_id)
        self.client_id = client_id or f"{socket.gethostname()}@{os.getpid()}@{secrets.token_hex(4)}"
        self.metadata: tuple[tuple[str, str], ...] = (
            ((CLUSTER_METADATA_KEY, cluster),) if cluster else ()
        )
        self.agent = Agent(self.client_id)
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
        # Set in a forked child of the process that opened the connection: the error of every call.
        self._refused_in_child: str | None = None
        self._failover = FailoverOrder(self.nameservers)
        # The last address of the offset service, and when a call first found none in the routes.
        self._last_offset_service: str | None = None
        self._unlisted_from_seconds: float | None = None
        self._route_requests = RouteRequests(self._watch, self.call_nameserver)
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
            return  # the parent closes its connection; a child has no task to wait for
        close_error: Exception | None = None
        cancelled_by: BaseException | None = (
            failure if isinstance(failure, asyncio.CancelledError) else None
        )
        wait_seconds: float | None = None
        while self._children:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._children.pop().close()
            except Exception as error:  # noqa: BLE001 - raised below, after the others are closed
                if wait_seconds is None:
                    close_error = close_error or error
            except BaseException as error:  # noqa: BLE001 - raised by `_shut`
                # A caller that cancels the exit does not wait for the rest. They are closed
                # nevertheless: otherwise their tasks would run on, and `_shut` would never return.
                cancelled_by, wait_seconds = error, 0.0
        await self._shut(cancelled_by)
        if close_error is None:
            return
        if failure is None:
            raise close_error
        # The body's exception is raised instead; it may be the cause of this failure.
        log.warning("closing failed after an exception of the with block: %s", close_error)

    async def _shut(self, cancelled: BaseException | None = None) -> None:
        self._closed = True
        for task in (self._watch_task, self._moves_task):
            if task is not None:
                task.cancel()
        try:
            # The body's exception is not passed to the task group, which would wrap it in a group.
            kind = None if cancelled is None else type(cancelled)
            await self._tasks.__aexit__(kind, cancelled, None)
        finally:
            await self._channels.close()

    @property
    def tls(self) -> Tls | None:
        """TLS configuration; None for plain connections."""
        return self._channels.tls

    @property
    def access(self) -> Credentials | None:
        """Credentials that sign the calls; None for unsigned calls."""
        return self._channels.access

    @property
    def tasks(self) -> asyncio.TaskGroup:
        """The task group of all background tasks on this connection."""
        self._check_process()
        if self._closed:
            raise Closed(what="the connection to the cluster")
        return self._tasks

    def adopt(self, child: Closable) -> None:
        """Register `child`, which is closed before the connection unless it is released."""
        self._check_process()
        self._children.append(child)

    def release(self, child: Closable) -> None:
        """Remove a child that has been closed."""
        if child in self._children:
            self._children.remove(child)

    def refuse_in_child(self, reason: str) -> None:
        """Call `Forkable.refuse_in_child`, also of all producers and consumers."""
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
        """Return a topic's route, at `min_revision` or later; from the cache if possible.

        Args:
            min_revision: a revision that the caller has seen.
            retry_seconds: how long to retry while no nameserver answers, in seconds; None means
                the connection's `retry_seconds`.

        Raises:
            TopicNotFound: the topic does not exist.
            NameserverUnavailable: the route is not cached and no nameserver answers.
            RouteNotReached: nameservers answer, but none has reached `min_revision`.
        """
        return await self._route_requests.route(topic, min_revision, retry_seconds)

    async def learn_routes(self, topics: Collection[str]) -> None:
        """Load the routes of many topics into the cache with few calls. Topics that do not exist
        have no route in the cache. Raises NameserverUnavailable, RouteNotReached: as `route`."""
        await self._route_requests.learn(topics)

    def forget_routes(self, is_forgotten: Callable[[str], bool]) -> None:
        """Stop watching topics that do not exist and are not needed any more. `is_forgotten`:
        returns whether a topic is not needed any more."""
        self._watch.forget(is_forgotten)

    def record_change(self, topic: str, revision: int) -> None:
        """Record that a topic was created, changed or deleted through this connection."""
        self._route_requests.record_change(topic, revision)

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
        """Call any nameserver; retry, also at another one, while the failure is retriable.

        A change may have been made although its reply was lost. Use repeatable calls (`if_absent`)
        if this matters.

        Args:
            method_name: for example "CreateTopic".
            retry_seconds: how long to retry, in seconds; None means the connection's
                `retry_seconds`.
            timeout_seconds: timeout of one attempt.
            service: creates the stub; by default that of the NameServer service.

        Raises:
            RockoonError: the last error, or NameserverUnavailable.
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
        """Make one call and raise exceptions of the error table.

        Args:
            method: a unary method of a stub.
            unavailable: error for a peer that does not answer or that another process has
                replaced. The peer is the broker that `details` names, or the offset service for
                OffsetServiceUnavailable.
            timeout_seconds: timeout of the call; None for no timeout.
            farewell_seconds: see `CallsInFlight.answer`; for calls that must not be made twice.
            details: arguments of `unavailable`, for example `broker="broker-a"`.

        Raises:
            RockoonError: the server's error, `unavailable`, or TimedOut.
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
            started = method(request, timeout=timeout_seconds, metadata=metadata)
            return await self._in_flight.answer(started, address_now, farewell_seconds)

        try:
            try:
                return await answer()
            except RpcError as failure:
                error = from_rpc_error(failure, unavailable, **details)
                if not may_sign_again(self._channels.access, error):
                    raise error from None
            try:
                return await answer()
            except RpcError as failure:
                raise from_rpc_error(failure, unavailable, **details) from None
        except Moved:
            raise unavailable(**details) from None
        except aio.UsageError:
            # The channel was closed during the call.
            raise Closed(what="the connection to the cluster") from None

    async def call_broker(
        self, name: str, method_name: str, request: Any, timeout_seconds: float = CALL_SECONDS_MAX
    ) -> Any:
        """Call a live broker once. Raises BrokerUnavailable, and as `call`."""
        return await self.call(
            getattr(self.broker(name), method_name),
            request,
            unavailable=BrokerUnavailable,
            timeout_seconds=timeout_seconds,
            broker=name,
        )

    def followed(self, call: Any, broker: str) -> AbstractContextManager[None]:
        """Return a context manager that cancels a stream to a broker once another process replaces
        the broker."""
        return self._in_flight.follow(call, lambda: self.routes.broker_address(broker))

    def broker(self, name: str) -> "BrokerAsyncStub":
        """Return the stub of a live broker. Raises BrokerUnavailable: the routes have no broker of
        this name now; NoExternalAddress: the broker has no address that this client can reach."""
        stub: BrokerAsyncStub = self._channels.stub(self.broker_address(name), broker_stub)
        return stub

    def broker_address(self, name: str) -> str:
        """Return "host:port" of a live broker; errors as `broker`."""
        node = self.routes.broker(name)
        if node is None:
            raise BrokerUnavailable(broker=name)
        return reachable(node)

    async def wait_broker(self, name: str, wait_seconds: float) -> "BrokerAsyncStub":
        """Return the stub of a broker; wait until it is in the routes. Raises BrokerUnavailable: it
        was not in the routes within `wait_seconds`."""
        return await self._wait_node(lambda: self.broker(name), wait_seconds)

    def offset_service(self) -> "OffsetServiceAsyncStub":
        """Return the stub of the offset service. If it has not been in the routes for
        UNLISTED_SECONDS, the stub calls its last known address.

        Raises:
            OffsetServiceUnavailable: the offset service left the routes less than UNLISTED_SECONDS
                ago, or was never in them.
            NoExternalAddress: it has no address that this client can reach.
        """
        return self._offset_stub(self._offset_address())

    def in_flight_service(self) -> "InFlightServiceAsyncStub":
        """Return the stub for in-flight messages, as `offset_service`."""
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
        """Return the stub of the offset service; wait until it is in the routes. Raises
        OffsetServiceUnavailable: it was not in the routes within `wait_seconds`."""
        try:
            address = await self._wait_node(self._listed_offset_address, wait_seconds)
        except OffsetServiceUnavailable:
            return self.offset_service()
        return self._offset_stub(address)

    async def pause_for_broker(self, name: str, seconds: float) -> None:
        """Wait before the next call to a broker: `seconds`, or until the broker is registered
        again, or another process (for example the next leader) replaces it."""
        node = self.routes.broker(name)
        if node is not None:
            await self._pause_while(lambda: self.routes.broker(name) == node, seconds)
            return
        with suppress(BrokerUnavailable):
            await self.wait_broker(name, seconds)

    async def pause_for_offset_service(self, seconds: float) -> None:
        """Wait before the next call to the offset service; as `pause_for_broker`."""
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
            self._in_flight.cancel_moved()

    async def _pause_while(self, is_same: Callable[[], bool], seconds: float) -> None:
        # With another address or process, the former failure has no meaning.
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
