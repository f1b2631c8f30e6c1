"""Pull loop: pulls of one queue, with pauses, counters and log lines, for all consumers.

A pull uses the broker's pull stream, or a call if the broker has no pull streams. The module pauses
after failures and empty replies, and logs when a queue cannot be pulled and when it can be pulled
again. The reader interprets replies and failures: it calls `pull_once` and then reports the result
(`answered`, `brought_messages`, `brought_nothing` or `failed`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rockoon.consumer.pull import (
    EmptyReplies,
    Pulled,
    PullLimits,
    PullOutOfRange,
    interpret,
    messages_of,
    pull,
    pull_start_ns,
    report_pulled,
    request_of,
)
from rockoon.consumer.pull_stream import NoPullStreams, PullStreams, QueueSubscription
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.net.large_replies import PullReplyFields, Reply, refusal_of
from rockoon.subscription import Subscription
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.broker_pb2 import FOUND

log = limited(logging.getLogger(__name__))

# Maximum number of messages of a reply that `accept` gets in the receive callback. `pull_once`
# returns larger replies: a reply that a full reader rejects is decoded twice, and the callback
# blocks the connection.
ACCEPTED_MAX = 32
LENGTH_BYTES = 4


class PullCounts(Protocol):
    """Counters of a pull loop."""

    pulls: int
    pulls_empty: int
    pulls_failed: int


@dataclass(frozen=True, slots=True)
class PullRules:
    """Rules for pulling a queue."""

    limits: PullLimits = field(default_factory=PullLimits)
    check_crcs: bool = True
    """Reject messages whose body does not match its CRC."""
    group: str = ""
    """Consumer group of the reader; empty without a group."""


class PullLoop:
    """The pulls of one queue.

    Args:
        cluster: the connection.
        streams: pull streams of the consumer.
        queue: the message queue.
        subscription: filter of the messages.
        rules: rules for pulling.
        counts: counters.
        accept: called with messages in the receive callback while `pull_once` waits. If it returns
            True, `pull_once` does not return these messages and continues after them. `pull_once`
            raises its exceptions.
        on_accepted: called after accepted messages were counted. `pull_once` raises its exceptions.

    Attributes:
        heard_at: loop time of the broker's last reply; initially the time of construction.
    """

    def __init__(
        self,
        cluster: Connection,
        streams: PullStreams,
        queue: MessageQueue,
        subscription: Subscription,
        rules: PullRules,
        counts: PullCounts,
        accept: Callable[[Pulled], bool] | None = None,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._queue = queue
        self._subscription = subscription
        self._rules = rules
        self._counts = counts
        # Hooks measure each pull, so with hooks `pull_once` returns all messages.
        self._accept = accept if cluster.hooks is None else None
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._empty = EmptyReplies(rules.limits.wait_ms)
        self._failure: type[RockoonError] | None = None
        self._offset = 0
        self._started_at = 0.0
        self.heard_at = self._loop.time()
        # None before the first pull, and if the broker has no pull streams.
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

    async def pull_once(self, offset: int) -> Pulled | PullOutOfRange:
        """Pull once; for errors see `pull`."""
        self._counts.pulls += 1
        self._offset, self._started_at = offset, self._loop.time()
        start_ns = pull_start_ns(self._cluster)
        rules = self._rules
        try:
            reply = await self._reply(offset)
        except NoPullStreams:
            self._streamed = None
            answer = await pull(
                self._cluster,
                self._queue,
                # Not `offset`: `accept` may have accepted messages during this call.
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
        # Not valid until the reply is decoded: after an error the queue is subscribed again.
        streamed.position = -1
        found = self._interpreted(reply)
        if isinstance(found, Pulled):
            streamed.position = found.next_offset
        report_pulled(self._cluster, found, rules.group, start_ns)
        return found

    def _interpreted(self, reply: Reply) -> Pulled | PullOutOfRange:
        check_crcs = self._rules.check_crcs
        return interpret(
            self._queue, self._offset, reply, self._subscription, check_crcs=check_crcs
        )

    def _on_reply(self, reply: Reply) -> bool:
        """Pass messages to `accept`; return False for replies that `pull_once` must return."""
        streamed, accept = self._streamed, self._accept
        if (
            streamed is None
            or accept is None
            or reply.status != FOUND
            or reply.ended
            or len(reply.record_lengths) > ACCEPTED_MAX * LENGTH_BYTES
            or not (isinstance(reply, PullReplyFields) or refusal_of(reply) is None)
        ):
            return False
        try:
            found = messages_of(
                self._queue, self._offset, reply, self._subscription, self._rules.check_crcs
            )
        except Exception:  # noqa: BLE001 - `pull_once` decodes the reply again and raises the error
            return False
        if found.batch is None:
            return False
        try:
            if not accept(found):
                return False
            self._counts.pulls += 1
            self._offset = streamed.position = found.next_offset
            if self._failure is not None:
                self.answered()
            self._on_accepted()
        except Exception as failure:
            log.exception("messages of %s not accepted, the reader gets the error", self._queue)
            # The reply is not left to `pull_once`, because the reader may have stored its messages.
            streamed.fail(failure)
        return True

    async def _reply(self, offset: int) -> Reply:
        """Wait for the next reply on the stream. Raises NoPullStreams if the broker has none."""
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
            # Streams need no pauses after empty replies.
            self._empty.reset()
            if self._accept is not None:
                streamed.on_reply = self._on_reply
        try:
            return await streamed.answer()
        finally:
            self.heard_at = max(self.heard_at, streamed.heard_at)

    def log_failure(self, error: RockoonError) -> None:
        """Log why the queue cannot be pulled, once per class of error."""
        if self._failure is not type(error):
            log.warning("%s cannot be pulled, retrying: %s", self._queue, error)
        self._failure = type(error)

    async def failed(self, error: RockoonError) -> None:
        """A pull failed with a retriable error: count and log it, then pause, longer each time."""
        self._counts.pulls_failed += 1
        self.log_failure(error)
        await self._cluster.pause_for_broker(self._queue.broker, self._backoff.next_seconds())

    def answered(self) -> None:
        """The broker replied: reset the pauses."""
        self._backoff.reset()
        if self._failure is not None:
            self._failure = None
            log.info("%s can be pulled again", self._queue)

    def brought_messages(self) -> None:
        """The reply had messages."""
        self._empty.reset()

    async def brought_nothing(self, next_offset: int) -> None:
        """The reply had no messages: pause if the broker did not hold the pull."""
        self._counts.pulls_empty += 1
        if self._streamed is not None:
            # Streams have no early empty replies.
            return
        waited_seconds = self._loop.time() - self._started_at
        moved = next_offset != self._offset
        await asyncio.sleep(self._empty.pause_seconds(waited_seconds, moved=moved))
