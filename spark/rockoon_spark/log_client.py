"""One broker's ReadLog for code that blocks, as Spark's tasks do."""

import time
from types import TracebackType
from typing import Any, Self

import grpc

from rockoon.backoff import Backoff
from rockoon.channels import CHANNEL_OPTIONS
from rockoon.errors import BrokerUnavailable
from rockoon_proto.failed_call import from_rpc_error
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub

CALL_SECONDS_MAX = 30.0


class LogClient:
    """A connection to a broker, with one request on its way at a time. Used by one thread.

    Args:
        broker: its name, for errors.
        address: "host:port".
        retry_seconds: how long to ask again after a failure that can pass.
    """

    def __init__(self, broker: str, address: str, retry_seconds: float) -> None:
        self.broker = broker
        self.address = address
        self._retry_seconds = retry_seconds
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = BrokerStub(self._channel)
        self._request = ReadLogRequest()
        self._call: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def read(self, request: ReadLogRequest) -> ReadLogReply:
        """Ask, and wait for the answer; see `answer`."""
        self.ask(request)
        return self.answer()

    def ask(self, request: ReadLogRequest) -> None:
        """Send a request; the one before has to be answered."""
        self._request = request
        self._call = self._stub.ReadLog.future(request, timeout=CALL_SECONDS_MAX)

    def answer(self) -> ReadLogReply:
        """Wait for the answer to the last request.

        Raises:
            RockoonError: what the broker answered, or BrokerUnavailable.
        """
        deadline = time.monotonic() + self._retry_seconds
        backoff = Backoff()
        while True:
            try:
                reply: ReadLogReply = self._call.result()
            except grpc.RpcError as failure:
                error = from_rpc_error(failure, BrokerUnavailable, broker=self.broker)
                if not error.retriable or time.monotonic() >= deadline:
                    raise error from None
            else:
                return reply
            time.sleep(backoff.next_seconds())
            self.ask(self._request)
