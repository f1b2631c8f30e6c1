"""One AppendStream: requests are read ahead and placed at once, answers follow in their order.

Reading goes on while earlier batches wait for their sync, so many share one. It stops while too
many messages are unanswered: the sender then meets HTTP/2 flow control, and nothing piles up here.

A message may bring several batches (`AppendRequest.more`). What can be of them is placed together,
by one write; whatever is special about a batch, or wrong with it, is found when it is placed alone.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from rockoon_broker.append import AppendResult
from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.rpc.large_requests import Request
from rockoon_core.errors import Internal, InvalidArgument, RockoonError
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.calls import SUCCESS, Call, CallTimes

log = logging.getLogger(__name__)

UNANSWERED_MAX = 64
# Of one message. Each takes some ten microseconds, in which the loop does nothing else.
BATCHES_MAX = 256
# As `Append`, which is the same for one batch.
STORED = Call("append", SUCCESS, may_wait=False)

Outcome = AppendResult | RockoonError


class Placing(Protocol):
    """How requests get into the log."""

    def came(self) -> None:
        """A message has come, of one request or several."""
        ...

    def went(self, messages: int = 1) -> None:
        """Messages are answered, or never will be."""
        ...

    async def together(self, requests: Sequence[Request]) -> Sequence[AppendResult | None]:
        """Place what can be by one write; None for what is to be placed alone."""
        ...

    async def alone(self, request: Request) -> AppendResult:
        """Place a batch; raises RockoonError."""
        ...


def reply_to(request_id: int, placed: AppendResult) -> broker_pb2.AppendReply:
    """The answer to a batch that is durable."""
    first, *more = map(_where, placed.runs)
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


class AppendStream:
    """What one stream has read and not answered yet.

    Args:
        placing: puts requests' batches into the log.
        calls: is told how long each batch took, from its arrival to its answer.
        clock: measures that.
    """

    def __init__(self, placing: Placing, calls: CallTimes, clock: Clock) -> None:
        self._placing = placing
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
                self._placing.came()
                came_seconds = self._clock.monotonic_seconds()
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
        try:
            placed = await self._placing.together(requests)
        except Exception as failure:
            # Not one by one instead: it may have come behind the write, and they would be stored
            # twice.
            log.exception("batches failed in a way that no one foresaw")
            refused = Internal(service="broker", reason=repr(failure))
            return [(each.request_id, refused) for each in requests]
        return [
            await self._place(request) if done is None else (request.request_id, done)
            for request, done in zip(requests, placed, strict=True)
        ]

    async def _place(self, request: Request) -> tuple[int, Outcome]:
        try:
            return request.request_id, await self._placing.alone(request)
        except RockoonError as refusal:
            return request.request_id, refusal
        except Exception as failure:
            # A bug met by one batch; the others of the stream are none of its business.
            log.exception("a batch failed in a way that no one foresaw")
            return request.request_id, Internal(service="broker", reason=repr(failure))

    def end(self) -> None:
        """Take nothing more; what was placed is still answered."""
        self._ended = True
        if self._idle:
            self._is_over = True
            self._wake()

    async def answers(self) -> AsyncIterator[broker_pb2.AppendReply]:
        """The answers, each as soon as its batches and all before them are durable."""
        batches_max = BATCHES_MAX
        try:
            while self._outcomes or not self._is_over:
                if not self._outcomes:
                    self._wanted = self._loop.create_future()
                    await self._wanted
                    continue
                outcomes, came_seconds = self._outcomes.popleft()
                reply, *more = [
                    await self._answer(request_id, outcome, came_seconds)
                    if isinstance(outcome, AppendResult) and outcome.durable is not None
                    else self._answer_now(request_id, outcome, came_seconds)
                    for request_id, outcome in outcomes
                ]
                if more:
                    reply.more.extend(more)
                if batches_max:
                    # Once is enough.
                    reply.batches_max, batches_max = batches_max, 0
                yield reply
                self._unanswered -= 1
                self._placing.went()
                if self._room is not None and not self._room.done():
                    self._room.set_result(None)
        finally:
            self._placing.went(self._unanswered)
        if self._failure is not None:
            raise self._failure

    async def _answer(
        self, request_id: int, outcome: AppendResult, came_seconds: float
    ) -> broker_pb2.AppendReply:
        assert outcome.durable is not None
        refusal = await outcome.durable
        return self._answer_now(request_id, refusal or outcome, came_seconds)

    def _answer_now(
        self, request_id: int, outcome: Outcome, came_seconds: float
    ) -> broker_pb2.AppendReply:
        took_seconds = self._clock.monotonic_seconds() - came_seconds
        if isinstance(outcome, RockoonError):
            self._calls.note(STORED._replace(answer=outcome.name.lower()), took_seconds)
            return broker_pb2.AppendReply(request_id=request_id, error=outcome.to_wire())
        self._calls.note(STORED, took_seconds)
        return reply_to(request_id, outcome)
