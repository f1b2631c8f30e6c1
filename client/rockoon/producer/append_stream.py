"""AppendStream: the producer's call to one broker; requests out, replies back in the same order.

If the stream breaks, its owner gets every batch without a reply, and the next batch opens the
stream again. The broker may have stored those batches; sending them again makes delivery
at-least-once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from grpc import RpcError, aio

from rockoon.errors import BrokerUnavailable, Internal, RockoonError
from rockoon.net.large_replies import Answer, Answers
from rockoon.producer.accumulator import ProducerBatch
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.broker_pb2 import AppendRequest
from rockoon_rpc.client_call import StreamCall

if TYPE_CHECKING:
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub


class StreamEvents(Protocol):
    """Callbacks of a stream."""

    def on_batches_max(self, broker: str, batches_max: int) -> None:
        """The broker accepts `batches_max` batches in one gRPC message, until its stream breaks."""

    def on_answer(self, batch: ProducerBatch, answer: Answer) -> None:
        """The broker has stored or refused a batch."""

    def on_broken(self, broker: str, batches: list[ProducerBatch], error: RockoonError) -> None:
        """The stream broke; `batches`, oldest first, have no reply."""


class AppendStream:
    """Sends batches to one broker.

    Args:
        connect: returns the broker's address and stub; raises BrokerUnavailable while the broker
            is not in the routes.
        events: notified exactly once about every submitted batch.
    """

    def __init__(
        self,
        broker: str,
        connect: "Callable[[], tuple[str, BrokerAsyncStub]]",
        metadata: tuple[tuple[str, str | bytes], ...],
        events: StreamEvents,
    ) -> None:
        self.broker = broker
        self.address: str | None = None
        """Address of the broker, None while the stream is not open."""
        self._connect = connect
        self._metadata = metadata
        self._events = events
        self._outgoing: deque[bytes] = deque()
        # Submissions without a reply, oldest first: batches, first request's id, time in seconds.
        self._unanswered: deque[tuple[Sequence[ProducerBatch], int, float]] = deque()
        self._wanted = asyncio.Event()
        self._call: aio.StreamStreamCall[Any, Any] | None = None
        self._requests: _RequestIterator | None = None
        self._is_finished = False
        self._is_replaced = False

    def submit(
        self, batches: Sequence[ProducerBatch], message: bytes, request_id: int, now: float
    ) -> None:
        """Send batches in one gRPC message, after the earlier submissions.

        Args:
            batches: more than one only if the broker has announced that it accepts them.
            message: the requests of all batches.
            request_id: id of the first request.
            now: seconds, on the event loop's clock.
        """
        # Recorded first, so that a stream that breaks now returns these batches too.
        self._unanswered.append((batches, request_id, now))
        call = self._call
        if not self._outgoing and isinstance(call, StreamCall) and call.write_now(message):
            return
        self._outgoing.append(message)
        self._wanted.set()

    @property
    def unwritten(self) -> int:
        """Number of gRPC messages that are not written to the transport yet."""
        return len(self._outgoing)

    def oldest(self) -> tuple[ProducerBatch, float] | None:
        """Return the oldest submission without a reply: its batch with the earliest deadline, and
        the time of submission; None if every submission has a reply."""
        if not self._unanswered:
            return None
        batches, _, since = self._unanswered[0]
        return min(batches, key=lambda batch: batch.deadline), since

    def interrupt(self) -> None:
        """Break the stream: the broker does not reply, or has another address now."""
        if self._call is not None:
            self._call.cancel()

    def mark_replaced(self) -> None:
        """End the stream to a process that another one has replaced.

        Nothing more is sent. Replies are received until the process ends the stream or `interrupt`
        is called.
        """
        self._is_replaced = True
        if not self._unanswered:
            self.interrupt()
        self.finish()

    def finish(self) -> None:
        """End the stream after the last reply; the caller submits nothing more."""
        self._is_finished = True
        if self._requests is not None:
            self._requests.is_finished = True
        self._wanted.set()

    async def run(self) -> None:
        """Send requests and receive replies until `finish` or `mark_replaced` ends the stream."""
        while True:
            await self._wanted.wait()
            if self._is_finished and not self._unanswered:
                return
            error = await self._run_once()
            if self._unanswered or not self._is_finished:
                self._break(error)
            if self._is_replaced:
                return

    async def _run_once(self) -> RockoonError:
        """Open the call, use it until it breaks, and return the reason."""
        try:
            self.address, stub = self._connect()
        except RockoonError as error:
            return error
        self._requests = _RequestIterator(self._outgoing, self._wanted)
        # `broker_stub` sends requests that are already serialised.
        requests = cast("AsyncIterator[AppendRequest]", self._requests)
        call = stub.AppendStream(requests, metadata=self._metadata)
        self._call = call
        if isinstance(call, StreamCall):
            call.on_message = self._accept
        try:
            async for reply in call:
                if not self._accept(reply):
                    return Internal(service=self.broker, reason="a reply without a request")
        except RpcError as failure:
            return from_rpc_error(failure, BrokerUnavailable, broker=self.broker)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        finally:
            self._call = None
            self.address = None
            call.cancel()
        return BrokerUnavailable(broker=self.broker)

    def _accept(self, reply: Answers) -> bool:
        # Replies have the order of the requests. A reply that does not match means that the two
        # sides disagree on the requests: guessing could report a batch as stored that is not.
        if not self._unanswered:
            return False
        batches, request_id, _ = self._unanswered[0]
        if len(batches) == 1 and isinstance(reply, list) and len(reply) == 1:
            # The common case: the reply to one batch.
            if reply[0].request_id != request_id:
                return False
            self._unanswered.popleft()
            self._events.on_answer(batches[0], reply[0])
            return True
        answers: Sequence[Answer] = reply if isinstance(reply, list) else [reply, *reply.more]
        if answers[0].request_id != request_id or len(answers) != len(batches):
            return False
        self._unanswered.popleft()
        if not isinstance(reply, list) and reply.batches_max and not self._is_replaced:
            self._events.on_batches_max(self.broker, reply.batches_max)
        for batch, answer in zip(batches, answers, strict=True):
            self._events.on_answer(batch, answer)
        return True

    def _break(self, error: RockoonError) -> None:
        batches = [batch for batches, _, _ in self._unanswered for batch in batches]
        if not self._is_replaced:
            # The next call may go to an older broker that accepts only one batch in a message.
            self._events.on_batches_max(self.broker, 1)
        # Before `on_broken`, which may submit to the next call.
        self._unanswered.clear()
        # The next call gets its own deque and event: the iterator of the broken call may still
        # wait for requests, must not send those of the next call, and must end.
        self._outgoing.clear()
        if self._requests is not None:
            self._requests.is_finished = True
            self._requests = None
        self._wanted.set()
        self._outgoing = deque()
        self._wanted = asyncio.Event()
        self._events.on_broken(self.broker, batches, error)


class _RequestIterator:
    """Asynchronous iterator over the requests of one call."""

    def __init__(self, outgoing: deque[bytes], wanted: asyncio.Event) -> None:
        self._outgoing = outgoing
        self._wanted = wanted
        self.is_finished = False

    def __aiter__(self) -> "_RequestIterator":
        return self

    async def __anext__(self) -> bytes:
        while not self._outgoing:
            if self.is_finished:
                raise StopAsyncIteration
            self._wanted.clear()
            await self._wanted.wait()
        return self._outgoing.popleft()
