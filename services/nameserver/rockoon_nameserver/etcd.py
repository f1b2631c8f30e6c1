"""etcd client of the nameserver: reads at one revision, transactions, leases and a watch.

The only module that knows the etcd client library. It uses that library's generated stubs and not
its client object, whose watcher loses its watches when the stream breaks, waits forever on a
refused one, drops progress notices, and returns the events of one revision one by one.

Each call ends within `timeout_seconds`. A failure to get a reply, on either side, is raised as
`EtcdUnavailable`; a write that failed this way may have been applied.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

import grpc
from aetcd import rpc
from grpc import aio

from rockoon_core.channels import Dialer, Tls
from rockoon_core.errors import EtcdUnavailable
from rockoon_core.failed_call import connection_trouble
from rockoon_nameserver.etcd_data import (
    TRANSACTION_OPERATIONS_MAX,
    DeleteKey,
    Header,
    KeyCondition,
    KeyEvent,
    KeyRange,
    KeyValue,
    PutKey,
    RangeRead,
    TransactionResult,
    WatchBatch,
)
from rockoon_nameserver.route_store import REQUEST_BOUNDS_MS, Compacted, LeaseGone
from rockoon_rpc.liveness import Liveness
from rockoon_runtime.error_guard import method_name
from rockoon_runtime.telemetry.metrics import Times

Result = TypeVar("Result")
Request = TypeVar("Request")
Reply = TypeVar("Reply")

# Keys per reply when a whole prefix is read.
PAGE_KEYS_MAX = 2_000

# gRPC's own limit of a message.
UNBOUNDED_BYTES = (1 << 32) - 1

# Without it, a member that has no leader waits or sends nothing; with it, it returns an error.
REQUIRE_LEADER = ("hasleader", "true")

# How long a periodic read waits for more of its kind: the timers of nodes fire at different times.
GATHER_SECONDS = 0.02
# Of one `read_jointly`.
RANGES_MAX = 3
LEASES_MAX = 1_000

# If the host of a member vanishes, its connection never ends by itself. Leases count again from the
# start of the next member, so the connection must be replaced well before the lease of a node ends
# (`lease_seconds`). etcd ends connections with more than one PING in 5 s.
LIVENESS = Liveness(ping_seconds=5.0, answer_seconds=2.0)

NO_ANSWER = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class Endpoint:
    """A channel to one member, with its stubs and the token that it issued."""

    def __init__(self, address: str, dialer: Dialer) -> None:
        self.address = address
        self.channel = dialer.channel(address)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.maintenance = rpc.MaintenanceStub(self.channel)
        self.token: str | None = None


class Etcd:
    """A connection to an etcd cluster; an async context manager.

    It uses one member at a time, and the next one after a call without a reply.

    Args:
        endpoints: the members, "host:port".
        user, password: credentials, or empty.
        timeout_seconds: limit of a call.
        tls: certificates for the connections; None: no TLS.
        liveness: time limits of silent connections.

    Raises:
        ValueError: there is no endpoint, or a file of `tls` cannot be used.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: str = "",
        password: str = "",
        timeout_seconds: float = 2.0,
        tls: Tls | None = None,
        liveness: Liveness = LIVENESS,
    ) -> None:
        if not endpoints:
            raise ValueError("at least one etcd endpoint is needed")
        self._addresses = tuple(endpoints)
        self._user = user
        self._password = password
        self._timeout_seconds = timeout_seconds
        self._dialer = Dialer(tls, answer_bytes_max=UNBOUNDED_BYTES, liveness=liveness)
        # Changed by __aenter__ (channels belong to the running loop) and `_switch_member`.
        self._endpoints: list[Endpoint] = []
        self._current = 0
        # Changed by `_attempt` only; by request name and whether etcd replied.
        self.request_times: dict[tuple[str, bool], Times] = {}
        self._tasks = asyncio.TaskGroup()
        self._reads = JointRequests(
            self._read_all, self._tasks, GATHER_SECONDS, TRANSACTION_OPERATIONS_MAX // RANGES_MAX
        )
        self._renewals = JointRequests(self._renew_all, self._tasks, 0.0, LEASES_MAX)

    async def __aenter__(self) -> "Etcd":
        self._endpoints = [Endpoint(address, self._dialer) for address in self._addresses]
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()
        # Without the failure, which the group would wrap.
        await self._tasks.__aexit__(None, None, None)

    async def header(self) -> Header:
        """The latest revision, agreed by a majority. Raises EtcdUnavailable without one."""
        reply = await self._call("kv", "Range", rpc.RangeRequest(key=b"\0", count_only=True))
        return header_of(reply)

    async def versions(self) -> dict[str, str]:
        """Address and version of each member that replies in time."""
        found = {}
        for endpoint in self._endpoints:
            with contextlib.suppress(aio.AioRpcError):
                await self._authenticate(endpoint)
                reply = await endpoint.maintenance.Status(
                    rpc.StatusRequest(),
                    timeout=self._timeout_seconds,
                    metadata=metadata(endpoint),
                )
                found[endpoint.address] = str(reply.version)
        return found

    async def read(self, key_range: KeyRange) -> RangeRead:
        """Return all keys of a range at one revision, ordered by name.

        Raises:
            Compacted: etcd compacted the revision while a large range was read.
            EtcdUnavailable: no reply in time.
        """
        request = rpc.RangeRequest(
            key=key_range.first, range_end=key_range.end, limit=PAGE_KEYS_MAX
        )
        reply = await self._call("kv", "Range", request)
        header = header_of(reply)
        items = [key_value(item) for item in reply.kvs]
        while reply.more:
            request.key = reply.kvs[-1].key + b"\0"
            # The first page's revision: a change between two pages would be seen by half.
            request.revision = header.revision
            reply = await self._call("kv", "Range", request)
            items.extend(key_value(item) for item in reply.kvs)
        return RangeRead(header, items)

    async def count_and_changes(
        self, key_range: KeyRange, after_revision: int
    ) -> tuple[Header, int, int]:
        """Return how many keys a range has, and how many were put after a revision."""
        request = rpc.RangeRequest(
            key=key_range.first,
            range_end=key_range.end,
            # `count` includes the keys that this filter leaves out: one call returns both.
            min_mod_revision=after_revision + 1,
            keys_only=True,
        )
        reply = await self._call("kv", "Range", request)
        return header_of(reply), reply.count, len(reply.kvs)

    async def read_at_once(self, *key_ranges: KeyRange) -> list[list[KeyValue]]:
        """Return the keys of several (small) ranges, all at the same revision."""
        request = rpc.TxnRequest(success=[range_operation(key_range) for key_range in key_ranges])
        return ranges_found(await self._call("kv", "Txn", request))

    async def read_jointly(self, *key_ranges: KeyRange) -> tuple[Header, list[list[KeyValue]]]:
        """Read several ranges like `read_at_once`; calls made within `GATHER_SECONDS` share one
        request to etcd.

        For periodic reads. Also returns the current revision, like `header`.

        Args:
            key_ranges: one to `RANGES_MAX`.
        """
        return await self._reads.ask(key_ranges)

    async def _read_all(
        self, asked: Sequence[tuple[KeyRange, ...]]
    ) -> list[tuple[Header, list[list[KeyValue]]]]:
        key_ranges = [key_range for each in asked for key_range in each]
        reply = await self._call(
            "kv",
            "Txn",
            rpc.TxnRequest(success=[range_operation(key_range) for key_range in key_ranges]),
        )
        header, found = header_of(reply), iter(ranges_found(reply))
        return [(header, [next(found) for _ in each]) for each in asked]

    async def transaction(
        self,
        conditions: Sequence[KeyCondition],
        operations: Sequence[PutKey | DeleteKey],
        otherwise: Sequence[KeyRange] = (),
    ) -> TransactionResult:
        """Do all operations at one revision if all conditions hold; otherwise read `otherwise`.

        Raises:
            LeaseGone: a key was to be put under a lease that does not exist.
            EtcdUnavailable: no reply in time; the operations may have been applied.
        """
        assert len(operations) <= TRANSACTION_OPERATIONS_MAX, "etcd would refuse so many"
        request = rpc.TxnRequest(
            compare=[compare_request(condition) for condition in conditions],
            success=[operation_request(operation) for operation in operations],
            failure=[range_operation(key_range) for key_range in otherwise],
        )
        reply = await self._call("kv", "Txn", request)
        found = [] if reply.succeeded else ranges_found(reply)
        return TransactionResult(reply.succeeded, reply.header.revision, found)

    async def grant_lease(self, ttl_seconds: int) -> tuple[int, float]:
        """Create a lease; returns its id and its seconds, which may be more than requested."""
        reply = await self._call("lease", "LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl_seconds))
        return reply.ID, float(reply.TTL)

    async def renew_lease(self, lease_id: int) -> float:
        """Renew a lease; returns its length in seconds, 0 if it does not exist.

        Renewals of one loop iteration are one call.
        """
        return await self._renewals.ask(lease_id)

    async def _renew_all(self, lease_ids: Sequence[int]) -> list[float]:
        async def keep_alive(endpoint: Endpoint) -> list[float]:
            call = endpoint.lease.LeaseKeepAlive(
                timeout=self._timeout_seconds, metadata=metadata(endpoint)
            )
            left: dict[int, float] = {}
            try:
                for lease_id in lease_ids:
                    await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
                for _ in lease_ids:
                    reply = await read_reply(call)
                    left[reply.ID] = float(reply.TTL)
            finally:
                call.cancel()
            return [left.get(lease_id, 0.0) for lease_id in lease_ids]

        return await self._attempt("lease_keep_alive", keep_alive)

    async def lease_seconds_left(self, lease_id: int) -> float:
        """Seconds until a lease ends unless it is renewed; 0 if it does not exist."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease_id)
        reply = await self._call("lease", "LeaseTimeToLive", request)
        # etcd reports whole seconds, and -1 for a missing lease.
        return 0.0 if reply.TTL < 0 else max(float(reply.TTL), 0.5)

    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease and delete the keys under it; a missing lease is no error."""
        with contextlib.suppress(LeaseGone):
            await self._call("lease", "LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease_id))

    @asynccontextmanager
    async def watch(
        self, key_range: KeyRange, start_revision: int
    ) -> AsyncIterator[tuple[Header, AsyncIterator[WatchBatch]]]:
        """Follow the changes of a range from a revision on (included).

        Entering waits until etcd has accepted the watch, and returns its current revision. Each
        batch holds whole revisions, in order. The stream ends only by an exception.

        A connection that becomes silent is not detected here: call `header` periodically.

        Raises:
            Compacted: etcd does not keep `start_revision` any more.
            EtcdUnavailable: etcd did not accept the watch in time, or the stream broke.
        """

        async def start(endpoint: Endpoint) -> tuple[Endpoint, Any, Any]:
            call = endpoint.watch.Watch(metadata=metadata(endpoint))
            try:
                # Without `fragment`, etcd never cuts one revision into two replies.
                create = rpc.WatchCreateRequest(
                    key=key_range.first,
                    range_end=key_range.end,
                    start_revision=start_revision,
                    progress_notify=True,
                )
                # The call has no deadline because the watch has no end.
                async with asyncio.timeout(self._timeout_seconds):
                    reply = await first_reply(call, rpc.WatchRequest(create_request=create))
                refuse_cancelled(reply)
            except BaseException:
                call.cancel()
                raise
            return endpoint, call, reply

        endpoint, call, created = await self._attempt("watch", start)

        async def batches() -> AsyncIterator[WatchBatch]:
            try:
                while (reply := await call.read()) is not aio.EOF:
                    refuse_cancelled(reply)
                    events = [event_of(event) for event in reply.events]
                    # While a watch catches up, the header is ahead of the events; only in a
                    # progress notice, which has none, does it bound what has been sent.
                    revision = events[-1].mod_revision if events else reply.header.revision
                    yield WatchBatch(revision, events)
            except aio.AioRpcError as failure:
                self._switch_member(endpoint)
                raise translated(failure, endpoint) from failure
            self._switch_member(endpoint)
            raise EtcdUnavailable("etcd ended the watch")

        try:
            yield header_of(created), batches()
        finally:
            call.cancel()

    async def _call(self, stub: str, method: str, request: Any) -> Any:
        async def unary(endpoint: Endpoint) -> Any:
            call = getattr(getattr(endpoint, stub), method)
            return await call(request, timeout=self._timeout_seconds, metadata=metadata(endpoint))

        return await self._attempt(method_name(method), unary)

    async def _attempt(
        self, request: str, operation: Callable[[Endpoint], Awaitable[Result]]
    ) -> Result:
        """Send a request to etcd with `_tried`, and record its duration in `request_times`."""
        start_seconds, answered = time.monotonic(), False
        try:
            result = await self._tried(operation)
            answered = True
            return result
        finally:
            times = self.request_times.setdefault((request, answered), Times(REQUEST_BOUNDS_MS))
            times.add(time.monotonic() - start_seconds)

    async def _tried(self, operation: Callable[[Endpoint], Awaitable[Result]]) -> Result:
        """Run an operation on the etcd member in use.

        The only retry is with a fresh token after etcd refused the old one: the refused call
        changed nothing. Any other retry might apply a write twice.
        """
        endpoint = self._endpoints[self._current]
        had_token = endpoint.token is not None
        try:
            try:
                await self._authenticate(endpoint)
                return await operation(endpoint)
            except aio.AioRpcError as failure:
                if not (had_token and token_refused(failure)):
                    raise
                endpoint.token = None
                await self._authenticate(endpoint)
                return await operation(endpoint)
        except aio.AioRpcError as failure:
            if failure.code() in NO_ANSWER:
                self._switch_member(endpoint)
            raise translated(failure, endpoint) from failure
        except (TimeoutError, asyncio.InvalidStateError) as failure:
            # grpc raises InvalidStateError for a write into a call that has failed.
            self._switch_member(endpoint)
            raise EtcdUnavailable(f"etcd at {endpoint.address} does not answer") from failure

    async def _authenticate(self, endpoint: Endpoint) -> None:
        if self._user and endpoint.token is None:
            request = rpc.AuthenticateRequest(name=self._user, password=self._password)
            reply = await endpoint.auth.Authenticate(request, timeout=self._timeout_seconds)
            endpoint.token = reply.token

    def _switch_member(self, endpoint: Endpoint) -> None:
        """Use the next member, unless another call has already switched."""
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)


def translated(failure: aio.AioRpcError, endpoint: Endpoint) -> Exception:
    """Convert the gRPC error of a failed etcd call to an exception of this module."""
    status, details = failure.code(), failure.details() or ""
    if status is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted(details)
    if status is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return LeaseGone(details)
    if status in NO_ANSWER:
        reason = connection_trouble(details) or details
        return EtcdUnavailable(f"etcd at {endpoint.address} does not answer: {reason}")
    # No space left, unknown user, too many requests: an operator must act, then callers may retry.
    return EtcdUnavailable(f"etcd at {endpoint.address} refuses: {details}")


def token_refused(failure: aio.AioRpcError) -> bool:
    details = failure.details() or ""
    return "invalid auth token" in details or "auth store is old" in details


def metadata(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    return (REQUIRE_LEADER, ("token", endpoint.token)) if endpoint.token else (REQUIRE_LEADER,)


async def first_reply(call: Any, request: Any) -> Any:
    """Send one request on a stream and wait for one reply."""
    await call.write(request)
    return await read_reply(call)


async def read_reply(call: Any) -> Any:
    reply = await call.read()
    if reply is aio.EOF:
        raise EtcdUnavailable("etcd ended a stream without an answer")
    return reply


def refuse_cancelled(reply: Any) -> None:
    if reply.compact_revision:
        raise Compacted(f"etcd keeps nothing before revision {reply.compact_revision}")
    if reply.canceled:
        raise EtcdUnavailable(f"etcd refuses the watch: {reply.cancel_reason}")


def header_of(reply: Any) -> Header:
    return Header(reply.header.revision, reply.header.cluster_id)


def key_value(item: Any) -> KeyValue:
    key = item.key.decode(errors="replace")
    return KeyValue(key, item.value, item.create_revision, item.mod_revision, item.lease)


def event_of(event: Any) -> KeyEvent:
    item = event.kv
    value = item.value if event.type == event.PUT else None
    key = item.key.decode(errors="replace")
    return KeyEvent(key, value, item.create_revision, item.mod_revision)


def ranges_found(reply: Any) -> list[list[KeyValue]]:
    return [
        [key_value(item) for item in response.response_range.kvs] for response in reply.responses
    ]


def range_operation(key_range: KeyRange) -> Any:
    return rpc.RequestOp(
        request_range=rpc.RangeRequest(key=key_range.first, range_end=key_range.end)
    )


def compare_request(condition: KeyCondition) -> Any:
    key_range, revision_of, relation, revision = condition
    request = rpc.Compare(
        key=key_range.first,
        range_end=key_range.end,
        result={"=": rpc.Compare.EQUAL, "<": rpc.Compare.LESS, ">": rpc.Compare.GREATER}[relation],
    )
    if revision_of == "create":
        request.target = rpc.Compare.CREATE
        request.create_revision = revision
    else:
        request.target = rpc.Compare.MOD
        request.mod_revision = revision
    return request


def operation_request(operation: PutKey | DeleteKey) -> Any:
    if isinstance(operation, PutKey):
        put = rpc.PutRequest(
            key=operation.key.encode(), value=operation.value, lease=operation.lease_id
        )
        return rpc.RequestOp(request_put=put)
    key_range = operation.key_range
    delete = rpc.DeleteRangeRequest(key=key_range.first, range_end=key_range.end)
    return rpc.RequestOp(request_delete_range=delete)


class JointRequests(Generic[Request, Reply]):
    """Collects requests to etcd and sends several in one call. Not thread-safe.

    Args:
        ask: sends several requests, returns replies in their order; its exception is raised to each
            caller.
        tasks: owns the calls, because the caller of the first request may be cancelled.
        gather_seconds: how long the first request waits for more; 0: one loop iteration.
        count_max: maximum of requests in one call.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Request]], Awaitable[Sequence[Reply]]],
        tasks: asyncio.TaskGroup,
        gather_seconds: float,
        count_max: int,
    ) -> None:
        self._ask = ask
        self._tasks = tasks
        self._gather_seconds = gather_seconds
        self._count_max = count_max
        self._gathered: list[tuple[Request, asyncio.Future[Reply]]] = []

    async def ask(self, request: Request) -> Reply:
        """Add a request to the next call, and return its reply. Raises the exception of `ask`."""
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[Reply] = loop.create_future()
        if not self._gathered:
            loop.call_later(self._gather_seconds, self._send)
        self._gathered.append((request, replied))
        return await replied

    def _send(self) -> None:
        # Without the requests of cancelled callers; none may be left.
        gathered = [each for each in self._gathered if not each[1].done()]
        self._gathered = []
        for first in range(0, len(gathered), self._count_max):
            some = gathered[first : first + self._count_max]
            self._tasks.create_task(self._answer(some), name="joint request")

    async def _answer(self, some: Sequence[tuple[Request, asyncio.Future[Reply]]]) -> None:
        try:
            replies = await self._ask([request for request, _ in some])
            for (_, replied), reply in zip(some, replies, strict=True):
                if not replied.done():
                    replied.set_result(reply)
        except Exception as failure:  # noqa: BLE001 - raised to the callers
            for _, replied in some:
                if not replied.done():
                    replied.set_exception(failure)
        finally:
            # If this task is cancelled, nothing else ends the waits.
            for _, replied in some:
                replied.cancel()
