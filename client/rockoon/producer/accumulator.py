"""Accumulator: messages that a producer has accepted and no broker has acknowledged, in batches.

Pure: no loop, clock or socket; times are arguments. (A future is created when a task waits.)

Invariants:
- A message is in exactly one batch, a batch belongs to one batch queue, and a batch queue's batches
  leave it in the order in which they were opened. A refused batch returns to the front.
- If the program chose the message queue of a batch queue, by name or by key, the batch queue has
  one batch in flight: that keeps the order of its messages if a batch fails and is sent again. A
  round robin batch queue has one batch in flight for each message queue.
- `awaited_bytes` counts unacknowledged messages that a task awaits, `unawaited_bytes` the rest. The
  buffer limit bounds only the rest: a task that awaits a message sends no other message meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container
from math import inf
from typing import TYPE_CHECKING

from numpy import cumsum, frombuffer, int64

from rockoon.errors import RockoonError
from rockoon.message import SendResult
from rockoon.net.large_replies import Appended, StoredBatch
from rockoon.producer.outgoing import Extras
from rockoon.producer.sequences import BatchSequence, SequenceBook
from rockoon.producer.settings import ProducerSettings
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from rockoon.producer.batch_scheduler import Shipment

# Memory of a message beside its body, estimated: the fixed part of its record, the UNIQ_KEY
# property and a reference.
MESSAGE_OVERHEAD_BYTES = 160


def message_bytes(body: bytes, extras: Extras | None) -> int:
    """Return the bytes that a message adds to the buffer; `Producer.send` has this inlined."""
    size = len(body) + MESSAGE_OVERHEAD_BYTES
    return size if extras is None else size + len(extras[0]) + len(extras[1])


class ProducerBatch:
    """Messages of one batch queue that are sent together."""

    __slots__ = (
        "_starts",
        "_waiters",
        "awaited",
        "awaited_bytes",
        "batch_queue",
        "bodies",
        "born_timestamp_ms",
        "bytes",
        "close_bytes",
        "count",
        "deadline",
        "extras",
        "fixed_id",
        "ids",
        "is_done",
        "last_error",
        "lengths",
        "linger_end",
        "outcome",
        "queue",
        "seen",
        "sequence",
        "shipment",
        "tries",
    )

    def __init__(self, batch_queue: "BatchQueue") -> None:
        self.batch_queue = batch_queue
        self.bodies: list[bytes] = []
        self.extras: dict[int, Extras] = {}
        self.bytes = 0
        # The batch is full at this size. 0 before the first message: then any size exceeds it, and
        # `send` detects by one comparison that it must open or close the batch.
        self.close_bytes = 0
        self.born_timestamp_ms = 0
        self.linger_end = 0.0
        self.deadline = 0.0
        # Set when the batch is assigned.
        self.queue: MessageQueue | None = None
        # Set while the batch is in flight.
        self.shipment: Shipment | None = None
        self.count = 0
        self.ids = b""
        # Sizes of the records, packed little-endian u32.
        self.lengths = b""
        self.tries = 0
        # Idempotent producers only: set while the batch is in flight or may be stored.
        self.sequence: BatchSequence | None = None
        # Producer id of `send_once`: the batch has it in every attempt, in every process.
        self.fixed_id: int | None = None
        self.last_error: RockoonError | None = None
        self.is_done = False
        self.outcome: Appended | RockoonError | None = None
        # Number of receipts awaited before the outcome, their bytes, and number of errors that
        # receipts have raised.
        self.awaited = 0
        self.awaited_bytes = 0
        self.seen = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._starts: list[int] | None = None

    def open(self, settings: ProducerSettings, now: float, now_ms: int) -> None:
        """Set the times of a batch with its first message; `now`: seconds, on the loop's clock."""
        self.close_bytes = settings.batch_bytes_max
        self.born_timestamp_ms = now_ms
        self.linger_end = now + settings.linger_ms / 1000
        self.deadline = now + settings.delivery_timeout_seconds

    def waiter(self, index: int | None = None) -> "asyncio.Future[None]":
        """Return a future that is done when the batch has its outcome or its messages move.

        Each caller has its own, so that it can be cancelled. `index`: the message that the caller
        awaits; None: it awaits the batch.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        if index is not None:
            self.batch_queue.accumulator.count_awaited(self, index)
        return future

    def complete(self, outcome: Appended | RockoonError) -> None:
        """Set the outcome, once, and release the messages."""
        # `result` needs the count after the bodies are released.
        self.count = len(self.bodies)
        self.outcome = outcome
        self.is_done = True
        self.bodies = []
        self.extras = {}
        if self.fixed_id is not None:
            # If an earlier call has stored the messages, they have its ids.
            self.ids = b""
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        """Wake the waiting tasks."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    @property
    def unseen_failures(self) -> int:
        """Messages of a failed batch that no task awaits or has awaited."""
        if not isinstance(self.outcome, RockoonError):
            return 0
        return max(self.count - max(self.awaited, self.seen), 0)

    def result(self, index: int) -> SendResult:
        """Return where a message is stored. Raises RockoonError: the batch failed."""
        outcome = self.outcome
        if isinstance(outcome, RockoonError):
            self.seen += 1
            raise fresh(outcome)
        assert outcome is not None
        assert self.queue is not None
        digits = len(self.ids) // self.count
        run, first, distance = outcome, 0, 0
        if index:
            if not isinstance(outcome, StoredBatch) and outcome.more:
                run, first = self._run_of(outcome, index)
            starts = self._starts
            if starts is None:
                lengths = frombuffer(self.lengths, "<u4")
                starts = self._starts = (cumsum(lengths, dtype=int64) - lengths).tolist()
            distance = starts[index] - starts[first]
        # Positional arguments: keywords would double the cost of this call, which is made for
        # each awaited message.
        return SendResult(
            self.queue,
            run.first_queue_offset + index - first,
            run.first_physical_offset + distance,
            self.ids[index * digits : (index + 1) * digits].decode(),
            run.store_timestamp_ms,
            run.store_host,
        )

    def _run_of(self, outcome: broker_pb2.Appended, index: int) -> tuple[broker_pb2.Appended, int]:
        """Return the stored run of a batch that contains a message, and the run's first index."""
        if len(outcome.more) == self.count - 1:
            # Delayed messages: each is a run.
            return (outcome, *outcome.more)[index], index
        first = 0
        for run in (outcome, *outcome.more):
            if index < first + run.messages:
                return run, first
            first += run.messages
        raise AssertionError("the broker stored less than it was sent")


def fresh(error: RockoonError) -> RockoonError:
    """Return an equal exception: one object raised in many tasks would collect all tracebacks."""
    return type(error)(str(error), **error.details)


class BatchQueue:
    """Batches with one destination: the round robin of a topic, or one queue."""

    __slots__ = (
        "accumulator",
        "alarm_at",
        "batch",
        "busy",
        "delayed",
        "in_flight",
        "is_flushing",
        "is_ready",
        "not_before",
        "queue",
        "topic",
        "waiting",
    )

    def __init__(
        self,
        accumulator: "Accumulator",
        topic: str,
        queue: MessageQueue | None,
        *,
        delayed: bool = False,
    ) -> None:
        self.accumulator = accumulator
        self.delayed = delayed
        """Its messages are delayed; a batch has either delayed or ordinary messages."""
        self.topic = topic
        self.queue = queue
        self.batch = ProducerBatch(self)
        """The open batch; `send` adds to it."""
        self.waiting: deque[ProducerBatch] = deque()
        """Closed batches, oldest first."""
        self.in_flight = 0
        """Batches in flight."""
        self.busy: set[MessageQueue] = set()
        """Queues to which a batch of this batch queue is in flight."""
        self.is_flushing = False
        """The open batch must not linger: a task awaits it or one of its messages, or the sender
        sends it within `send`."""
        self.is_ready = False
        """The batch queue is in the scheduler's `ready_queues`."""
        self.alarm_at = inf
        """Time of the scheduler's earliest alarm for it, seconds."""
        self.not_before = 0.0
        """After a failure: time of the next attempt, seconds."""

    def __repr__(self) -> str:
        return f"BatchQueue({self.queue or self.topic})"

    @property
    def is_empty(self) -> bool:
        """True without unsent messages; batches may be in flight."""
        return not self.waiting and not self.batch.bodies

    def head(self) -> ProducerBatch | None:
        """Return the batch to send next, which may be the open one."""
        if self.waiting:
            return self.waiting[0]
        return self.batch if self.batch.bodies else None

    def remove_head(self) -> ProducerBatch:
        """Remove and return the head, which must exist."""
        if self.waiting:
            return self.waiting.popleft()
        batch = self.batch
        # Later messages go to another batch, because the caller assigns ids and numbers to the
        # messages that this batch has now.
        self.batch = ProducerBatch(self)
        self.is_flushing = False
        return batch

    def remove_all(self) -> list[ProducerBatch]:
        """Remove and return every batch that is not in flight, oldest first."""
        removed = []
        while self.head() is not None:
            removed.append(self.remove_head())
        return removed

    def close_batch(self) -> None:
        """Close the open batch, which must have messages."""
        self.waiting.append(self.batch)
        self.batch = ProducerBatch(self)
        self.is_flushing = False

    def put_back(self, batch: ProducerBatch) -> None:
        """Return a batch that failed to the front, so that its messages keep their order."""
        self.waiting.appendleft(batch)


class Accumulator:
    """All batch queues of a producer, and the bytes in them.

    Args:
        flush_now: called when the open batch of a batch queue must not linger any more.
        sequences: numbers of an idempotent producer; None for another producer.
    """

    def __init__(
        self, flush_now: "Callable[[BatchQueue], None]", sequences: SequenceBook | None = None
    ) -> None:
        self.sequences = sequences
        self.round_robin: dict[str, BatchQueue] = {}
        """Round robin batch queues by topic."""
        self.plain: dict[str, BatchQueue] = {}
        """The round robin batch queues whose messages need no check of their keys. `Producer.send`
        refers to this dict, so it must never be replaced."""
        self.by_queue: dict[MessageQueue, BatchQueue] = {}
        """Batch queues of messages whose queue is chosen by an ordering key or by the program."""
        self.delayed_round_robin: dict[str, BatchQueue] = {}
        self.delayed_by_queue: dict[MessageQueue, BatchQueue] = {}
        """Batch queues of delayed messages."""
        self.unrouted: dict[str, BatchQueue] = {}
        """By topic: messages that wait until the topic's route is known."""
        self.awaited_bytes = 0
        self.unawaited_bytes = 0
        self.pending: dict[ProducerBatch, None] = {}
        """Opened, not completed batches, oldest first."""
        self._flush_now = flush_now

    @property
    def buffered_bytes(self) -> int:
        return self.awaited_bytes + self.unawaited_bytes

    def open_round_robin(self, topic: str) -> BatchQueue:
        batch_queue = self.round_robin[topic] = BatchQueue(self, topic, None)
        return batch_queue

    def open_by_queue(self, queue: MessageQueue) -> BatchQueue:
        batch_queue = self.by_queue[queue] = BatchQueue(self, queue.topic, queue)
        return batch_queue

    def delayed_batch_queue(self, topic: str, queue: MessageQueue | None) -> BatchQueue:
        """Return the batch queue of delayed messages to one queue; None: to any of the topic's."""
        if queue is None:
            batch_queue = self.delayed_round_robin.get(topic)
            if batch_queue is None:
                batch_queue = self.delayed_round_robin[topic] = BatchQueue(
                    self, topic, None, delayed=True
                )
            return batch_queue
        batch_queue = self.delayed_by_queue.get(queue)
        if batch_queue is None:
            batch_queue = self.delayed_by_queue[queue] = BatchQueue(
                self, topic, queue, delayed=True
            )
        return batch_queue

    def batch_queues(self) -> list[BatchQueue]:
        return [
            *self.round_robin.values(),
            *self.by_queue.values(),
            *self.delayed_round_robin.values(),
            *self.delayed_by_queue.values(),
            *self.unrouted.values(),
        ]

    def batch_queues_of(self, topic: str) -> list[BatchQueue]:
        return [batch_queue for batch_queue in self.batch_queues() if batch_queue.topic == topic]

    def count_awaited(self, batch: ProducerBatch, index: int) -> None:
        """Count a message as awaited, and flush its batch."""
        if batch.is_done:
            return
        batch.awaited += 1
        size = len(batch.bodies[index]) + MESSAGE_OVERHEAD_BYTES
        left = batch.bytes - batch.awaited_bytes
        if size > left:
            # If two tasks await a message, it is counted twice. The sum must not exceed the size of
            # the batch.
            size = left
        batch.awaited_bytes += size
        self.unawaited_bytes -= size
        self.awaited_bytes += size
        batch_queue = batch.batch_queue
        if batch_queue.batch is batch and not batch_queue.is_flushing:
            # `flush_now`, inlined.
            batch_queue.is_flushing = True
            self._flush_now(batch_queue)

    def flush_now(self, batch: ProducerBatch) -> None:
        """Have a batch sent without lingering."""
        batch_queue = batch.batch_queue
        if batch_queue.batch is batch and not batch_queue.is_flushing:
            batch_queue.is_flushing = True
            self._flush_now(batch_queue)

    def complete(self, batch: ProducerBatch, outcome: Appended | RockoonError) -> None:
        """Complete a batch that is acknowledged or has failed."""
        if batch.sequence is not None and self.sequences is not None:
            # Before `batch.complete` releases the bodies, whose count gives the next number.
            outcome = self.sequences.completed(batch, outcome)
        self.unawaited_bytes -= batch.bytes - batch.awaited_bytes
        self.awaited_bytes -= batch.awaited_bytes
        self.pending.pop(batch, None)
        batch.complete(outcome)

    def move(self, batch: ProducerBatch) -> None:
        """Remove a batch whose messages were moved to other batches, and wake its waiting tasks."""
        self.unawaited_bytes -= batch.bytes - batch.awaited_bytes
        self.awaited_bytes -= batch.awaited_bytes
        self.pending.pop(batch, None)
        # The batch stays incomplete: a receipt that is woken then waits for its new batch.
        batch.wake()

    async def wait_pending(self) -> None:
        """Wait until each batch that is pending now is acknowledged, has failed or was moved."""
        pending = list(self.pending)
        for batch in pending:
            self.flush_now(batch)
        for batch in pending:
            # A moved batch is never done, and not pending any more.
            if batch in self.pending:
                await batch.waiter()

    def drop_idle(self, known: Container[str]) -> None:
        """Drop the empty batch queues of topics that are not in `known`."""
        for batch_queue in self.batch_queues():
            # With a batch in flight it stays, because a refused batch returns to this object.
            is_idle = batch_queue.is_empty and not batch_queue.in_flight
            if is_idle and batch_queue.topic not in known:
                self.drop(batch_queue)

    def drop(self, batch_queue: BatchQueue) -> None:
        """Drop a batch queue; the caller must empty it and complete its batches."""
        if batch_queue.delayed and batch_queue.queue is not None:
            del self.delayed_by_queue[batch_queue.queue]
        elif batch_queue.delayed:
            del self.delayed_round_robin[batch_queue.topic]
        elif batch_queue.queue is not None:
            del self.by_queue[batch_queue.queue]
        elif self.unrouted.get(batch_queue.topic) is batch_queue:
            del self.unrouted[batch_queue.topic]
        else:
            del self.round_robin[batch_queue.topic]
            self.plain.pop(batch_queue.topic, None)
