"""One AppendStream: requests are read ahead and placed at once, answers follow in their order.

Reading goes on while earlier batches wait for their sync, so many share one. It stops while too
many are unanswered: the sender then meets HTTP/2 flow control, and nothing piles up here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from rockoon_broker.append import AppendResult
from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import Run
from rockoon_core.errors import Internal, RockoonError
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.calls import SUCCESS, Call, CallTimes

log = logging.getLogger(__name__)

UNANSWERED_MAX = 64
# As `Append`, which is the same for one batch.
STORED = Call("append", SUCCESS, may_wait=False)


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
        place: puts a request's batch into the log, or raises RockoonError.
        calls: is told how long each batch took, from its arrival to its answer.
        clock: measures that.
    """

    def __init__(
        self,
        place: Callable[[broker_pb2.AppendRequest], Awaitable[AppendResult]],
        calls: CallTimes,
        clock: Clock,
    ) -> None:
        self._place = place
        self._calls = calls
        self._clock = clock
        self._slots = asyncio.Semaphore(UNANSWERED_MAX)
        # Written by `read`, read by `answers`; None is the end. Bounded by `_slots`.
        self._outcomes: asyncio.Queue[tuple[int, AppendResult | RockoonError, float] | None] = (
            asyncio.Queue()
        )
        self._ended = False
        self._idle = True
        self._failure: Exception | None = None

    async def read(self, requests: AsyncIterator[broker_pb2.AppendRequest]) -> None:
        """Read and place until the sender or `end` ends it. The root of a task."""
        try:
            while not self._ended:
                await self._slots.acquire()
                request = await anext(requests, None)
                if request is None or self._ended:
                    break
                self._idle = False
                came_seconds = self._clock.monotonic_seconds()
                try:
                    outcome: AppendResult | RockoonError = await self._place(request)
                except RockoonError as refusal:
                    outcome = refusal
                except Exception as failure:
                    # A bug met by one batch; the others of the stream are none of its business.
                    log.exception("a batch failed in a way that no one foresaw")
                    outcome = Internal(service="broker", reason=repr(failure))
                self._outcomes.put_nowait((request.request_id, outcome, came_seconds))
                self._idle = True
        except Exception as failure:  # noqa: BLE001 - `answers` raises it where the call sees it
            self._failure = failure
        finally:
            self._outcomes.put_nowait(None)

    def end(self) -> None:
        """Take nothing more; what was placed is still answered."""
        self._ended = True
        if self._idle:
            self._outcomes.put_nowait(None)

    async def answers(self) -> AsyncIterator[broker_pb2.AppendReply]:
        """The answers, each as soon as its batch and all before it are durable."""
        while (item := await self._outcomes.get()) is not None:
            request_id, outcome, came_seconds = item
            if isinstance(outcome, AppendResult) and outcome.durable is not None:
                outcome = await outcome.durable or outcome
            took_seconds = self._clock.monotonic_seconds() - came_seconds
            if isinstance(outcome, RockoonError):
                self._calls.note(STORED._replace(answer=outcome.name.lower()), took_seconds)
                yield broker_pb2.AppendReply(request_id=request_id, error=outcome.to_wire())
            else:
                self._calls.note(STORED, took_seconds)
                yield reply_to(request_id, outcome)
            self._slots.release()
        if self._failure is not None:
            raise self._failure
