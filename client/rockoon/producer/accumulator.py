"""Batches in the making: what a producer has taken and no broker has acknowledged yet.

Pure: no loop, clock or socket; times are given. (A future is made where a task waits.)

Invariants:
- A message is in exactly one batch, a batch belongs to one batch queue, and a batch queue's batches
  leave it in the order in which they were opened. A batch that comes back goes in again at the
  front.
- A batch queue with a queue (the sender chose it, by name or by key) has one batch out at a time:
  that is what keeps its order when a batch fails and is tried again. A batch queue without one
  (round robin) has one batch out per queue.
- `claimed_bytes` counts the messages not acknowledged that a task awaits, `unclaimed_bytes` those
  that none does. Only these have to be bounded here: a task that awaits sends nothing meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container
from math import inf

from numpy import cumsum, frombuffer, int64

from rockoon.errors import RockoonError
from rockoon.message import SendResult
from rockoon.net.append_replies import Appended, Stored
from rockoon.producer.outgoing import Extras
from rockoon.producer.sequences import BatchSequence, SequenceBook
from rockoon.producer.settings import ProducerSettings
from rockoon.producer.shipment import Shipment
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2

# A record's fixed part, the UNIQ_KEY property and a reference: what a message takes beside its
# body, near enough to bound memory by.
MESSAGE_OVERHEAD_BYTES = 160


def message_bytes(body: bytes, extras: Extras | None) -> int:
    """What a message counts for; `Producer.send` has it written out."""
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
        # 0 until the first message opens the batch: `send` has one comparison for both events.
        self.close_bytes = 0
        self.born_timestamp_ms = 0
        self.linger_end = 0.0
        self.deadline = 0.0
        # Set while it is out, and after.
        self.queue: MessageQueue | None = None
        # While it is out: together with which others.
        self.shipment: Shipment | None = None
        self.count = 0
        self.ids = b""
        # Sizes of its records, packed little-endian u32.
        self.lengths = b""
        self.tries = 0
        # An idempotent producer's: set while it is out, and kept while it may be stored.
        self.sequence: BatchSequence | None = None
        self.last_error: RockoonError | None = None
        self.is_done = False
        self.outcome: Appended | RockoonError | None = None
        # Receipts awaited before the outcome, and failures that an awaiter was told after it.
        self.awaited = 0
        self.awaited_bytes = 0
        self.seen = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._starts: list[int] | None = None

    def open(self, settings: ProducerSettings, now: float, now_ms: int) -> None:
        """It has got its first message; `now`: seconds, of the clock that deadlines are on."""
        self.close_bytes = settings.batch_bytes_max
        self.born_timestamp_ms = now_ms
        self.linger_end = now + settings.linger_ms / 1000
        self.deadline = now + settings.delivery_timeout_seconds

    def waiter(self, index: int | None = None) -> "asyncio.Future[None]":
        """Return a future for the outcome; with an index, for who awaits that message.

        Each has its own: cancelling one must not disturb the others.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        if index is not None:
            self.batch_queue.accumulator.claim(self, index)
        return future

    def complete(self, outcome: Appended | RockoonError) -> None:
        """Give the outcome, once, and let go of the messages."""
        # Kept, since results are still asked for when the bodies are gone.
        self.count = len(self.bodies)
        self.outcome = outcome
        self.is_done = True
        self.bodies = []
        self.extras = {}
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        """Wake who waits, although there is no outcome."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    @property
    def unseen_failures(self) -> int:
        """How many messages of a failed batch nobody has been told about."""
        if not isinstance(self.outcome, RockoonError):
            return 0
        return max(self.count - max(self.awaited, self.seen), 0)

    def result(self, index: int) -> SendResult:
        """Return where a message went.

        Raises:
            RockoonError: the batch failed.
        """
        outcome = self.outcome
        if isinstance(outcome, RockoonError):
            self.seen += 1
            raise fresh(outcome)
        assert outcome is not None
        assert self.queue is not None
        starts = self._starts
        if starts is None:
            starts = self._starts = [0]
            if self.count > 1:
                lengths = frombuffer(self.lengths, "<u4")
                starts = self._starts = (cumsum(lengths, dtype=int64) - lengths).tolist()
        digits = len(self.ids) // self.count
        run, first = outcome, 0
        if index and not isinstance(outcome, Stored) and outcome.more:
            run, first = self._run_of(outcome, index)
        # By their places: names cost as much as the rest of it, once for each awaited message.
        return SendResult(
            self.queue,
            run.first_queue_offset + index - first,
            run.first_physical_offset + starts[index] - starts[first],
            self.ids[index * digits : (index + 1) * digits].decode(),
            run.store_timestamp_ms,
            run.store_host,
        )

    def _run_of(self, outcome: broker_pb2.Appended, index: int) -> tuple[broker_pb2.Appended, int]:
        """Return where a message went of a batch that was stored in parts, and which came first."""
        if len(outcome.more) == self.count - 1:
            # Delayed messages: one by one.
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
    """Where messages that go the same way are collected: a topic's round robin, or one queue."""

    __slots__ = (
        "accumulator",
        "alarm_at",
        "batch",
        "busy",
        "delayed",
        "is_flushing",
        "is_ready",
        "not_before",
        "out",
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
        """Its messages wait at the broker for their time: they never share a batch with others."""
        self.topic = topic
        self.queue = queue
        self.batch = ProducerBatch(self)
        """The open one; `send` adds to it."""
        self.waiting: deque[ProducerBatch] = deque()
        """Closed ones, oldest first."""
        self.out = 0
        """How many are with a broker."""
        self.busy: set[MessageQueue] = set()
        """Queues that a batch of this batch queue is out to."""
        self.is_flushing = False
        """Somebody awaits a message of the open batch: do not let it linger."""
        self.is_ready = False
        """It is in the scheduler's ready line."""
        self.alarm_at = inf
        """When the scheduler will look at it by itself."""
        self.not_before = 0.0
        """After a failure: when to try again."""

    def __repr__(self) -> str:
        return f"BatchQueue({self.queue or self.topic})"

    @property
    def is_empty(self) -> bool:
        """Nothing waits to be sent; batches may be out."""
        return not self.waiting and not self.batch.bodies

    def head(self) -> ProducerBatch | None:
        """Return the batch to send next, maybe the open one."""
        if self.waiting:
            return self.waiting[0]
        return self.batch if self.batch.bodies else None

    def take(self) -> ProducerBatch:
        """Remove the head, which must exist."""
        if self.waiting:
            return self.waiting.popleft()
        batch = self.batch
        # Another one from here on: what is taken gets ids and numbers for the messages that it has,
        # and one more would be stored without.
        self.batch = ProducerBatch(self)
        self.is_flushing = False
        return batch

    def take_all(self) -> list[ProducerBatch]:
        """Remove every batch that is not out, oldest first."""
        taken = []
        while self.head() is not None:
            taken.append(self.take())
        return taken

    def close_batch(self) -> None:
        """Close the open batch, which has messages."""
        self.waiting.append(self.batch)
        self.batch = ProducerBatch(self)
        self.is_flushing = False

    def put_back(self, batch: ProducerBatch) -> None:
        """Put a batch that failed in front again."""
        # In front: behind newer batches its messages would change their order.
        self.waiting.appendleft(batch)


class Accumulator:
    """All batch queues of a producer, and the count of what they hold.

    Args:
        flush_now: is told when a task begins to await a message of a batch queue's open batch.
        sequences: of an idempotent producer.
    """

    def __init__(
        self, flush_now: "Callable[[BatchQueue], None]", sequences: SequenceBook | None = None
    ) -> None:
        self.sequences = sequences
        self.round_robin: dict[str, BatchQueue] = {}
        """Round robin batch queues by topic."""
        self.plain: dict[str, BatchQueue] = {}
        """Of these, by topic, those whose messages are simply put into a batch. `Producer.send`
        looks into this very dict, so it is never replaced."""
        self.by_queue: dict[MessageQueue, BatchQueue] = {}
        """Batch queues of the messages that a key or their sender gives to one queue."""
        self.delayed_round_robin: dict[str, BatchQueue] = {}
        self.delayed_by_queue: dict[MessageQueue, BatchQueue] = {}
        """The same for delayed messages."""
        self.unrouted: dict[str, BatchQueue] = {}
        """By topic: messages whose queue depends on its route, until that is known."""
        self.claimed_bytes = 0
        self.unclaimed_bytes = 0
        self.pending: dict[ProducerBatch, None] = {}
        """Opened and not completed, oldest first."""
        self._flush_now = flush_now

    @property
    def buffered_bytes(self) -> int:
        return self.claimed_bytes + self.unclaimed_bytes

    def open_round_robin(self, topic: str) -> BatchQueue:
        batch_queue = self.round_robin[topic] = BatchQueue(self, topic, None)
        return batch_queue

    def open_by_queue(self, queue: MessageQueue) -> BatchQueue:
        batch_queue = self.by_queue[queue] = BatchQueue(self, queue.topic, queue)
        return batch_queue

    def delayed_batch_queue(self, topic: str, queue: MessageQueue | None) -> BatchQueue:
        """The batch queue of delayed messages to a topic's queues in turn, or to one queue."""
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

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be sent, and nothing is out."""
        return all(
            batch_queue.is_empty and not batch_queue.out for batch_queue in self.batch_queues()
        )

    def batch_queues_of(self, topic: str) -> list[BatchQueue]:
        return [batch_queue for batch_queue in self.batch_queues() if batch_queue.topic == topic]

    def claim(self, batch: ProducerBatch, index: int) -> None:
        """A task awaits a message: its bytes are that task's now."""
        if batch.is_done:
            return
        batch.awaited += 1
        size = len(batch.bodies[index]) + MESSAGE_OVERHEAD_BYTES
        left = batch.bytes - batch.awaited_bytes
        if size > left:
            # A message that two tasks await counts twice: never take more than the batch has.
            size = left
        batch.awaited_bytes += size
        self.unclaimed_bytes -= size
        self.claimed_bytes += size
        batch_queue = batch.batch_queue
        if batch_queue.batch is batch and not batch_queue.is_flushing:
            # As `flush_now`, without another call.
            batch_queue.is_flushing = True
            self._flush_now(batch_queue)

    def flush_now(self, batch: ProducerBatch) -> None:
        """Do not let a batch linger."""
        batch_queue = batch.batch_queue
        if batch_queue.batch is batch and not batch_queue.is_flushing:
            batch_queue.is_flushing = True
            self._flush_now(batch_queue)

    def complete(self, batch: ProducerBatch, outcome: Appended | RockoonError) -> None:
        """A batch is acknowledged or given up."""
        if batch.sequence is not None and self.sequences is not None:
            # Before `batch.complete`: the next number is counted from the bodies, which that drops.
            outcome = self.sequences.completed(batch, outcome)
        self.unclaimed_bytes -= batch.bytes - batch.awaited_bytes
        self.claimed_bytes -= batch.awaited_bytes
        self.pending.pop(batch, None)
        batch.complete(outcome)

    def move(self, batch: ProducerBatch) -> None:
        """A batch's messages have been put into others: forget it and wake who awaits them."""
        self.unclaimed_bytes -= batch.bytes - batch.awaited_bytes
        self.claimed_bytes -= batch.awaited_bytes
        self.pending.pop(batch, None)
        # Not completed: a receipt that is woken without an outcome waits for its new batch.
        batch.wake()

    async def wait_pending(self) -> None:
        """Wait until all that is pending now is acknowledged or given up, or moved."""
        pending = list(self.pending)
        for batch in pending:
            self.flush_now(batch)
        for batch in pending:
            # One whose messages were moved into others is never done, and not pending any more.
            if batch in self.pending:
                await batch.waiter()

    def forget_idle(self, known: Container[str]) -> None:
        """Drop the empty batch queues of topics that are not among the known ones."""
        for batch_queue in self.batch_queues():
            # With a batch out it stays: a refusal puts the batch back into this very batch queue.
            if batch_queue.topic not in known and batch_queue.is_empty and not batch_queue.out:
                self.forget(batch_queue)

    def forget(self, batch_queue: BatchQueue) -> None:
        """Drop a batch queue; whoever empties it completes its batches."""
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
