"""AppendStream calls: requests are read ahead and appended; replies have the order of the requests.

Requests are read while earlier batches wait for their sync, so that many batches share a sync. If
too many messages have no reply, reading stops, HTTP/2 flow control stops the producer, and memory
stays bounded.

A batch that need not wait is appended and acknowledged in the receive callback (`on_message`): to
wake a task costs as much as to append a single batch.

In this module a message is a gRPC message of a producer, not a record. It may contain several
batches (`AppendRequest.more`). One write appends the batches of a group. If a batch must wait, is
special or is invalid, the general path (`Broker.append`) appends or refuses it.

Messages that arrive on several streams in one iteration of the event loop are one group. A single
message is appended immediately. A group is collected, until the end of the iteration, only if a
message of another stream has no reply or has just arrived, or if the last group had several
messages.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from rockoon_broker.append import AppendResult, Durability
from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.rpc.large_requests import (
    LARGE_BYTES,
    PlainRequest,
    Request,
    append_request,
    batch_of,
)
from rockoon_broker.store.log.batch import RoutedBatch
from rockoon_core.errors import Internal, InvalidArgument, RockoonError
from rockoon_format import kernel
from rockoon_format.names import DERIVED_TOPIC_BYTES_MAX, topic_need
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.access.callers import Caller
from rockoon_runtime.error_guard import SUCCESS, Call, CallTimes

log = logging.getLogger(__name__)

# Maximum of messages without a reply, per stream.
UNANSWERED_MAX = 64
# Maximum of topics that the broker reports for the producer of a stream.
TOPICS_MAX = 64
# Maximum of batches in one message. Each blocks the loop for about ten microseconds.
BATCHES_MAX = 256
# Limits of a group. In a larger group, the first message would wait longer for the group than a
# separate write of this message takes.
GROUP_BATCHES_MAX = 256
GROUP_BYTES_MAX = 1 << 20
# If each message gets its reply in the receive callback, no message is without a reply when the
# next one arrives. Then `unanswered` does not show that several producers send. So a group is also
# collected after two messages of different streams within this time.
MOMENT_SECONDS = 200e-6
# Counted as calls of `Append`, which does the same for one batch.
STORED = Call("append", SUCCESS, may_wait=False)

Outcome = AppendResult | RockoonError

AppendResults = Sequence[AppendResult | None]
"""Results of a message's batches. None: not written; the general path appends or refuses it."""

Waiting = asyncio.Future[AppendResults] | Callable[[AppendResults | Exception], None]
"""Receives the results of a message in a group, or the exception of the write: a future, which is
cancelled with its stream, or a callback, which must not raise."""


class AppendCall(Protocol):
    """The methods of a producer's call that an append stream uses; see `ServerCall`, which
    implements them."""

    @property
    def has_room(self) -> bool: ...

    def replies_now(self) -> bool: ...

    def check_may_answer(self) -> None: ...

    def queue_message(self, message: bytes) -> None: ...

    def pause_reader(self) -> None: ...

    def resume_reader(self, unhandled: bytes | None = None) -> None: ...


def reply_to(request_id: int, outcome: Outcome) -> broker_pb2.AppendReply:
    """Return the reply to a batch that is durable or refused."""
    if isinstance(outcome, RockoonError):
        return broker_pb2.AppendReply(request_id=request_id, error=outcome.to_wire())
    first, *more = map(_run_to_wire, outcome.runs)
    if more:
        first.more.extend(more)
    return broker_pb2.AppendReply(request_id=request_id, appended=first)


def _run_to_wire(run: Run) -> broker_pb2.Appended:
    return broker_pb2.Appended(
        first_queue_offset=run.first_queue_offset,
        first_physical_offset=run.first_physical_offset,
        messages=run.messages,
        store_timestamp_ms=run.store_timestamp_ms,
        store_host=run.store_host,
    )


def reply_bytes(outcomes: Sequence[tuple[int, Outcome]], batches_max: int = 0) -> bytes:
    """Return the serialised reply to a message whose batches are durable or refused.

    Args:
        outcomes: request id and outcome of each batch, at least one.
        batches_max: maximum of batches in a message, for the producer; 0: not in the reply.
    """
    if not batches_max:
        stored: list[tuple[int, Run]] = []
        for request_id, outcome in outcomes:
            if isinstance(outcome, AppendResult) and len(outcome.runs) == 1:
                stored.append((request_id, outcome.runs[0]))
        if len(stored) == len(outcomes):
            made: bytes | None = kernel.native.append_reply(stored)
            if made is not None:
                return made
    reply, *more = [reply_to(request_id, outcome) for request_id, outcome in outcomes]
    if more:
        reply.more.extend(more)
    reply.batches_max = batches_max
    return reply.SerializeToString()


def unexpected_error(failure: BaseException) -> RockoonError:
    """Log a bug and return the error for the producer."""
    log.error("unexpected error while appending a batch (bug)", exc_info=failure)
    return Internal(service="broker", reason=failure)


class GroupAppends:
    """Groups of batches from all streams of a broker. Used by the event loop's thread only.

    Args:
        append_group: appends the batches of messages by one write; an exception is for all of them.
        clock: measures the time between messages.

    Attributes:
        append_group: as the argument; replaced when the broker begins or ends to serve.
    """

    def __init__(
        self,
        append_group: Callable[[Sequence[Sequence[RoutedBatch]]], Sequence[AppendResults]],
        clock: Clock,
    ) -> None:
        self.append_group = append_group
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._collected: list[tuple[Sequence[RoutedBatch], Waiting]] = []
        self._batches = self._bytes = 0
        self._flushing: asyncio.Handle | None = None
        # Messages of several streams have just arrived, or were in the last group.
        self._expects_more = False
        # Messages of all streams that have arrived and have no reply.
        self.unanswered = 0
        # Stream and time of the last message.
        self._last_stream: object = None
        self._last_seconds = 0.0

    def request_received(self, stream: object) -> float:
        """Count a message without a reply; return its time in monotonic seconds.

        Args:
            stream: identifies the stream of the message.
        """
        self.unanswered += 1
        now = self._clock.monotonic_seconds()
        if stream is not self._last_stream:
            self._last_stream = stream
            self._expects_more |= now - self._last_seconds < MOMENT_SECONDS
        self._last_seconds = now
        return now

    def append(
        self, batches: Sequence[RoutedBatch], waiting: Waiting, *, unanswered: int
    ) -> AppendResults | None:
        """Append the batches of a message, immediately or in a group.

        Args:
            batches: see `Broker.append_group`.
            waiting: receives the results, if this call returns None.
            unanswered: messages of the same stream without a reply, including this one.

        Returns:
            The results; None if they come at the end of this iteration of the loop.

        Raises:
            Exception: `append_group` has raised it for a message that is appended immediately.
        """
        if not (self._expects_more or self._collected or self.unanswered > unanswered):
            return self.append_group((batches,))[0]
        count, size = len(batches), 0
        for each in batches:
            size += each.batch.frames_bytes
        # The group is full: append it without this message, whose `waiting` must not be called
        # before this call returns.
        if self._batches + count > GROUP_BATCHES_MAX or self._bytes + size > GROUP_BYTES_MAX:
            self._flush()
        self._collected.append((batches, waiting))
        self._batches += count
        self._bytes += size
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)
        return None

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        # Without the messages of cancelled streams.
        collected = [
            each
            for each in self._collected
            if not (isinstance(each[1], asyncio.Future) and each[1].done())
        ]
        self._collected, self._batches, self._bytes = [], 0, 0
        self._expects_more = len(collected) > 1
        results: Sequence[AppendResults | Exception] = ()
        if collected:
            try:
                results = self.append_group([batches for batches, _ in collected])
            except Exception as failure:  # noqa: BLE001 - each waiting stream gets it
                results = [failure] * len(collected)
        for (_, waiting), found in zip(collected, results, strict=True):
            if not isinstance(waiting, asyncio.Future):
                waiting(found)
            elif isinstance(found, Exception):
                waiting.set_exception(found)
            else:
                waiting.set_result(found)


class AppendStreamCall:
    """One AppendStream call: reads its requests, appends their batches, and yields the replies.

    Args:
        groups: appends batches that can share a write with those of other streams.
        append: appends the batch of one request on the general path.
        record_batch: called for each batch that `groups` appends.
        caller: the client of the stream; None may send to each topic.
        calls: records the time of each batch, from its arrival to its reply.
        clock: measures the time.

    Attributes:
        topics: the first `TOPICS_MAX` topics of its batches, including refused batches.
        last_seconds: time of its last message, monotonic; 0.0 if there was none.
    """

    def __init__(
        self,
        groups: GroupAppends,
        append: Callable[[Request], Awaitable[AppendResult]],
        record_batch: Callable[[], None],
        caller: Caller | None,
        calls: CallTimes,
        clock: Clock,
    ) -> None:
        self.topics: dict[str, None] = {}
        self.last_seconds = 0.0
        self._groups = groups
        self._append_single = append
        self._record_batch = record_batch
        self._caller = caller
        self._calls = calls
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Outcomes of messages and their times of arrival. `read` and `on_message` add them, and
        # `answers` removes them. Bounded by UNANSWERED_MAX.
        self._outcomes: deque[tuple[list[tuple[int, Outcome]], float]] = deque()
        # Messages without a reply.
        self._unanswered = 0
        # `read` waits until there are fewer of them, `answers` until it has something to do.
        self._room: asyncio.Future[None] | None = None
        self._wanted: asyncio.Future[None] | None = None
        # `end` was called: no further message is read.
        self._ended = False
        # `read` waits for a message.
        self._idle = True
        # No message arrives any more: `read` has ended, or `end` was called while `read` waited.
        self._requests_ended = False
        self._failure: Exception | None = None
        # Sent with the first reply, then 0.
        self._batches_max = BATCHES_MAX
        # Message of `on_message` that waits for its group: bytes, request id, sender and time.
        self._grouped: tuple[bytes, int, AppendCall, float] | None = None
        # `answers` has ended with the call: no reply can be sent.
        self._is_closed = False
        # The general path appends the next message of `read`: `on_message` has found that the group
        # append cannot.
        self._skips_group = False

    def on_message(self, message: bytes, sender: AppendCall) -> bool:
        """Append a message and reply as soon as it is durable.

        Args:
            message: it arrived while `read` waits for a message.
            sender: sends the reply.

        Returns:
            False: nothing was done, and `read` must get the message.
        """
        # If an earlier message has no reply, this one must wait for it, and only `read` and
        # `answers` can wait. If more messages have arrived, `read` appends all before their sync;
        # here this one would be synced alone.
        if self._unanswered or self._ended or not sender.replies_now():
            return False
        if len(message) >= LARGE_BYTES:
            return False
        try:
            request = append_request(message)
            sender.check_may_answer()
        except (DecodeError, RockoonError):
            return False
        if request.more:
            return False
        routed = self._routed(request)
        if routed is None:
            self._skips_group = True
            return False
        self._unanswered += 1
        received_seconds = self.last_seconds = self._groups.request_received(self)
        request_id = request.request_id
        try:
            results = self._groups.append((routed,), self._on_group, unanswered=1)
        except RockoonError:
            outcome = None
        except Exception as failure:  # noqa: BLE001 - logged, and the producer gets an error
            self._answer(sender, request_id, unexpected_error(failure), received_seconds)
            return True
        else:
            if results is None:
                # Now, not after the write: an orderly stop checks the time of the last call.
                self._record_batch()
                self._grouped = (message, request_id, sender, received_seconds)
                sender.pause_reader()
                return True
            outcome = results[0]
        if outcome is None:
            self._request_done()
            self._skips_group = True
            return False
        self._record_batch()
        self._answer(sender, request_id, outcome, received_seconds)
        return True

    def _on_group(self, found: AppendResults | Exception) -> None:
        """Reply to the message of `on_message` after its group is written, or pass it to `read`."""
        assert self._grouped is not None
        message, request_id, sender, received_seconds = self._grouped
        self._grouped = None
        if self._is_closed:
            return
        outcome: Outcome | None
        if isinstance(found, Exception):
            outcome = None if isinstance(found, RockoonError) else unexpected_error(found)
        else:
            outcome = found[0]
        if outcome is None:
            self._request_done()
            self._skips_group = True
            sender.resume_reader(message)
        else:
            self._answer(sender, request_id, outcome, received_seconds)
            sender.resume_reader()
        self._wake()

    def _routed(self, request: Request) -> RoutedBatch | None:
        """Return the batch of a request for the group append.

        None: the general path must append or refuse it.
        """
        if not isinstance(request, PlainRequest) and _is_special(request):
            return None
        try:
            if self._caller is not None:
                self._caller.require(*topic_need("write", request.topic))
            batch = request.batch if isinstance(request, PlainRequest) else batch_of(request)
        except RockoonError:
            return None
        if batch.topic not in self.topics:
            self._add_topic(batch.topic)
        return tuple.__new__(RoutedBatch, (batch, request.route_revision))

    def _add_topic(self, topic: str) -> None:
        if len(self.topics) < TOPICS_MAX and len(topic) <= DERIVED_TOPIC_BYTES_MAX:
            self.topics[topic] = None

    async def _append_group(self, requests: Sequence[Request]) -> AppendResults:
        """Append the batches of a message that can share a write."""
        results: list[AppendResult | None] = [None] * len(requests)
        batches: list[RoutedBatch] = []
        indices: list[int] = []
        # To keep their order, the general path handles all batches of a queue, or none.
        special = {(each.topic, each.queue_id) for each in requests if _is_special(each)}
        for index, request in enumerate(requests):
            if special and (request.topic, request.queue_id) in special:
                continue
            routed = self._routed(request)
            if routed is not None:
                batches.append(routed)
                indices.append(index)
        if not batches:
            return results
        waiting: asyncio.Future[AppendResults] = self._loop.create_future()
        try:
            found = self._groups.append(batches, waiting, unanswered=self._unanswered)
            if found is None:
                found = await waiting
        except RockoonError:
            # The broker does not serve: the general path raises the reason for each batch.
            return results
        for index, result in zip(indices, found, strict=True):
            if result is not None:
                self._record_batch()
                results[index] = result
        return results

    def _answer(
        self, sender: AppendCall, request_id: int, outcome: Outcome, received_seconds: float
    ) -> None:
        """Reply now, or in the callback of the sync. Raises nothing: it runs in callbacks."""
        durable = outcome.durable if isinstance(outcome, AppendResult) else None
        if durable is not None:
            self._answer_when_durable(sender, request_id, outcome, durable, received_seconds)
            return
        unsent: Outcome | None = outcome
        if not self._requests_ended:
            unsent = self._send_reply(sender, request_id, outcome, received_seconds)
        if unsent is not None:
            self._outcomes.append(([(request_id, unsent)], received_seconds))
            self._wake()

    def _answer_when_durable(
        self,
        sender: AppendCall,
        request_id: int,
        outcome: Outcome,
        durable: Durability,
        received_seconds: float,
    ) -> None:
        # In `_outcomes`, so that replies to later messages follow it.
        outcomes = [(request_id, outcome)]
        entry = (outcomes, received_seconds)

        def on_settled(refusal: RockoonError | None) -> None:
            is_first = bool(self._outcomes) and self._outcomes[0] is entry
            is_asleep = self._wanted is not None and not self._wanted.done()
            if is_first and is_asleep and sender.has_room:
                unsent = self._send_reply(sender, request_id, refusal or outcome, received_seconds)
                if unsent is None:
                    self._outcomes.popleft()
                else:
                    outcomes[0] = (request_id, unsent)
            if self._outcomes:
                self._wake()

        self._outcomes.append(entry)
        if self._requests_ended:
            self._wake()
        else:
            # `answers` is not woken: the callback sends the reply.
            durable.on_settled = on_settled

    def _send_reply(
        self, sender: AppendCall, request_id: int, outcome: Outcome, received_seconds: float
    ) -> Outcome | None:
        """Send a reply; return None, or the outcome that `answers` must report instead."""
        try:
            sender.check_may_answer()
            made = None
            if (
                not self._batches_max
                and isinstance(outcome, AppendResult)
                and len(outcome.runs) == 1
            ):
                # The common case, without the loops of `_reply_to`.
                made = kernel.native.append_reply([(request_id, outcome.runs[0])])
            if made is None:
                made = self._reply_to([(request_id, outcome)], received_seconds)
            else:
                self._calls.record(STORED, self._clock.monotonic_seconds() - received_seconds)
            sender.queue_message(made)
        except RockoonError:
            # `answers` gets the same error, and raises it in the call.
            return outcome
        except Exception as failure:  # noqa: BLE001 - logged, and the producer gets an error
            return unexpected_error(failure)
        self._request_done()
        return None

    def _reply_to(self, outcomes: Sequence[tuple[int, Outcome]], received_seconds: float) -> bytes:
        """Record the times of a message's batches and return its serialised reply."""
        seconds = self._clock.monotonic_seconds() - received_seconds
        for _, outcome in outcomes:
            call = STORED
            if isinstance(outcome, RockoonError):
                call = STORED._replace(answer=outcome.name.lower())
            self._calls.record(call, seconds)
        batches_max, self._batches_max = self._batches_max, 0
        return reply_bytes(outcomes, batches_max)

    def _request_done(self) -> None:
        self._unanswered -= 1
        self._groups.unanswered -= 1
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def read(self, requests: AsyncIterator[Request]) -> None:
        """Read and append requests until the producer or `end` ends the stream. Root of a task."""
        try:
            async for request in requests:
                if self._ended:
                    break
                if len(request.more) >= BATCHES_MAX:
                    # One error for the stream: an error per batch would block the loop as well.
                    raise InvalidArgument(reason=f"more than {BATCHES_MAX} batches in a message")
                self._idle = False
                self._unanswered += 1
                received_seconds = self.last_seconds = self._groups.request_received(self)
                outcomes = await self._append_all([request, *request.more])
                self._outcomes.append((outcomes, received_seconds))
                self._wake()
                while self._unanswered >= UNANSWERED_MAX:
                    self._room = self._loop.create_future()
                    await self._room
                self._idle = True
                if self._ended:
                    break
        except Exception as failure:  # noqa: BLE001 - `answers` raises it in the call
            self._failure = failure
        finally:
            self._requests_ended = True
            self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def _append_all(self, requests: list[Request]) -> list[tuple[int, Outcome]]:
        if any(each.more for each in requests[1:]):
            refusal = InvalidArgument(reason="batches in batches")
            return [(each.request_id, refusal) for each in requests]
        if self._skips_group:
            self._skips_group = False
            return [await self._append(request) for request in requests]
        try:
            results = await self._append_group(requests)
        except Exception as failure:  # noqa: BLE001 - logged, and the producer gets an error
            # The general path is not tried: the write may have succeeded, and the batches would be
            # stored twice.
            refused = unexpected_error(failure)
            return [(each.request_id, refused) for each in requests]
        return [
            await self._append(request) if done is None else (request.request_id, done)
            for request, done in zip(requests, results, strict=True)
        ]

    async def _append(self, request: Request) -> tuple[int, Outcome]:
        try:
            if self._caller is not None:
                self._caller.require(*topic_need("write", request.topic))
            if request.topic not in self.topics:
                self._add_topic(request.topic)
            return request.request_id, await self._append_single(request)
        except RockoonError as refusal:
            return request.request_id, refusal
        except Exception as failure:  # noqa: BLE001 - logged, and the producer gets an error
            # A bug that concerns one batch must not end the stream.
            return request.request_id, unexpected_error(failure)

    def end(self) -> None:
        """Read no more requests; appended batches still get their replies."""
        self._ended = True
        if self._idle:
            self._requests_ended = True
            self._wake()

    async def answers(self) -> AsyncIterator[bytes]:
        """Yield the replies, each once its batches and all earlier ones are durable or refused."""
        try:
            while self._outcomes or self._grouped or not self._requests_ended:
                if not self._outcomes:
                    self._wanted = self._loop.create_future()
                    await self._wanted
                    continue
                outcomes, received_seconds = self._outcomes.popleft()
                for index, (request_id, outcome) in enumerate(outcomes):
                    if isinstance(outcome, AppendResult) and outcome.durable is not None:
                        refusal = await outcome.durable
                        if refusal is not None:
                            outcomes[index] = request_id, refusal
                yield self._reply_to(outcomes, received_seconds)
                self._request_done()
        finally:
            self._is_closed = True
            self._groups.unanswered -= self._unanswered
        if self._failure is not None:
            raise self._failure


def _is_special(request: Request) -> bool:
    """Return whether the general path must handle a batch: delayed, half, or with its own span."""
    return request.handling != broker_pb2.ORDINARY or bool(request.traceparent)
