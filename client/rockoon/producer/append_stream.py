"""One broker's AppendStream: batches out, replies back in the same order.

A stream that breaks hands back every batch it had not been answered for, and is opened again with
the next batch. Whether the broker stored those batches is then unknown: sending them again is what
makes delivery at-least-once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from grpc import RpcError, aio

from rockoon.errors import BrokerUnavailable, Internal, RockoonError
from rockoon.net.append_replies import Answer, Answers
from rockoon.producer.accumulator import ProducerBatch
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.broker_pb2 import AppendRequest
from rockoon_rpc.client_call import StreamCall

if TYPE_CHECKING:
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub


class StreamEvents(Protocol):
    """Who is told what became of the batches."""

    def takes_batches(self, broker: str, batches_max: int) -> None:
        """A broker takes so many batches in one message, until its stream breaks."""

    def answered(self, batch: ProducerBatch, answer: Answer) -> None:
        """The broker answered for a batch: stored, or refused."""

    def broken(self, broker: str, batches: list[ProducerBatch], error: RockoonError) -> None:
        """The stream broke; these batches, oldest first, have no answer."""


class AppendStream:
    """Sends the batches of one broker.

    Args:
        broker: its name.
        connect: returns its address and stub; raises BrokerUnavailable while it is not in the
            routes.
        metadata: for the call.
        events: is told about every batch submitted, exactly once.
    """

    def __init__(
        self,
        broker: str,
        connect: "Callable[[], tuple[str, BrokerAsyncStub]]",
        metadata: tuple[tuple[str, str], ...],
        events: StreamEvents,
    ) -> None:
        self.broker = broker
        self.address: str | None = None
        """Where the stream goes, None while it is not open."""
        self._connect = connect
        self._metadata = metadata
        self._events = events
        self._outgoing: deque[bytes] = deque()
        # Submitted and not answered, oldest first: the first request's id, the time of submission.
        self._unanswered: deque[tuple[Sequence[ProducerBatch], int, float]] = deque()
        self._wanted = asyncio.Event()
        self._call: aio.StreamStreamCall[Any, Any] | None = None
        self._requests: _Requests | None = None
        self._is_finished = False
        self._is_left = False

    def submit(
        self, batches: Sequence[ProducerBatch], message: bytes, request_id: int, now: float
    ) -> None:
        """Send batches behind those submitted before, in one message.

        Args:
            batches: several only to a broker that said that it takes them.
            message: has the requests of all.
            request_id: of the first.
            now: seconds, of the event loop's clock.
        """
        # Before anything awaits: a stream that breaks now must know of the batches.
        self._unanswered.append((batches, request_id, now))
        call = self._call
        if not self._outgoing and isinstance(call, StreamCall) and call.write_now(message):
            return
        self._outgoing.append(message)
        self._wanted.set()

    @property
    def unwritten(self) -> int:
        """How many messages have not been given to the transport yet."""
        return len(self._outgoing)

    def oldest(self) -> tuple[ProducerBatch, float] | None:
        """Return of what has waited longest for its answer the batch that is overdue first, and
        since when it waits."""
        if not self._unanswered:
            return None
        batches, _, since = self._unanswered[0]
        return min(batches, key=lambda batch: batch.deadline), since

    def interrupt(self) -> None:
        """Break the stream: the broker does not answer, or is somewhere else now."""
        if self._call is not None:
            self._call.cancel()

    def leave(self) -> None:
        """Another process stands for the broker: send this one nothing more, and end.

        Its answers are heard until it ends the stream, or `interrupt` is called.
        """
        self._is_left = True
        if not self._unanswered:
            self.interrupt()
        self.finish()

    def finish(self) -> None:
        """End the stream once everything submitted is answered; nothing more is submitted."""
        self._is_finished = True
        if self._requests is not None:
            self._requests.is_finished = True
        self._wanted.set()

    async def run(self) -> None:
        """Send and receive, until finished."""
        while True:
            await self._wanted.wait()
            if self._is_finished and not self._unanswered:
                return
            error = await self._run_once()
            if self._unanswered or not self._is_finished:
                self._break(error)
            if self._is_left:
                return

    async def _run_once(self) -> RockoonError:
        """Open a stream, use it until it breaks and return why it did."""
        try:
            self.address, stub = self._connect()
        except RockoonError as error:
            return error
        self._requests = _Requests(self._outgoing, self._wanted)
        # Requests are bytes already: see `broker_stub`.
        requests = cast("AsyncIterator[AppendRequest]", self._requests)
        call = stub.AppendStream(requests, metadata=self._metadata)
        self._call = call
        if isinstance(call, StreamCall):
            call.on_message = self._accept
        try:
            async for reply in call:
                if not self._accept(reply):
                    return Internal(service=self.broker, reason="a reply that nobody asked for")
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
        # Answers come in the order of requests. Another one means that the two ends do not agree on
        # what was sent: a guess would tell a sender that another's batch is stored.
        if not self._unanswered:
            return False
        batches, request_id, _ = self._unanswered[0]
        if len(batches) == 1 and isinstance(reply, list) and len(reply) == 1:
            # Most: the answer to one batch.
            if reply[0].request_id != request_id:
                return False
            self._unanswered.popleft()
            self._events.answered(batches[0], reply[0])
            return True
        answers: Sequence[Answer] = reply if isinstance(reply, list) else [reply, *reply.more]
        if answers[0].request_id != request_id or len(answers) != len(batches):
            return False
        self._unanswered.popleft()
        if not isinstance(reply, list) and reply.batches_max and not self._is_left:
            self._events.takes_batches(self.broker, reply.batches_max)
        for batch, answer in zip(batches, answers, strict=True):
            self._events.answered(batch, answer)
        return True

    def _break(self, error: RockoonError) -> None:
        batches = [batch for batches, _, _ in self._unanswered for batch in batches]
        if not self._is_left:
            # Who takes the next one may be an older broker.
            self._events.takes_batches(self.broker, 1)
        # Before `broken`, which may submit to the next call.
        self._unanswered.clear()
        # The broken call's request iterator may still hold the old ones, and must not take what
        # is meant for the next call. It waits for more, and nobody else would end it.
        self._outgoing.clear()
        if self._requests is not None:
            self._requests.is_finished = True
            self._requests = None
        self._wanted.set()
        self._outgoing = deque()
        self._wanted = asyncio.Event()
        self._events.broken(self.broker, batches, error)


class _Requests:
    """The requests of one call: whatever is in the queue, then whatever comes."""

    def __init__(self, outgoing: deque[bytes], wanted: asyncio.Event) -> None:
        self._outgoing = outgoing
        self._wanted = wanted
        self.is_finished = False

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> bytes:
        while not self._outgoing:
            if self.is_finished:
                raise StopAsyncIteration
            self._wanted.clear()
            await self._wanted.wait()
        return self._outgoing.popleft()
