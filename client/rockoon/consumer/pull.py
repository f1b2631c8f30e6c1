"""One pull: the request to the broker, and the interpretation of its reply."""

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
from rockoon_core.clock import Backoff
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

# A broker with too many waiting pulls replies immediately without messages. The pauses grow,
# because retries every 20 ms from many queues would overload it.
EMPTY_PAUSE_SECONDS = 0.02
EMPTY_PAUSE_SECONDS_MAX = 1.0


class EmptyReplies:
    """Pauses before the next pull of a queue after empty replies. `wait_ms`: time for which the
    broker is to hold the pulls. With a short time, the pauses do not grow."""

    __slots__ = ("_backoff",)

    def __init__(self, wait_ms: int) -> None:
        is_to_wait = wait_ms >= EMPTY_PAUSE_SECONDS_MAX * 1000
        longest = EMPTY_PAUSE_SECONDS_MAX if is_to_wait else EMPTY_PAUSE_SECONDS
        self._backoff = Backoff(EMPTY_PAUSE_SECONDS, longest)

    def pause_seconds(self, waited_seconds: float, *, moved: bool) -> float:
        """Return the pause after an empty reply; 0 if the broker held the pull.

        Args:
            waited_seconds: time until the reply.
            moved: the reply has increased the next offset.
        """
        if moved or waited_seconds >= EMPTY_PAUSE_SECONDS:
            self._backoff.reset()
            return 0.0
        return self._backoff.next_seconds()

    def reset(self) -> None:
        """A reply had messages: the next pause is the shortest."""
        self._backoff.reset()


class NoSuchRecords(Internal):
    """The records that a broker sent cannot be decoded, or have other offsets than requested."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Limits of one pull.

    Raises:
        InvalidArgument: a value is out of its bounds.
    """

    messages_max: int = 1024
    """Maximum number of messages, 1 to 65,536."""
    bytes_max: int = 1 << 20
    """Maximum size, bytes, 1 to 16 MiB. A larger message is returned as the only one."""
    wait_ms: int = 15_000
    """Time for which the broker holds a pull at the end of the queue, milliseconds, 0 to 30,000; 0:
    it replies immediately."""

    def __post_init__(self) -> None:
        bounds = {"messages_max": (1, 65_536), "bytes_max": (1, 16 << 20), "wait_ms": (0, 30_000)}
        check_bounds(self, bounds)


@light_dataclass
class Pulled:
    """Messages of a pull, maybe none, and the offset of the next pull."""

    batch: Batch | None
    """None without messages."""
    offsets: Sequence[int]
    """Queue offsets of the batch, ascending."""
    next_offset: int
    size_bytes: int
    max_offset: int
    """End of the queue at the time of the reply."""

    def rest(self, start: int) -> Batch | None:
        """Return the messages of the batch from index `start` on."""
        if self.batch is None or start >= len(self.batch):
            return None
        return self.batch if start == 0 else self.batch.part(start, len(self.batch))

    def intact(self) -> "Pulled":
        """Return the messages before the first that is damaged. Raises StoreCorrupt: the first
        message is damaged."""
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
class PullOutOfRange:
    """Result of a pull at an offset that the queue does not have, or no longer has."""

    queue: MessageQueue
    offset: int
    """Requested offset."""
    min_offset: int
    max_offset: int
    deletion: int = 0
    """If `offset` is below the oldest message: the reason of its deletion (`DeletionReason`); 0 if
    the broker does not know it."""

    @property
    def below_min(self) -> bool:
        """True if retention deleted the message, false if the log lost its end."""
        return self.offset < self.min_offset

    @property
    def gap(self) -> int:
        """Number of messages that can no longer be read."""
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
        """Return InvalidOffset if the offset is below the oldest message, else OffsetBeyondEnd."""
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
) -> Pulled | PullOutOfRange:
    """Pull once. Cancelling it is safe, because brokers have no state of readers.

    Args:
        check_crcs: compare messages with their checksums when they are read.
        group: consumer group, for the broker's counters; empty without a group.

    Raises:
        StoreCorrupt: the message at `offset` is damaged.
        BrokerUnavailable: the broker did not reply.
        RockoonError: the broker refused the pull.
    """
    start_ns = pull_start_ns(cluster)
    request = request_of(cluster, queue, offset, subscription, limits, group)
    reply = await cluster.call(
        cluster.broker(queue.broker).Pull,
        request,
        unavailable=BrokerUnavailable,
        timeout_seconds=limits.wait_ms / 1000 + CALL_SECONDS_MAX,
        broker=queue.broker,
    )
    answer = interpret(queue, offset, reply, subscription, check_crcs=check_crcs)
    report_pulled(cluster, answer, group, start_ns)
    return answer


def request_of(
    cluster: Connection,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    limits: PullLimits,
    group: str,
) -> PullRequest:
    """Return the request of a pull, for a call or a stream."""
    return PullRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=offset,
        max_messages=limits.messages_max,
        max_bytes=limits.bytes_max,
        wait_ms=limits.wait_ms,
        tag_hashes=subscription.tag_hashes,
        sql_expression=subscription.sql_expression,
        route_revision=cluster.routes.needed_revision(queue.topic),
        group=group,
    )


def pull_start_ns(cluster: Connection) -> int:
    """Return the start time of a pull for `report_pulled`, epoch nanoseconds; 0 without hooks."""
    return 0 if cluster.hooks is None else time.time_ns()


def report_pulled(
    cluster: Connection, answer: "Pulled | PullOutOfRange", group: str, start_ns: int
) -> None:
    """Report pulled messages to the hooks, if the connection has hooks."""
    hooks = cluster.hooks
    if hooks is not None and isinstance(answer, Pulled) and answer.batch is not None:
        hooks.on_pulled(answer.batch, answer.batch.frames, group, start_ns)


def interpret(
    queue: MessageQueue,
    offset: int,
    reply: Reply,
    subscription: Subscription,
    *,
    check_crcs: bool = True,
) -> Pulled | PullOutOfRange:
    """Interpret a broker's reply to a pull from `offset`. Raises NoSuchRecords: the reply
    contradicts itself."""
    status = reply.status
    if status == FOUND:
        return messages_of(queue, offset, reply, subscription, check_crcs)
    if status in (OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY) or (
        # The statuses of a queue without messages. At offset 0 the reader waits for the first one;
        # any other offset is beyond the end.
        status in (NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE) and offset > 0
    ):
        return PullOutOfRange(queue, offset, reply.min_offset, reply.max_offset, reply.deletion)
    # No message; `next_offset` has increased if the filter excluded messages.
    return Pulled(None, (), max(reply.next_offset, offset), 0, reply.max_offset)


def messages_of(
    queue: MessageQueue,
    offset: int,
    reply: Reply,
    subscription: Subscription,
    check_crcs: bool,
) -> Pulled:
    """Decode the messages of a broker's reply with the status FOUND; see `interpret`."""
    (source, bounds), lengths = records_of(reply), reply.record_lengths
    try:
        batch = Batch(queue, source, lengths, check_crcs=check_crcs, bounds=bounds)
    except RecordError as error:
        raise NoSuchRecords(
            service=f"broker {queue.broker}", reason=f"its batch: {error}"
        ) from error
    wanted = subscription.matching(batch.columns.tags) if subscription.tags else None
    if wanted is not None and check_crcs:
        # The tag of a damaged message is unknown. If the filter excluded it, it would be lost.
        damage = batch.columns.damaged.tolist()
        wanted = sorted({*wanted, *damage}) if damage else wanted
    if wanted is not None:
        # The broker filters by hash: this removes tags with the same hash.
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
            reason=f"pulled at {offset}, it sent [{first}, {last}], next {reply.next_offset}",
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
