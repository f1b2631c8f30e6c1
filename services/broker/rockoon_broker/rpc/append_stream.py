"""One AppendStream: requests are read ahead and placed at once, answers follow in their order.

Reading goes on while earlier batches wait for their sync, so many share one. It stops while too
many messages are unanswered: the sender then meets HTTP/2 flow control, and nothing piles up here.

What need not wait for anything is placed and answered in the step in which it comes (`take`): for a
message alone, each task that is woken costs as much as placing it.

A message may bring several batches (`AppendRequest.more`). What can be of them is placed together,
by one write; whatever is special about a batch, or wrong with it, is found when it is placed alone.
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
from rockoon_broker.rpc.turn_appends import Placed, TurnAppends
from rockoon_broker.store.log.batch import RoutedBatch
from rockoon_core.errors import Internal, InvalidArgument, RockoonError
from rockoon_format import kernel
from rockoon_format.resources import topic_need
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.access.callers import Caller
from rockoon_runtime.calls import SUCCESS, Call, CallTimes

log = logging.getLogger(__name__)

UNANSWERED_MAX = 64
# Of one message. Each takes some ten microseconds, in which the loop does nothing else.
BATCHES_MAX = 256
# As `Append`, which is the same for one batch.
STORED = Call("append", SUCCESS, may_wait=False)

Outcome = AppendResult | RockoonError


class Sender(Protocol):
    """Whose stream it is; a `ServerCall`."""

    @property
    def has_room(self) -> bool: ...

    @property
    def arrives_alone(self) -> bool: ...

    def may_answer(self) -> None: ...

    def queue_message(self, message: bytes) -> None: ...

    def pause_reader(self) -> None: ...

    def resume_reader(self, unhandled: bytes | None = None) -> None: ...


def reply_to(request_id: int, outcome: Outcome) -> broker_pb2.AppendReply:
    """The answer to a batch that is durable, or refused."""
    if isinstance(outcome, RockoonError):
        return broker_pb2.AppendReply(request_id=request_id, error=outcome.to_wire())
    first, *more = map(_where, outcome.runs)
    if more:
        first.more.extend(more)
    return broker_pb2.AppendReply(request_id=request_id, appended=first)


def _where(run: Run) -> broker_pb2.Appended:
    return broker_pb2.Appended(
        first_queue_offset=run.first_queue_offset,
        first_physical_offset=run.first_physical_offset,
        messages=run.messages,
        store_timestamp_ms=run.store_timestamp_ms,
        store_host=run.store_host,
    )


def reply_bytes(outcomes: Sequence[tuple[int, Outcome]], batches_max: int = 0) -> bytes:
    """The answer to the batches of a message, which are durable or refused.

    Args:
        outcomes: request id and outcome of each batch, at least one.
        batches_max: batches that one message may bring; 0 leaves it out.
    """
    if kernel.native is not None and not batches_max:
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


def unforeseen(failure: BaseException) -> RockoonError:
    """What a sender is told of a bug, which the log tells."""
    log.error("batches failed in a way that no one foresaw", exc_info=failure)
    return Internal(service="broker", reason=failure)


class AppendStream:
    """What one stream has read and not answered yet.

    Args:
        turn: appends batches that can share a write with those of other streams.
        place: appends the batch of one request.
        note_batch: called for every batch that `turn` appends.
        caller: sends the stream; None may send everything.
        calls: is told how long each batch took, from its arrival to its answer.
        clock: measures that.
    """

    def __init__(
        self,
        turn: TurnAppends,
        place: Callable[[Request], Awaitable[AppendResult]],
        note_batch: Callable[[], None],
        caller: Caller | None,
        calls: CallTimes,
        clock: Clock,
    ) -> None:
        self._turn = turn
        self._place_alone = place
        self._note_batch = note_batch
        self._caller = caller
        self._calls = calls
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Written by `read`, read by `answers`. Bounded by UNANSWERED_MAX.
        self._outcomes: deque[tuple[list[tuple[int, Outcome]], float]] = deque()
        # Messages that came and are not answered.
        self._unanswered = 0
        # `read` waits until there are fewer, `answers` until there is something to do.
        self._room: asyncio.Future[None] | None = None
        self._wanted: asyncio.Future[None] | None = None
        self._ended = False
        self._idle = True
        self._is_over = False
        self._failure: Exception | None = None
        # Told with the first answer.
        self._batches_max = BATCHES_MAX
        # The message of `take` that waits for its group: bytes, request id, sender and time.
        self._taken: tuple[bytes, int, Sender, float] | None = None
        # The caller has gone.
        self._is_gone = False
        # What `read` gets next is to be placed alone: `take` has tried.
        self._is_left_alone = False

    def take(self, message: bytes, sender: Sender) -> bool:
        """Place a message, and answer it as soon as it is; False when `read` is to have it.

        Args:
            message: it came while `read` waits for one.
            sender: is answered.
        """
        # Answers follow in their order, and others know better how to wait. Not one of several:
        # hundreds may have come at once, and it would be synced by itself before they have theirs.
        if self._unanswered or self._ended or not (sender.arrives_alone and sender.has_room):
            return False
        if len(message) >= LARGE_BYTES:
            return False
        try:
            request = append_request(message)
            sender.may_answer()
        except (DecodeError, RockoonError):
            return False
        if request.more:
            return False
        routed = self._routed(request)
        if routed is None:
            self._is_left_alone = True
            return False
        self._unanswered += 1
        came_seconds = self._turn.came(self)
        request_id = request.request_id
        try:
            placed = self._turn.place((routed,), self._resume, unanswered=1)
        except RockoonError:
            outcome = None
        except Exception as failure:  # noqa: BLE001 - logged and told
            self._answer_to(sender, request_id, unforeseen(failure), came_seconds)
            return True
        else:
            if placed is None:
                # An orderly end looks at the last call before the group is written.
                self._note_batch()
                self._taken = (message, request_id, sender, came_seconds)
                sender.pause_reader()
                return True
            outcome = placed[0]
        if outcome is None:
            self._answered()
            self._is_left_alone = True
            return False
        self._note_batch()
        self._answer_to(sender, request_id, outcome, came_seconds)
        return True

    def _resume(self, found: Placed | Exception) -> None:
        """A message of `take` has been placed with others, or is left to `read`."""
        assert self._taken is not None
        message, request_id, sender, came_seconds = self._taken
        self._taken = None
        if self._is_gone:
            return
        placed: Outcome | None
        if isinstance(found, Exception):
            placed = None if isinstance(found, RockoonError) else unforeseen(found)
        else:
            placed = found[0]
        if placed is None:
            self._answered()
            self._is_left_alone = True
            sender.resume_reader(message)
        else:
            self._answer_to(sender, request_id, placed, came_seconds)
            sender.resume_reader()
        self._wake()

    def _routed(self, request: Request) -> RoutedBatch | None:
        """The batch of a request for the group append; None if the general path has to append or
        refuse it."""
        if not isinstance(request, PlainRequest) and _is_apart(request):
            return None
        try:
            if self._caller is not None:
                self._caller.require(*topic_need("write", request.topic))
            batch = request.batch if isinstance(request, PlainRequest) else batch_of(request)
        except RockoonError:
            return None
        return tuple.__new__(RoutedBatch, (batch, request.route_revision))

    async def _place_group(self, requests: Sequence[Request]) -> Placed:
        """Append the batches that can share a write; None for each that the general path has to
        append or refuse."""
        placed: list[AppendResult | None] = [None] * len(requests)
        batches: list[RoutedBatch] = []
        indices: list[int] = []
        # The batches of a queue stay in their order: the general path gets all of them or none.
        apart = {(each.topic, each.queue_id) for each in requests if _is_apart(each)}
        for index, request in enumerate(requests):
            if apart and (request.topic, request.queue_id) in apart:
                continue
            routed = self._routed(request)
            if routed is not None:
                batches.append(routed)
                indices.append(index)
        if not batches:
            return placed
        waiting: asyncio.Future[Placed] = self._loop.create_future()
        try:
            found = self._turn.place(batches, waiting, unanswered=self._unanswered)
            if found is None:
                found = await waiting
        except RockoonError:
            # The broker does not serve: the general path raises the reason for each batch.
            return placed
        for index, result in zip(indices, found, strict=True):
            if result is not None:
                self._note_batch()
                placed[index] = result
        return placed

    def _answer_to(
        self, sender: Sender, request_id: int, outcome: Outcome, came_seconds: float
    ) -> None:
        """Answer at once, or where a sync is told; nothing is raised where nobody looks."""
        waiting = outcome.durable if isinstance(outcome, AppendResult) else None
        if waiting is not None:
            self._answer_when_told(sender, request_id, outcome, waiting, came_seconds)
            return
        left: Outcome | None = outcome
        if not self._is_over:
            left = self._left(sender, request_id, outcome, came_seconds)
        if left is not None:
            self._outcomes.append(([(request_id, left)], came_seconds))
            self._wake()

    def _answer_when_told(
        self,
        sender: Sender,
        request_id: int,
        outcome: Outcome,
        waiting: Durability,
        came_seconds: float,
    ) -> None:
        # In its place, if others come behind it.
        outcomes = [(request_id, outcome)]
        entry = (outcomes, came_seconds)

        def told(refusal: RockoonError | None) -> None:
            is_first = bool(self._outcomes) and self._outcomes[0] is entry
            is_asleep = self._wanted is not None and not self._wanted.done()
            if is_first and is_asleep and sender.has_room:
                left = self._left(sender, request_id, refusal or outcome, came_seconds)
                if left is None:
                    self._outcomes.popleft()
                else:
                    outcomes[0] = (request_id, left)
            if self._outcomes:
                self._wake()

        self._outcomes.append(entry)
        if self._is_over:
            self._wake()
        else:
            # `answers` sleeps on.
            waiting.told = told

    def _left(
        self, sender: Sender, request_id: int, outcome: Outcome, came_seconds: float
    ) -> Outcome | None:
        """Answer; returns what is left to `answers` where that may not be, or fails."""
        try:
            sender.may_answer()
            sender.queue_message(self._reply_to([(request_id, outcome)], came_seconds))
        except RockoonError:
            # `answers` is told the same.
            return outcome
        except Exception as failure:  # noqa: BLE001 - logged and told
            return unforeseen(failure)
        self._answered()
        return None

    def _reply_to(self, outcomes: Sequence[tuple[int, Outcome]], came_seconds: float) -> bytes:
        """The answer to the batches of a message, which are durable or refused."""
        took_seconds = self._clock.monotonic_seconds() - came_seconds
        for _, outcome in outcomes:
            call = STORED
            if isinstance(outcome, RockoonError):
                call = STORED._replace(answer=outcome.name.lower())
            self._calls.note(call, took_seconds)
        # Once is enough.
        batches_max, self._batches_max = self._batches_max, 0
        return reply_bytes(outcomes, batches_max)

    def _answered(self) -> None:
        self._unanswered -= 1
        self._turn.unanswered -= 1
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def read(self, requests: AsyncIterator[Request]) -> None:
        """Read and place until the sender or `end` ends it. The root of a task."""
        try:
            async for request in requests:
                if self._ended:
                    break
                if len(request.more) >= BATCHES_MAX:
                    # Not batch by batch: so many refusals would stop the loop, too.
                    raise InvalidArgument(reason=f"more than {BATCHES_MAX} batches in a message")
                self._idle = False
                self._unanswered += 1
                came_seconds = self._turn.came(self)
                outcomes = await self._place_all([request, *request.more])
                self._outcomes.append((outcomes, came_seconds))
                self._wake()
                while self._unanswered >= UNANSWERED_MAX:
                    self._room = self._loop.create_future()
                    await self._room
                self._idle = True
                if self._ended:
                    break
        except Exception as failure:  # noqa: BLE001 - `answers` raises it where the call sees it
            self._failure = failure
        finally:
            self._is_over = True
            self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def _place_all(self, requests: list[Request]) -> list[tuple[int, Outcome]]:
        if any(each.more for each in requests[1:]):
            refusal = InvalidArgument(reason="batches in batches")
            return [(each.request_id, refusal) for each in requests]
        if self._is_left_alone:
            self._is_left_alone = False
            return [await self._place(request) for request in requests]
        try:
            placed = await self._place_group(requests)
        except Exception as failure:  # noqa: BLE001 - logged and told
            # Not one by one instead: it may have come behind the write, and they would be stored
            # twice.
            refused = unforeseen(failure)
            return [(each.request_id, refused) for each in requests]
        return [
            await self._place(request) if done is None else (request.request_id, done)
            for request, done in zip(requests, placed, strict=True)
        ]

    async def _place(self, request: Request) -> tuple[int, Outcome]:
        try:
            return request.request_id, await self._place_one(request)
        except RockoonError as refusal:
            return request.request_id, refusal
        except Exception as failure:  # noqa: BLE001 - logged and told
            # A bug met by one batch; the others of the stream are none of its business.
            return request.request_id, unforeseen(failure)

    async def _place_one(self, request: Request) -> AppendResult:
        if self._caller is not None:
            self._caller.require(*topic_need("write", request.topic))
        return await self._place_alone(request)

    def end(self) -> None:
        """Take nothing more; what was placed is still answered."""
        self._ended = True
        if self._idle:
            self._is_over = True
            self._wake()

    async def answers(self) -> AsyncIterator[bytes]:
        """The answers, each as soon as its batches and all before them are durable."""
        try:
            while self._outcomes or self._taken or not self._is_over:
                if not self._outcomes:
                    self._wanted = self._loop.create_future()
                    await self._wanted
                    continue
                outcomes, came_seconds = self._outcomes.popleft()
                for index, (request_id, outcome) in enumerate(outcomes):
                    if isinstance(outcome, AppendResult) and outcome.durable is not None:
                        refusal = await outcome.durable
                        if refusal is not None:
                            outcomes[index] = request_id, refusal
                yield self._reply_to(outcomes, came_seconds)
                self._answered()
        finally:
            self._is_gone = True
            self._turn.unanswered -= self._unanswered
        if self._failure is not None:
            raise self._failure


def _is_apart(request: Request) -> bool:
    """Whether a batch always goes the general path: a traced batch has its own span."""
    return request.handling != broker_pb2.ORDINARY or bool(request.traceparent)
