"""One pull: the question to the broker, and what its answer means for the reader."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rockoon.bounds import check_bounds
from rockoon.errors import BrokerUnavailable, Internal, InvalidOffset, OffsetBeyondEnd, RockoonError
from rockoon.message import Batch
from rockoon.net.connection import CALL_SECONDS_MAX, Connection
from rockoon.net.large_replies import Reply, records_of
from rockoon.subscription import Subscription
from rockoon_core.backoff import Backoff
from rockoon_core.light_dataclass import light_dataclass
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import deletion_text
from rockoon_format.record import RecordError
from rockoon_proto.v1.broker_pb2 import (
    FOUND,
    NO_MATCHED_LOGIC_QUEUE,
    NO_MESSAGE_IN_QUEUE,
    OFFSET_OVERFLOW_BADLY,
    OFFSET_TOO_SMALL,
    DeletionReason,
    PullRequest,
)

# A broker with too many waiting pulls answers at once, with nothing. Asked again every 20 ms by
# each queue beyond its bound it would soon do nothing else, so the pauses grow.
EMPTY_PAUSE_SECONDS = 0.02
EMPTY_PAUSE_SECONDS_MAX = 1.0


class EmptyAnswers:
    """When to ask for a queue again that there was nothing for.

    Args:
        wait_ms: how long its pulls are to wait; one that is not to wait is repeated quickly.
    """

    __slots__ = ("_backoff",)

    def __init__(self, wait_ms: int) -> None:
        is_to_wait = wait_ms >= EMPTY_PAUSE_SECONDS_MAX * 1000
        longest = EMPTY_PAUSE_SECONDS_MAX if is_to_wait else EMPTY_PAUSE_SECONDS
        self._backoff = Backoff(EMPTY_PAUSE_SECONDS, longest)

    def pause_seconds(self, waited_seconds: float, *, moved: bool) -> float:
        """How long to pause after an answer without messages; 0 where it was waited for.

        Args:
            waited_seconds: how long the answer took.
            moved: whether it led on in the queue.
        """
        if moved or waited_seconds >= EMPTY_PAUSE_SECONDS:
            self._backoff.reset()
            return 0.0
        return self._backoff.next_seconds()

    def reset(self) -> None:
        """There were messages."""
        self._backoff.reset()


class NoSuchRecords(Internal):
    """What a broker sent for a place cannot be decoded, or is of another place."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """How much one pull may bring and how long it may wait.

    Raises:
        InvalidArgument: a value is out of its bounds.
    """

    messages_max: int = 1024
    """1 to 65536."""
    bytes_max: int = 1 << 20
    """A first message larger than this still comes; at most 16 MiB."""
    wait_ms: int = 15_000
    """How long the broker holds a pull at the end of the queue, at most 30 000; 0: not at all."""

    def __post_init__(self) -> None:
        bounds = {"messages_max": (1, 65_536), "bytes_max": (1, 16 << 20), "wait_ms": (0, 30_000)}
        check_bounds(self, bounds)


@light_dataclass
class Pulled:
    """Messages to read, maybe none, and where to go on."""

    batch: Batch | None
    """None when there is no message."""
    offsets: Sequence[int]
    """Queue offsets of the batch, ascending."""
    next_offset: int
    size_bytes: int
    max_offset: int
    """End of the queue when the broker answered."""

    def rest(self, start: int) -> Batch | None:
        """Return the messages of the batch from index `start` on."""
        if self.batch is None or start >= len(self.batch):
            return None
        return self.batch if start == 0 else self.batch.part(start, len(self.batch))

    def intact(self) -> "Pulled":
        """Return the messages before the first that is damaged.

        Raises:
            StoreCorrupt: that is the first of all.
        """
        batch = self.batch
        if batch is None:
            return self
        count = batch.first_damaged
        if count is None:
            return self
        if count == 0:
            raise batch.damage(0)
        before = batch.part(0, count)
        return replace(
            self,
            batch=before,
            offsets=self.offsets[:count],
            next_offset=self.offsets[count],
            size_bytes=before.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The queue has no such place (any more); nothing was read."""

    queue: MessageQueue
    offset: int
    """Where reading was to go on."""
    min_offset: int
    max_offset: int
    deletion: int = 0
    """Below the oldest message: why the one at `offset` was deleted, as DeletionReason on the
    wire; 0 where the broker does not say."""

    @property
    def below_min(self) -> bool:
        """True when retention deleted what was to be read, false when the log lost its tail."""
        return self.offset < self.min_offset

    @property
    def gap(self) -> int:
        """Messages that can no longer be read."""
        return max(self.min_offset - self.offset, 0)

    def __str__(self) -> str:
        side = "below the oldest message" if self.below_min else "beyond the end"
        text = (
            f"offset {self.offset} of {self.queue} is {side}: the queue has "
            f"[{self.min_offset}, {self.max_offset})"
        )
        if not self.deletion:
            return text
        return f"{text}; {self.gap} messages {deletion_text(self.deletion)} before they were read"

    def to_error(self) -> RockoonError:
        """Return it as a row of the error table: InvalidOffset below, OffsetBeyondEnd above."""
        details = {
            "queue": self.queue,
            "offset": self.offset,
            "min_offset": self.min_offset,
            "end": self.max_offset,
        }
        if self.deletion:
            details["deletion"] = DeletionReason.Name(self.deletion)
        row = InvalidOffset if self.below_min else OffsetBeyondEnd
        return row(str(self), **details)


async def pull(
    cluster: Connection,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    limits: PullLimits,
    *,
    check_crcs: bool = True,
    group: str = "",
) -> Pulled | OutOfRange:
    """Pull once. Cancelling it is safe: a broker remembers nothing of its readers.

    Args:
        check_crcs: whether messages that are looked at are compared with their checksums.
        group: whose reader this is, for the broker's counters; empty outside groups.

    Raises:
        StoreCorrupt: the message at `offset` is damaged.
        BrokerUnavailable: the broker is away.
        RockoonError: what it answered.
    """
    asked_ns = asked_now(cluster)
    request = request_of(cluster, queue, offset, subscription, limits, group)
    reply = await cluster.call(
        cluster.broker(queue.broker).Pull,
        request,
        unavailable=BrokerUnavailable,
        timeout_seconds=limits.wait_ms / 1000 + CALL_SECONDS_MAX,
        broker=queue.broker,
    )
    answer = interpret(queue, offset, reply, subscription, check_crcs=check_crcs)
    tell_pulled(cluster, answer, group, asked_ns)
    return answer


def request_of(
    cluster: Connection,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    limits: PullLimits,
    group: str,
) -> PullRequest:
    """What a broker is asked for, by a call or on a stream."""
    return PullRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=offset,
        max_messages=limits.messages_max,
        max_bytes=limits.bytes_max,
        wait_ms=limits.wait_ms,
        tag_hashes=subscription.tag_hashes,
        sql_expression=subscription.sql_expression,
        route_revision=cluster.routes.topic_revision(queue.topic),
        group=group,
    )


def asked_now(cluster: Connection) -> int:
    """For `tell_pulled`, when a pull begins: epoch nanoseconds, 0 where nobody wants to know."""
    return 0 if cluster.hooks is None else time.time_ns()


def tell_pulled(
    cluster: Connection, answer: "Pulled | OutOfRange", group: str, asked_ns: int
) -> None:
    """Tell the hooks, if there are any, of messages that have come."""
    hooks = cluster.hooks
    if hooks is not None and isinstance(answer, Pulled) and answer.batch is not None:
        hooks.on_pulled(answer.batch, answer.batch.frames, group, asked_ns)


def interpret(
    queue: MessageQueue,
    offset: int,
    reply: Reply,
    subscription: Subscription,
    *,
    check_crcs: bool = True,
) -> Pulled | OutOfRange:
    """Say what a broker's answer to a pull from `offset` means.

    Raises:
        NoSuchRecords: the answer contradicts itself.
    """
    status = reply.status
    if status == FOUND:
        return messages_of(queue, offset, reply, subscription, check_crcs)
    if status in (OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY) or (
        # An empty queue answers so to any offset; only its beginning is a place to wait at.
        status in (NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE) and offset > 0
    ):
        return OutOfRange(queue, offset, reply.min_offset, reply.max_offset, reply.deletion)
    # Nothing for this reader; `next_offset` has moved when there were others' messages.
    return Pulled(None, (), max(reply.next_offset, offset), 0, reply.max_offset)


def messages_of(
    queue: MessageQueue,
    offset: int,
    reply: Reply,
    subscription: Subscription,
    check_crcs: bool,
) -> Pulled:
    """Decode the messages of a broker's answer with the status FOUND; see `interpret`."""
    (source, bounds), lengths = records_of(reply), reply.record_lengths
    try:
        batch = Batch(queue, source, lengths, check_crcs=check_crcs, bounds=bounds)
    except RecordError as error:
        raise NoSuchRecords(
            service=f"broker {queue.broker}", reason=f"its batch: {error}"
        ) from error
    wanted = subscription.matching(batch.columns.tags) if subscription.tags else None
    if wanted is not None and check_crcs:
        # What the tag of a damaged one was nobody can say: to leave it out would be to lose it.
        damage = batch.columns.damaged.tolist()
        wanted = sorted({*wanted, *damage}) if damage else wanted
    if wanted is not None:
        # Needed only when tags of one hash meet.
        chosen = b"".join(map(batch.columns.frame, wanted))
        sizes = np.frombuffer(lengths, "<u4")[list(wanted)]
        batch = Batch(queue, chosen, sizes, check_crcs=check_crcs)
    only, next_offset = batch.only, reply.next_offset
    if only is not None and wanted is None and offset <= only.queue_offset < next_offset:
        offsets = range(only.queue_offset, only.queue_offset + 1)
        return Pulled(batch, offsets, next_offset, batch.size_bytes, reply.max_offset)
    count = len(batch)
    if count == 0:
        return Pulled(None, (), max(reply.next_offset, offset), 0, reply.max_offset)
    first, last = batch.queue_offset_of(0), batch.queue_offset_of(-1)
    in_order = count == 1 or (last - first >= count - 1 and _ascend(batch.offsets))
    if first < offset or last >= reply.next_offset or not in_order:
        raise NoSuchRecords(
            service=f"broker {queue.broker}",
            reason=f"asked for {offset} it sent [{first}, {last}], next {reply.next_offset}",
        )
    return Pulled(
        batch,
        range(first, last + 1) if last - first == count - 1 else batch.offsets.tolist(),
        reply.next_offset,
        batch.size_bytes,
        reply.max_offset,
    )


def _ascend(offsets: NDArray[np.int64]) -> bool:
    return bool((offsets[1:] > offsets[:-1]).all())
