"""Pull loop: what lies between two pulls of one queue, the same for push and pull consumers.

A pull is answered on the broker's pull stream; by a call of its own where the broker knows none.
Here are the pauses, after a failure and after an answer with nothing, what is counted, and what is
logged when a queue cannot be pulled and when it can be again. What an answer or a failure means for
the reader is the reader's: it asks, and then says which of the three it was.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rockoon.consumer.pull import (
    EmptyAnswers,
    OutOfRange,
    Pulled,
    PullLimits,
    asked_now,
    interpret,
    messages_of,
    pull,
    request_of,
    tell_pulled,
)
from rockoon.consumer.pull_stream import NoPullStreams, PullStreams, QueueSubscription
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.net.large_replies import PlainReply, Reply, refusal_of
from rockoon.subscription import Subscription
from rockoon_core.backoff import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.broker_pb2 import FOUND

log = limited(logging.getLogger(__name__))

# Messages of one answer that are taken in where they come. More are `ask`'s: what a full reader
# refuses is understood and checked twice, and in the callback nothing else is read meanwhile.
TAKEN_MAX = 32
LENGTH_BYTES = 4


class PullCounts(Protocol):
    """What is counted."""

    pulls: int
    pulls_empty: int
    pulls_failed: int


@dataclass(frozen=True, slots=True)
class PullRules:
    """How a queue is pulled."""

    limits: PullLimits = field(default_factory=PullLimits)
    check_crcs: bool = True
    """Hand out no message whose body does not have its CRC."""
    group: str = ""
    """Whose readers these are."""


class PullLoop:
    """The pulls of one queue.

    Args:
        cluster: where the broker is found.
        streams: the consumer's.
        queue: which.
        subscription: what is wanted of it.
        rules: how to pull.
        counts: counted in.
        taker: is offered messages where they come, while `ask` waits for nothing else; what it
            returns True for `ask` does not bring, and the queue is read on behind it; what it
            raises `ask` raises.
        on_taken: called when messages that `taker` has accepted are counted. Its exceptions are
            raised by `ask`.

    Attributes:
        heard_at: when the queue's broker was heard of last, loop time; at first, when this was
            made.
    """

    def __init__(
        self,
        cluster: Connection,
        streams: PullStreams,
        queue: MessageQueue,
        subscription: Subscription,
        rules: PullRules,
        counts: PullCounts,
        taker: Callable[[Pulled], bool] | None = None,
        on_taken: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._queue = queue
        self._subscription = subscription
        self._rules = rules
        self._counts = counts
        # Hooks want to know how long each pull took.
        self._taker = taker if cluster.hooks is None else None
        self._on_taken = on_taken
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._empty = EmptyAnswers(rules.limits.wait_ms)
        self._failure: type[RockoonError] | None = None
        self._offset = 0
        self._asked_at = 0.0
        self.heard_at = self._loop.time()
        # None before the first pull, and where the broker knows no streams.
        self._streamed: QueueSubscription | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._streamed is not None:
            self._streamed.end()

    async def ask(self, offset: int) -> Pulled | OutOfRange:
        """Pull once; errors as of `pull`."""
        self._counts.pulls += 1
        self._offset, self._asked_at = offset, self._loop.time()
        asked_ns = asked_now(self._cluster)
        rules = self._rules
        try:
            reply = await self._reply(offset)
        except NoPullStreams:
            self._streamed = None
            answer = await pull(
                self._cluster,
                self._queue,
                # The taker may have had messages meanwhile.
                self._offset,
                self._subscription,
                rules.limits,
                check_crcs=rules.check_crcs,
                group=rules.group,
            )
            self.heard_at = self._loop.time()
            return answer
        streamed = self._streamed
        assert streamed is not None
        # Until the answer is understood it leads nowhere.
        streamed.position = -1
        found = self._interpreted(reply)
        if isinstance(found, Pulled):
            streamed.position = found.next_offset
        tell_pulled(self._cluster, found, rules.group, asked_ns)
        return found

    def _interpreted(self, reply: Reply) -> Pulled | OutOfRange:
        check_crcs = self._rules.check_crcs
        return interpret(
            self._queue, self._offset, reply, self._subscription, check_crcs=check_crcs
        )

    def _offer(self, reply: Reply) -> bool:
        """Messages for the taker; whatever else an answer may be is left to `ask`."""
        streamed, taker = self._streamed, self._taker
        if (
            streamed is None
            or taker is None
            or reply.status != FOUND
            or reply.ended
            or len(reply.record_lengths) > TAKEN_MAX * LENGTH_BYTES
            or not (isinstance(reply, PlainReply) or refusal_of(reply) is None)
        ):
            return False
        try:
            found = messages_of(
                self._queue, self._offset, reply, self._subscription, self._rules.check_crcs
            )
        except Exception:  # noqa: BLE001 - `ask` meets the same, and raises it where it is seen
            return False
        if found.batch is None:
            return False
        try:
            if not taker(found):
                return False
            self._counts.pulls += 1
            self._offset = streamed.position = found.next_offset
            if self._failure is not None:
                self.answered()
            self._on_taken()
        except Exception as failure:
            log.exception("messages of %s cannot be taken in", self._queue)
            # Not left to `ask`: they may be in already.
            streamed.fail(failure)
        return True

    async def _reply(self, offset: int) -> Reply:
        """The next answer on the stream. Raises NoPullStreams where the broker knows none."""
        streamed = self._streamed
        if streamed is None or streamed.is_over or streamed.position != offset:
            if streamed is not None:
                streamed.end()
            request = request_of(
                self._cluster,
                self._queue,
                offset,
                self._subscription,
                self._rules.limits,
                self._rules.group,
            )
            streamed = self._streamed = self._streams.subscribe(self._queue.broker, request)
            if streamed is None:
                raise NoPullStreams
            # Pauses are for calls.
            self._empty.reset()
            if self._taker is not None:
                streamed.taker = self._offer
        try:
            return await streamed.answer()
        finally:
            self.heard_at = max(self.heard_at, streamed.heard_at)

    def note_failure(self, error: RockoonError) -> None:
        """Log why the queue cannot be pulled, once for each kind of reason."""
        if self._failure is not type(error):
            log.warning("%s cannot be pulled now: %s", self._queue, error)
        self._failure = type(error)

    async def failed(self, error: RockoonError) -> None:
        """The broker did not answer, or with an error that can pass: pause, longer each time."""
        self._counts.pulls_failed += 1
        self.note_failure(error)
        await self._cluster.pause_for_broker(self._queue.broker, self._backoff.next_seconds())

    def answered(self) -> None:
        """The broker answered."""
        self._backoff.reset()
        if self._failure is not None:
            self._failure = None
            log.info("%s can be pulled again", self._queue)

    def brought_messages(self) -> None:
        """The answer had messages."""
        self._empty.reset()

    async def brought_nothing(self, next_offset: int) -> None:
        """The answer had none: pause if it came too soon."""
        self._counts.pulls_empty += 1
        if self._streamed is not None:
            # Nothing comes on a stream before its time.
            return
        waited_seconds = self._loop.time() - self._asked_at
        moved = next_offset != self._offset
        await asyncio.sleep(self._empty.pause_seconds(waited_seconds, moved=moved))
