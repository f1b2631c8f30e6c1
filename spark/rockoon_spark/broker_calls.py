"""Blocking read calls to one broker, and the addresses of brokers, for Spark tasks.

An `endpoint` is a `ClusterEndpoint`, or the addresses of the nameservers as text.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from rockoon.admin.reads import list_topics, live_brokers, missing_brokers
from rockoon.errors import BrokerUnavailable, NotLeader, RockoonError, TimedOut
from rockoon.net.addresses import parse_addresses
from rockoon.net.connection import CONNECT_SECONDS_MAX, Connection
from rockoon.net.routes import TopicRoute
from rockoon_core.clock import Backoff
from rockoon_core.failed_call import ENDED_AT_ONCE, from_rpc_error
from rockoon_core.message_queue import MessageQueue, in_calls
from rockoon_proto.v1.broker_pb2 import (
    BrokerQueue,
    DescribeCompactionReply,
    DescribeCompactionRequest,
    PullReply,
    PullRequest,
    QueueState,
    QueueStatusReply,
    QueueStatusRequest,
    ReadGenerationReply,
    ReadGenerationRequest,
    ReadLogReply,
    ReadLogRequest,
    SearchOffsetReply,
    SearchOffsetRequest,
)
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_spark.endpoint import AnyEndpoint, endpoint_of

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """Topics and brokers of a cluster, as a nameserver reports them.

    Args:
        routes: the topics that this client may see, without internal ones.
        addresses: addresses of the brokers in the routes.
        failures: failures of the brokers that have queues but no address.
    """

    routes: Sequence[TopicRoute]
    addresses: Mapping[str, str]
    failures: Mapping[str, RockoonError]


def cluster_topology(endpoint: AnyEndpoint) -> ClusterTopology:
    """Return the current topics and brokers of a cluster.

    Raises:
        RockoonError: no nameserver answers.
    """

    async def topology(connection: Connection) -> ClusterTopology:
        routes = await list_topics(connection, include_system=True)
        missing = await missing_brokers(connection, routes)
        addresses, unreachable = _addresses(connection)
        return ClusterTopology(routes, addresses, {**missing, **unreachable})

    return _asked(endpoint, topology)


def live_addresses(endpoint: AnyEndpoint) -> dict[str, str]:
    """Return the addresses of the brokers in the routes, without a search for missing brokers.

    Raises:
        RockoonError: no nameserver answers, or a broker cannot be reached from here.
    """
    addresses, unreachable = _asked(endpoint, _addresses_of)
    for failure in unreachable.values():
        raise failure
    return addresses


def address_now(endpoint: AnyEndpoint, broker: str, seconds_max: float) -> str | None:
    """Return the current address of a broker; None if it cannot be found.

    `seconds_max`: time limit for the connection to the nameservers.
    """
    try:
        return _asked(endpoint, _addresses_of, seconds_max)[0].get(broker)
    except RockoonError:
        return None


def _asked(
    endpoint: AnyEndpoint,
    ask: Callable[[Connection], Awaitable[Answer]],
    connect_seconds_max: float = CONNECT_SECONDS_MAX,
) -> Answer:
    """Return the answer of a coroutine that uses a new connection to a cluster.

    Raises:
        RockoonError: no nameserver answers, or the answer is an error.
    """
    to = endpoint_of(endpoint)

    async def answer() -> Answer:
        async with Connection(
            parse_addresses(to.nameservers),
            connect_seconds_max=connect_seconds_max,
            tls=to.tls,
            access=to.access,
        ) as connection:
            return await ask(connection)

    # The caller's thread may run an event loop, for example in a notebook.
    with ThreadPoolExecutor(1, "rockoon-plan") as thread:
        return thread.submit(asyncio.run, answer()).result()


Addresses = tuple[dict[str, str], dict[str, RockoonError]]
"""Address of each broker in the routes, and the error of each without an address."""


async def _addresses_of(connection: Connection) -> Addresses:
    return _addresses(connection)


def _addresses(connection: Connection) -> Addresses:
    addresses: dict[str, str] = {}
    unreachable: dict[str, RockoonError] = {}
    for name in live_brokers(connection):
        try:
            addresses[name] = connection.broker_address(name)
        except RockoonError as error:
            unreachable[name] = error
    return addresses, unreachable


CALL_SECONDS_MAX = 30.0
# For how long calls to an unreachable broker are repeated while a read is planned.
PLAN_RETRY_SECONDS = 2.0
# The same while its log is read: long enough for a restart of the broker.
READ_RETRY_SECONDS = 20.0
# Time limit for a question to the nameservers before the former address is tried again.
_FOLLOW_SECONDS_MAX = 2.0

# After these errors another node may serve the log: a deposed leader answers with NotLeader.
_ELSEWHERE = (BrokerUnavailable, NotLeader)


def is_unreachable(error: RockoonError) -> bool:
    """True if a call failed because the broker did not answer.

    False if the broker refused the call: missing permission, failing disk, invalid request. A
    rejected certificate counts as a refusal too, although the call never reached the broker.

    Args:
        error: raised by a call to a broker, or by the search for its address.
    """
    is_silent = isinstance(error, BrokerUnavailable | TimedOut)
    return is_silent and error.details.get("trouble", ENDED_AT_ONCE) == ENDED_AT_ONCE


Request = TypeVar("Request")
Reply = TypeVar("Reply")


class RepeatedCall(Generic[Request, Reply]):
    """A connection to a broker for one kind of read call, with one request in flight at a time.
    Used by one thread.

    Args:
        broker: its name, for errors.
        address: "host:port".
        retry_seconds: for how long a call is repeated after a retriable failure.
        endpoint: nameservers, asked for the broker's new address when it no longer answers.
    """

    _method_of: Callable[[BrokerStub], Any]
    """Return the stub's method for this kind of call."""

    def __init__(
        self,
        broker: str,
        address: str,
        retry_seconds: float,
        endpoint: AnyEndpoint | None = None,
    ) -> None:
        self.broker = broker
        self.retry_seconds = retry_seconds
        self._endpoint = endpoint
        self._dialer = endpoint_of(endpoint or "").dialer()
        self._connect(address)
        self._request: Request | None = None
        self._call: Any = None

    def _connect(self, address: str) -> None:
        self.address = address
        self._channel = self._dialer.blocking_channel(address)
        self._method = type(self)._method_of(BrokerStub(self._channel))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def read(self, request: Request) -> Reply:
        """Send a request to the broker and return its answer; see `answer`."""
        self.ask(request)
        return self.answer()

    def ask(self, request: Request) -> None:
        """Send a request to the broker. The previous request must have been answered."""
        self._request = request
        self._call = self._method.future(request, timeout=CALL_SECONDS_MAX)

    def answer(self) -> Reply:
        """Wait for the broker's answer to the last request.

        Raises:
            RockoonError: the broker's error, or BrokerUnavailable.
        """
        deadline = time.monotonic() + self.retry_seconds
        backoff = Backoff()
        while True:
            try:
                reply: Reply = self._call.result()
            except grpc.RpcError as failure:
                error = from_rpc_error(failure, BrokerUnavailable, broker=self.broker)
                if not error.retriable or time.monotonic() >= deadline:
                    raise error from None
            else:
                return reply
            time.sleep(backoff.next_seconds())
            if isinstance(error, _ELSEWHERE):
                self._follow()
            assert self._request is not None
            self.ask(self._request)

    def _follow(self) -> None:
        """Connect to the broker's new address if the nameservers report one."""
        if self._endpoint is None:
            return
        address = address_now(self._endpoint, self.broker, _FOLLOW_SECONDS_MAX)
        if address is not None and address != self.address:
            self._channel.close()
            self._connect(address)


class LogClient(RepeatedCall[ReadLogRequest, ReadLogReply]):
    _method_of = attrgetter("ReadLog")


class PullClient(RepeatedCall[PullRequest, PullReply]):
    _method_of = attrgetter("Pull")


class StatusClient(RepeatedCall[QueueStatusRequest, QueueStatusReply]):
    _method_of = attrgetter("QueueStatus")

    def states(
        self, queues: Iterable[MessageQueue], route_revision: int
    ) -> dict[MessageQueue, QueueState]:
        """Return the offsets of queues of this broker; of an unknown queue, the error."""
        found: dict[MessageQueue, QueueState] = {}
        for some in in_calls(queues):
            request = QueueStatusRequest(
                queues=_to_wire(some), route_revision=route_revision, offsets_only=True
            )
            found.update(zip(some, self.read(request).queues, strict=True))
        return found


class SearchClient(RepeatedCall[SearchOffsetRequest, SearchOffsetReply]):
    _method_of = attrgetter("SearchOffset")

    def offsets(
        self, queues: Iterable[MessageQueue], route_revision: int, time_ms: int
    ) -> dict[MessageQueue, int]:
        """Return the offset of the first message of each queue that was stored at a time or later.

        Queues that no longer exist are omitted.
        """
        found: dict[MessageQueue, int] = {}
        for some in in_calls(queues):
            request = SearchOffsetRequest(
                queues=_to_wire(some), timestamp_ms=time_ms, route_revision=route_revision
            )
            for queue, each in zip(some, self.read(request).offsets, strict=True):
                if not each.HasField("error"):
                    found[queue] = each.offset
        return found


def _to_wire(queues: Iterable[MessageQueue]) -> list[BrokerQueue]:
    return [BrokerQueue(topic=queue.topic, queue_id=queue.queue_id) for queue in queues]


class CompactionClient(RepeatedCall[DescribeCompactionRequest, DescribeCompactionReply]):
    _method_of = attrgetter("DescribeCompaction")


class GenerationClient(RepeatedCall[ReadGenerationRequest, ReadGenerationReply]):
    _method_of = attrgetter("ReadGeneration")
