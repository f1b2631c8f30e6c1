"""Batch scheduling: which batch goes to which queue, and when.

Pure: routes and times are arguments, assignments are results. `ready_queues` has the batch queues
to examine. Every other batch queue with messages waits for an event of this table. The left column
has the reason, the right one the collection or the call that makes the batch queue ready again:

- its own batch is in flight       -> `acknowledged` or `refused` of that batch
- its queues have another batch without a reply (idempotent only)
                                   -> `acknowledged`, `refused`, `expire` call `_ready_after_reply`
- its brokers have no free slot    -> `BrokerSlots.blocked` of each, until a slot is free
- its batch may linger             -> `_alarms`, and `BrokerSlots.lingering` until a broker is idle
- the pause after a request to its broker has not ended (`pause_end`) -> the same
- it or its brokers have failed    -> `_alarms`
- its brokers or its topic are not in the routes -> `_absent`, until the routes change
"""

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from rockoon.errors import BrokerUnavailable, NoWritableQueue, RockoonError, TimedOut
from rockoon.net.large_replies import Appended
from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch
from rockoon.producer.queue_selectors import RoundRobin, accepting
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue

# Maximum size of a shipment with several batches. The broker's event loop handles one gRPC message
# at a time; a message of this size occupies the loop for a millisecond.
SHIPMENT_BYTES_MAX = 1 << 20
# A batch costs producer and broker about fifty microseconds of CPU, however few messages it has.
# After a request, batches that may linger pause for this time, multiplied by the number of batches
# in the request. So a producer with a thousand queues fills its batches; with a few queues the
# pause is too short to matter.
PAUSE_SECONDS_PER_BATCH = 200e-6
PAUSE_SECONDS_MAX = 0.2


class Shipment:
    """Batches, of several queues, that are sent to a broker in one gRPC message and use one slot.

    Attributes:
        was_idle: no other shipment was in flight to the broker when this one was created, so that
            batches may join without lingering.
        count: batches in it.
        bytes: sum of the batches' sizes.
        unanswered: batches without a reply.
    """

    __slots__ = ("bytes", "count", "unanswered", "was_idle")

    def __init__(self, *, was_idle: bool) -> None:
        self.was_idle = was_idle
        self.count = 0
        self.bytes = 0
        self.unanswered = 0

    def has_room(self, batch_bytes: int, batches_max: int) -> bool:
        """Return whether a batch of `batch_bytes` fits."""
        return self.count < batches_max and self.bytes + batch_bytes <= SHIPMENT_BYTES_MAX


class BrokerSlots:
    """Shipments in flight to one broker, its failures, and the batch queues that wait for it."""

    __slots__ = (
        "backoff",
        "batches",
        "batches_max",
        "blocked",
        "error",
        "has_failed",
        "in_flight",
        "is_live",
        "lingering",
        "not_before",
        "pause_end",
        "shipment",
    )

    def __init__(self, backoff: Backoff) -> None:
        # Shipments without a reply.
        self.in_flight = 0
        # Batches of one shipment; 1 until the broker announces more.
        self.batches_max = 1
        # While batches are assigned: the shipment that further batches can join, and the batches
        # assigned so far.
        self.shipment: Shipment | None = None
        self.batches = 0
        # End of the pause after a request (seconds). During the pause only batches that are full or
        # awaited are sent.
        self.pause_end = 0.0
        self.is_live = False
        # After a failure: the time of the next attempt (seconds), and the error.
        self.not_before = 0.0
        self.error: RockoonError | None = None
        # A failure has occurred since the last success.
        self.has_failed = False
        self.backoff = backoff
        # Batch queues that wait for a free slot, in the order in which they are served.
        self.blocked: OrderedDict[BatchQueue, None] = OrderedDict()
        # Batch queues that wait until the broker is idle.
        self.lingering: dict[BatchQueue, None] = {}

    def next_pause(self) -> float:
        """Return the pause after a failure, seconds."""
        self.has_failed = True
        return self.backoff.next_seconds()

    def clear_failures(self) -> None:
        self.not_before = 0.0
        self.error = None
        self.has_failed = False
        self.backoff.reset()

    def accepts(
        self, head: ProducerBatch, now: float, in_flight_max: int, *, is_due: bool, may_wait: bool
    ) -> bool:
        """Return whether a batch may be sent to the broker now.

        An idle broker receives a batch immediately; a busy one only a batch that is full, awaited
        or has lingered. So batches grow with the load. During the pause after a request
        (`pause_end`), a batch that may wait is not sent, even if the broker is idle.

        Args:
            now: seconds.
            in_flight_max: maximum of shipments in flight.
            is_due: the batch has lingered long enough, or must not linger.
            may_wait: no task awaits the batch, and more messages can join it.
        """
        shipment = self.shipment
        is_idle = shipment.was_idle if shipment is not None else self.in_flight == 0
        if may_wait and self.pause_end > now:
            return False
        if shipment is not None and shipment.has_room(head.bytes, self.batches_max):
            return is_due or is_idle
        return (is_due or is_idle) and self.in_flight < in_flight_max


class BatchScheduler:
    """Assigns the batches of a producer to queues and shipments.

    Args:
        in_flight_max: maximum of shipments in flight to one broker.
        round_robin_start: index of the first queue that each topic's round robin chooses.

    Attributes:
        ready_queues: batch queues to examine, in order.
    """

    def __init__(
        self, accumulator: Accumulator, in_flight_max: int, round_robin_start: int = 0
    ) -> None:
        self._accumulator = accumulator
        self._in_flight_max = in_flight_max
        self._brokers: dict[str, BrokerSlots] = {}
        # Queues of each topic; in `_queues` without those of drained brokers.
        self._all_queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._drained: Collection[str] = frozenset()
        self._round_robin: dict[str, RoundRobin] = {}
        self._start = round_robin_start
        self.ready_queues: deque[BatchQueue] = deque()
        self._absent: dict[BatchQueue, None] = {}
        self._alarms: list[tuple[float, int, BatchQueue]] = []
        self._sequence = itertools.count()
        # Brokers with a shipment that further batches of this round can join.
        self._loading: list[BrokerSlots] = []
        # By topic: why its queues are unknown.
        self._unknown: dict[str, RockoonError] = {}

    # Events

    def set_queues(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Set the queues of a topic."""
        self._all_queues[topic] = tuple(queues)
        self._queues[topic] = tuple(accepting(queues, self._drained))
        self._unknown.pop(topic, None)
        self._round_robin.setdefault(topic, RoundRobin(self._start))
        self._wake_absent()

    def set_unknown(self, topic: str, error: RockoonError) -> None:
        """Record why the queues of a topic cannot be found at the moment."""
        self._unknown[topic] = error

    def drop_topic(self, topic: str) -> None:
        """Remove a deleted topic; the caller must empty its batch queues."""
        self._queues.pop(topic, None)
        self._all_queues.pop(topic, None)
        self._round_robin.pop(topic, None)
        self._unknown.pop(topic, None)

    def set_drained(self, brokers: Collection[str]) -> None:
        """Set the drained brokers. Round robin skips their queues, unless the topic has no other
        queues."""
        self._drained = brokers
        for topic, queues in self._all_queues.items():
            self._queues[topic] = tuple(accepting(queues, brokers))
        # A batch queue may wait for a drained broker.
        for batch_queue in self._accumulator.batch_queues():
            self.ready(batch_queue)

    def set_live(
        self, brokers: Collection[str], unreachable: Mapping[str, RockoonError] | None = None
    ) -> None:
        """Set the brokers that are in the routes.

        Args:
            brokers: brokers with an address.
            unreachable: the error of each broker without an address for this client.
        """
        for name in brokers:
            slots = self._slots(name)
            if not slots.is_live:
                # Failures from before its absence say nothing about the broker now.
                slots.is_live = True
                slots.clear_failures()
        for name, error in (unreachable or {}).items():
            slots = self._slots(name)
            slots.error, slots.has_failed = error, True
        for name, slots in self._brokers.items():
            slots.is_live = name in brokers
            if not slots.is_live:
                while slots.blocked:
                    self.ready(slots.blocked.popitem(last=False)[0])
        self._wake_absent()

    def on_broker_restart(self, broker: str) -> None:
        """End the pause of a broker that has a new process or a new address."""
        slots = self._slots(broker)
        if slots.not_before:
            slots.clear_failures()
            # `_alarms` does not say which batch queues wait for the end of this pause.
            for batch_queue in self._accumulator.batch_queues():
                self.ready(batch_queue)

    def set_batches_max(self, broker: str, batches_max: int) -> None:
        """Set the maximum of batches in one shipment to a broker."""
        self._slots(broker).batches_max = batches_max

    def end_pauses(self) -> None:
        """End the pauses in which batches wait for more messages: the program sends none now."""
        for slots in self._brokers.values():
            if slots.pause_end > 0.0:
                slots.pause_end = 0.0
                self._ready_lingering(slots)

    def ready(self, batch_queue: BatchQueue) -> None:
        """Have a batch queue examined: it may have a batch that can be sent."""
        if not batch_queue.is_ready:
            batch_queue.is_ready = True
            self.ready_queues.append(batch_queue)

    def acknowledged(self, batch: ProducerBatch, appended: Appended, now: float) -> None:
        """Complete a batch that is stored; `now`: seconds, on the clock of the deadlines."""
        slots = self._remove_in_flight(batch, now)
        if slots.has_failed:
            slots.clear_failures()
        batch.batch_queue.not_before = 0.0
        self._accumulator.complete(batch, appended)

    def refused(
        self,
        batch: ProducerBatch,
        error: RockoonError,
        now: float,
        *,
        blame_broker: bool,
    ) -> None:
        """Put a batch with a retriable error back to the front of its batch queue.

        Of several batches of one broker, the newest must be passed first.

        Args:
            batch: was in flight.
            now: seconds, on the clock of the deadlines.
            blame_broker: the broker would refuse other batches as well.
        """
        slots = self._remove_in_flight(batch, now)
        batch.last_error = error
        batch.tries += 1
        sequences = self._accumulator.sequences
        if sequences is not None and batch.sequence is not None and sequences.refused(batch):
            # The batch may be stored. A repeat in the same queue is detected; in another queue it
            # would be stored twice.
            batch.batch_queue = self._batch_queue_of(batch)
        batch_queue = batch.batch_queue
        batch_queue.put_back(batch)
        self.ready(batch_queue)
        if blame_broker:
            slots.error = error
            # If a stream breaks, several batches fail, which must extend the pause only once.
            if slots.not_before <= now:
                slots.not_before = now + slots.next_pause()
        else:
            # Only this queue fails; the broker's other queues stay in use.
            batch_queue.not_before = now + slots.next_pause()

    def failed(self, batch: ProducerBatch, error: RockoonError, now: float) -> None:
        """Complete a batch that was in flight with a final error."""
        self._remove_in_flight(batch, now)
        self._accumulator.complete(batch, error)

    # Assignments

    def assignments(self, now: float) -> Iterator[ProducerBatch]:
        """Yield the batches that can be sent now, each with its queue and shipment.

        A batch is in flight from the moment it is yielded.
        """
        while self._alarms and self._alarms[0][0] <= now:
            batch_queue = heapq.heappop(self._alarms)[2]
            batch_queue.alarm_at = math.inf
            self.ready(batch_queue)
        while True:
            while self.ready_queues:
                batch_queue = self.ready_queues.popleft()
                # Cleared first, because `_assign` may make the batch queue ready again.
                batch_queue.is_ready = False
                queue = self._choose_queue(batch_queue, now)
                if queue is not None:
                    yield self._assign(batch_queue, queue, now)
            if not self._ready_blocked():
                self._end_loading(now)
                return

    def assigned_single(self, batch_queue: BatchQueue, now: float) -> ProducerBatch | None:
        """As `assignments`, for the only batch queue that has a batch to send."""
        while self.ready_queues:
            # All other ready queues are empty. They leave `ready_queues` too. If `is_ready` stayed
            # set, they could not be added again.
            self.ready_queues.popleft().is_ready = False
        queue = self._choose_queue(batch_queue, now)
        if queue is None:
            return None
        batch = self._remove_head(batch_queue, queue)
        # The producer's only shipment; no other batch can join it.
        slots = self._brokers[queue.broker]
        batch.shipment = shipment = Shipment(was_idle=True)
        shipment.count = shipment.unanswered = 1
        shipment.bytes = batch.bytes
        slots.in_flight += 1
        if slots.batches_max > 1:
            slots.pause_end = now + PAUSE_SECONDS_PER_BATCH
        return batch

    def next_alarm(self) -> float | None:
        """Return when `assignments` must run without another event; None: never."""
        return self._alarms[0][0] if self._alarms else None

    def expire(self, now: float) -> list[ProducerBatch]:
        """Fail and return the batches that are past their deadline and not in flight."""
        expired = []
        for batch_queue in self._accumulator.batch_queues():
            # Deadlines ascend from the head, because a batch that is put back is older than the
            # rest.
            while (head := batch_queue.head()) is not None and head.deadline <= now:
                batch_queue.remove_head()
                self._accumulator.complete(head, head.last_error or self._reason(batch_queue))
                if head.queue is not None:
                    self._ready_after_reply(head.queue)
                expired.append(head)
        return expired

    # Internals

    def _slots(self, broker: str) -> BrokerSlots:
        slots = self._brokers.get(broker)
        if slots is None:
            slots = self._brokers[broker] = BrokerSlots(Backoff())
        return slots

    def _remove_in_flight(self, batch: ProducerBatch, now: float) -> BrokerSlots:
        assert batch.queue is not None
        batch_queue = batch.batch_queue
        batch_queue.in_flight -= 1
        batch_queue.busy.discard(batch.queue)
        slots = self._brokers[batch.queue.broker]
        shipment, batch.shipment = batch.shipment, None
        assert shipment is not None
        shipment.unanswered -= 1
        if shipment.unanswered == 0:
            # All batches of the shipment have a reply.
            slots.in_flight -= 1
            if slots.shipment is shipment:
                # All batches failed before they were sent: later batches need a slot of their own.
                slots.shipment = None
            # If the pause after the request is over, lingering batches can be sent now. Otherwise
            # an alarm of `_alarms` makes them ready at its end.
            if slots.lingering and slots.in_flight == 0 and slots.pause_end <= now:
                self._ready_lingering(slots)
            if slots.blocked:
                # The free slot goes to a batch queue that waits. Otherwise the batch queue of
                # this batch could use it again and again.
                self.ready(slots.blocked.popitem(last=False)[0])
        if batch_queue.waiting or batch_queue.batch.bodies:
            self.ready(batch_queue)
        if self._accumulator.sequences is not None:
            self._ready_after_reply(batch.queue)
        return slots

    def _ready_lingering(self, slots: BrokerSlots) -> None:
        for lingering in slots.lingering:
            self.ready(lingering)
        slots.lingering.clear()

    def _batch_queue_of(self, batch: ProducerBatch) -> BatchQueue:
        assert batch.queue is not None
        accumulator = self._accumulator
        return accumulator.by_queue.get(batch.queue) or accumulator.open_by_queue(batch.queue)

    def _ready_after_reply(self, queue: MessageQueue) -> None:
        """Make the batch queues that waited for a reply of a message queue ready: its numbered
        batch has a reply now, or has failed. A queue has at most one numbered batch without a
        reply, so the next batch can be sent."""
        accumulator = self._accumulator
        if accumulator.sequences is None:
            return
        for batch_queue in (
            accumulator.by_queue.get(queue),
            accumulator.round_robin.get(queue.topic),
        ):
            if batch_queue is not None:
                self.ready(batch_queue)

    def _assign(self, batch_queue: BatchQueue, queue: MessageQueue, now: float) -> ProducerBatch:
        batch = self._remove_head(batch_queue, queue)
        batch.shipment = self._join_shipment(self._brokers[queue.broker], batch, now)
        if batch_queue.waiting or batch_queue.batch.bodies:
            self.ready(batch_queue)
        return batch

    def _remove_head(self, batch_queue: BatchQueue, queue: MessageQueue) -> ProducerBatch:
        """Remove and return the batch that will be sent to a queue; it has no shipment yet."""
        batch = batch_queue.remove_head()
        batch.queue = queue
        # Delayed messages are not numbered, because the broker first stores them in another topic.
        sequences = None if batch_queue.delayed else self._accumulator.sequences
        if sequences is not None:
            # Numbers belong to a queue, which is known only now.
            sequences.assign(batch, queue)
        batch_queue.in_flight += 1
        batch_queue.busy.add(queue)
        return batch

    def _join_shipment(self, slots: BrokerSlots, batch: ProducerBatch, now: float) -> Shipment:
        """Add a batch to the open shipment, or to a new one if it does not fit."""
        shipment = slots.shipment
        if shipment is None or not shipment.has_room(batch.bytes, slots.batches_max):
            was_idle = slots.in_flight == 0 if shipment is None else shipment.was_idle
            shipment = Shipment(was_idle=was_idle)
            slots.in_flight += 1
            if slots.batches_max > 1:
                if slots.shipment is None:
                    self._loading.append(slots)
                slots.shipment = shipment
                if slots.blocked or slots.lingering:
                    self._ready_companions(slots, shipment, now)
        shipment.count += 1
        shipment.unanswered += 1
        shipment.bytes += batch.bytes
        if slots.shipment is shipment:
            slots.batches += 1
        return shipment

    def _ready_companions(self, slots: BrokerSlots, shipment: Shipment, now: float) -> None:
        """Make the waiting batch queues ready that can join a new shipment."""
        for _ in range(min(len(slots.blocked), slots.batches_max - 1)):
            self.ready(slots.blocked.popitem(last=False)[0])
        if shipment.was_idle and slots.pause_end <= now:
            self._ready_lingering(slots)

    def _end_loading(self, now: float) -> None:
        """Close the open shipments: they are sent when this round of assignments ends."""
        if not self._loading:
            return
        for slots in self._loading:
            pause = min(slots.batches * PAUSE_SECONDS_PER_BATCH, PAUSE_SECONDS_MAX)
            slots.pause_end = now + pause
            slots.shipment, slots.batches = None, 0
        self._loading.clear()

    def _ready_blocked(self) -> bool:
        for slots in self._brokers.values():
            free = self._in_flight_max - slots.in_flight
            while slots.blocked and free > 0:
                self.ready(slots.blocked.popitem(last=False)[0])
                free -= 1
        return bool(self.ready_queues)

    def _wake_absent(self) -> None:
        absent, self._absent = self._absent, {}
        for batch_queue in absent:
            self.ready(batch_queue)

    def _choose_queue(self, batch_queue: BatchQueue, now: float) -> MessageQueue | None:
        """Return the queue for the head of a batch queue.

        None: the batch queue has no messages, or waits for an event of the table at the start of
        this module.
        """
        open_batch = batch_queue.batch
        head = batch_queue.waiting[0] if batch_queue.waiting else open_batch
        if not head.bodies:
            return None
        if batch_queue.not_before > now:
            self._alarm(batch_queue, batch_queue.not_before)
            return None
        queues = self._queues.get(batch_queue.topic)
        if not queues:
            self._absent[batch_queue] = None
            return None
        if batch_queue.queue is not None:
            queues = (batch_queue.queue,)
        may_wait = head is open_batch and not batch_queue.is_flushing and head.tries == 0
        is_due = not may_wait or head.linger_end <= now
        sequences = None if batch_queue.delayed else self._accumulator.sequences
        robin = self._round_robin[batch_queue.topic]
        for step in range(len(queues)):
            index = (robin.next + step) % len(queues)
            queue = queues[index]
            slots = self._brokers.get(queue.broker)
            if (
                slots is not None
                and slots.is_live
                and slots.not_before <= now
                and queue not in batch_queue.busy
                and not (sequences is not None and sequences.awaits_reply(queue, head))
                and slots.accepts(head, now, self._in_flight_max, is_due=is_due, may_wait=may_wait)
            ):
                if batch_queue.queue is None:
                    robin.next = index + 1
                return queue
        self._record_waits(batch_queue, head, queues, now, is_due=is_due, may_wait=may_wait)
        return None

    def _record_waits(
        self,
        batch_queue: BatchQueue,
        head: ProducerBatch,
        queues: Sequence[MessageQueue],
        now: float,
        *,
        is_due: bool,
        may_wait: bool,
    ) -> None:
        """Record the events for which a batch queue waits; see the table of the module."""
        pauses = []
        sequences = None if batch_queue.delayed else self._accumulator.sequences
        free = {
            queue.broker
            for queue in queues
            if queue not in batch_queue.busy
            and not (sequences and sequences.awaits_reply(queue, head))
        }
        for broker in free:
            slots = self._slots(broker)
            if not slots.is_live:
                self._absent[batch_queue] = None
            elif slots.not_before > now:
                pauses.append(slots.not_before)
            elif may_wait and slots.pause_end > now:
                slots.lingering[batch_queue] = None
                pauses.append(slots.pause_end)
            elif not is_due:
                slots.lingering[batch_queue] = None
                pauses.append(head.linger_end)
            else:
                slots.blocked[batch_queue] = None
        if pauses:
            self._alarm(batch_queue, min(pauses))

    def _alarm(self, batch_queue: BatchQueue, when: float) -> None:
        if when < batch_queue.alarm_at:
            batch_queue.alarm_at = when
            heapq.heappush(self._alarms, (when, next(self._sequence), batch_queue))

    def _reason(self, batch_queue: BatchQueue) -> RockoonError:
        if batch_queue.topic in self._unknown:
            return self._unknown[batch_queue.topic]
        queues = (
            self._queues.get(batch_queue.topic, ())
            if batch_queue.queue is None
            else (batch_queue.queue,)
        )
        errors = [self._slots(queue.broker).error for queue in queues]
        for error in errors:
            if error is not None:
                return error
        if any(self._slots(queue.broker).is_live for queue in queues):
            return TimedOut(
                f"{batch_queue.queue or batch_queue.topic} accepted no messages before their"
                " deadline"
            )
        if batch_queue.queue is not None:
            return BrokerUnavailable(broker=batch_queue.queue.broker)
        return NoWritableQueue(topic=batch_queue.topic)
