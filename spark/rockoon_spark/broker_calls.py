"""One broker's reading calls for code that blocks, as Spark's tasks do."""

import time
from collections.abc import Callable
from operator import attrgetter
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from rockoon.errors import BrokerUnavailable, NotLeader, RockoonError, TimedOut
from rockoon.net.tls import dialer
from rockoon_core.backoff import Backoff
from rockoon_core.failed_call import ENDED_AT_ONCE, from_rpc_error
from rockoon_proto.v1.broker_pb2 import (
    DescribeCompactionReply,
    DescribeCompactionRequest,
    PullReply,
    PullRequest,
    ReadGenerationReply,
    ReadGenerationRequest,
    ReadLogReply,
    ReadLogRequest,
)
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_spark.broker_addresses import address_now

CALL_SECONDS_MAX = 30.0
# How long a broker that does not answer is asked again: at most, before a read is planned.
PLAN_RETRY_SECONDS = 2.0
# And while its log is read: a broker that is restarted comes back within this.
READ_RETRY_SECONDS = 20.0
# How long to ask nameservers where a broker is, before it is tried again where it was.
_FOLLOW_SECONDS_MAX = 2.0

# What says that the log may be served elsewhere by now: a leader that was deposed answers too.
_ELSEWHERE = (BrokerUnavailable, NotLeader)


def is_unreachable(error: RockoonError) -> bool:
    """Whether a call failed because the broker did not answer.

    An answer of the broker is not: a missing permission, a failing disk, an invalid request. A
    certificate that one of the sides rejects is a refusal too, although no call comes through.

    Args:
        error: of a call to a broker, or of the search for its address.
    """
    is_silent = isinstance(error, BrokerUnavailable | TimedOut)
    return is_silent and error.details.get("trouble", ENDED_AT_ONCE) == ENDED_AT_ONCE


Request = TypeVar("Request")
Reply = TypeVar("Reply")


class RepeatedCall(Generic[Request, Reply]):
    """A connection to a broker for one of its calls that change nothing, with one request on its
    way at a time. Used by one thread.

    Args:
        broker: its name, for errors.
        address: "host:port".
        retry_seconds: how long to ask again after a failure that can pass.
        endpoint: nameservers that know where the broker is when it does not answer any more.
    """

    _of_stub: Callable[[BrokerStub], Any]
    """Which call it is."""

    def __init__(
        self,
        broker: str,
        address: str,
        retry_seconds: float,
        endpoint: str | None = None,
    ) -> None:
        self.broker = broker
        self._retry_seconds = retry_seconds
        self._endpoint = endpoint
        self._dialer = dialer()
        self._connect(address)
        self._request: Request | None = None
        self._call: Any = None

    def _connect(self, address: str) -> None:
        self.address = address
        self._channel = self._dialer.blocking_channel(address)
        self._method = type(self)._of_stub(BrokerStub(self._channel))

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
        """Ask, and wait for the answer; see `answer`."""
        self.ask(request)
        return self.answer()

    def ask(self, request: Request) -> None:
        """Send a request; the one before has to be answered."""
        self._request = request
        self._call = self._method.future(request, timeout=CALL_SECONDS_MAX)

    def answer(self) -> Reply:
        """Wait for the answer to the last request.

        Raises:
            RockoonError: what the broker answered, or BrokerUnavailable.
        """
        deadline = time.monotonic() + self._retry_seconds
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
        """Turn to where the broker is by now."""
        if self._endpoint is None:
            return
        address = address_now(self._endpoint, self.broker, _FOLLOW_SECONDS_MAX)
        if address is not None and address != self.address:
            self._channel.close()
            self._connect(address)


class LogClient(RepeatedCall[ReadLogRequest, ReadLogReply]):
    """ReadLog; see `RepeatedCall`."""

    _of_stub = attrgetter("ReadLog")


class PullClient(RepeatedCall[PullRequest, PullReply]):
    """Pull; see `RepeatedCall`."""

    _of_stub = attrgetter("Pull")


class CompactionClient(RepeatedCall[DescribeCompactionRequest, DescribeCompactionReply]):
    """DescribeCompaction; see `RepeatedCall`."""

    _of_stub = attrgetter("DescribeCompaction")


class GenerationClient(RepeatedCall[ReadGenerationRequest, ReadGenerationReply]):
    """ReadGeneration; see `RepeatedCall`."""

    _of_stub = attrgetter("ReadGeneration")
