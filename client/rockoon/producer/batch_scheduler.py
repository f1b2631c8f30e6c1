"""Batch scheduling: which batch goes to which queue, and when.

Pure: the routes and the time come in, assignments come out. Batch queues that have something to
send and may be able to stand in `line`; every other batch queue with messages is where the event
that it waits for will find it:

- its own batch is out            -> `acknowledged` or `refused` of that batch
- its queues owe another an answer -> the same, and `expire`: `_wake_owed` (idempotent only)
- its brokers have no free slot   -> `Slots.blocked` of each, looked at when a slot is free
- its batch may linger            -> `_alarms`, and `Slots.lingering` until the broker is idle
- its broker pauses               -> the same
- its brokers or it have failed   -> `_alarms`
- its brokers are not in the routes, or its topic is not known -> `_absent`, until routes change
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from rockoon.errors import (
    BrokerUnavailable,
    NoWritableQueue,
    RockoonError,
    TimedOut,
)
from rockoon.net.append_replies import Appended
from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch
from rockoon.producer.broker_slots import PAUSE_SECONDS_MAX, PAUSE_SECONDS_PER_BATCH, Slots
from rockoon.producer.queue_selectors import RoundRobin
from rockoon.producer.sequences import SequenceBook
from rockoon.producer.shipment import Shipment
from rockoon_core.backoff import Backoff
from rockoon_core.message_queue import MessageQueue


class BatchScheduler:
    """Hands out batches.

    Args:
        accumulator: the batch queues.
        in_flight_max: shipments that one broker may have at a time.
        round_robin_start: where the first topic's round robin begins.

    Attributes:
        line: batch queues that are to be looked at.
    """

    def __init__(
        self, accumulator: Accumulator, in_flight_max: int, round_robin_start: int = 0
    ) -> None:
        self._accumulator = accumulator
        self._in_flight_max = in_flight_max
        self._brokers: dict[str, Slots] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._round_robin: dict[str, RoundRobin] = {}
        self._start = round_robin_start
        self.line: deque[BatchQueue] = deque()
        self._absent: dict[BatchQueue, None] = {}
        self._alarms: list[tuple[float, int, BatchQueue]] = []
        self._sequence = itertools.count()
        # Brokers that were given a shipment since `assignments` began.
        self._loading: list[Slots] = []
        # Why there are no queues yet.
        self._unknown: dict[str, RockoonError] = {}

    # What happens outside

    def set_queues(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """A topic's queues are these now."""
        self._queues[topic] = tuple(queues)
        self._unknown.pop(topic, None)
        self._round_robin.setdefault(topic, RoundRobin(self._start))
        self._wake_absent()

    def set_unknown(self, topic: str, error: RockoonError) -> None:
        """A topic's queues cannot be learnt at the moment."""
        self._unknown[topic] = error

    def drop_topic(self, topic: str) -> None:
        """A topic is gone; its batch queues must be emptied by the caller."""
        self._queues.pop(topic, None)
        self._round_robin.pop(topic, None)
        self._unknown.pop(topic, None)

    def set_live(
        self, brokers: Collection[str], unreachable: Mapping[str, RockoonError] | None = None
    ) -> None:
        """These brokers are in the routes now.

        Args:
            brokers: those that can be sent to.
            unreachable: those that cannot, and why.
        """
        for name in brokers:
            slots = self._slots(name)
            if not slots.is_live:
                # It was away: what it failed with then says nothing about it now.
                slots.is_live = True
                slots.forget_failures()
        for name, error in (unreachable or {}).items():
            slots = self._slots(name)
            slots.error, slots.has_failed = error, True
        for name, slots in self._brokers.items():
            slots.is_live = name in brokers
            if not slots.is_live:
                while slots.blocked:
                    self.ready(slots.blocked.popitem(last=False)[0])
        self._wake_absent()

    def restarted(self, broker: str) -> None:
        """Another process stands for a broker now, or the same one elsewhere: nothing that failed
        before keeps messages from it."""
        slots = self._slots(broker)
        if slots.not_before:
            slots.forget_failures()
            # Those that wait for the end of its pause are in `_alarms`, among others.
            for batch_queue in self._accumulator.batch_queues():
                self.ready(batch_queue)

    def set_batches_max(self, broker: str, batches_max: int) -> None:
        """A broker takes so many batches in one shipment."""
        self._slots(broker).batches_max = batches_max

    def end_pauses(self) -> None:
        """No more messages come for now: there is nothing to wait for."""
        for slots in self._brokers.values():
            if slots.pause_end > 0.0:
                slots.pause_end = 0.0
                self._ready_lingering(slots)

    def ready(self, batch_queue: BatchQueue) -> None:
        """A batch queue may have something to send: look at it."""
        if not batch_queue.is_ready:
            batch_queue.is_ready = True
            self.line.append(batch_queue)

    def acknowledged(self, batch: ProducerBatch, appended: Appended, now: float) -> None:
        """A batch is stored; `now`: seconds, of the clock that deadlines are on."""
        slots = self._returned(batch, now)
        if slots.has_failed:
            slots.forget_failures()
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
        """A batch failed in a way that can pass; it waits at the front of its batch queue again.

        Of several batches of one broker, tell the youngest first.

        Args:
            batch: it was out.
            error: why.
            now: seconds, of the clock that deadlines are on.
            blame_broker: other batches would fare no better with this broker.
        """
        slots = self._returned(batch, now)
        batch.last_error = error
        batch.tries += 1
        sequences = self._accumulator.sequences
        if sequences is not None and batch.sequence is not None and sequences.refused(batch):
            # It may be stored: only at the same queue is it known again, and elsewhere it would be
            # stored twice.
            batch.batch_queue = self._batch_queue_of(batch)
        batch_queue = batch.batch_queue
        batch_queue.put_back(batch)
        self.ready(batch_queue)
        if blame_broker:
            slots.error = error
            # Several batches fail by one breakdown: the pause grows once for it and not with each.
            if slots.not_before <= now:
                slots.not_before = now + slots.next_pause()
        else:
            # The queue is at fault, not the broker: its other queues go on.
            batch_queue.not_before = now + slots.next_pause()

    def failed(self, batch: ProducerBatch, error: RockoonError, now: float) -> None:
        """A batch that was out failed for good."""
        self._returned(batch, now)
        self._accumulator.complete(batch, error)

    # What is to be done

    def assignments(self, now: float) -> Iterator[ProducerBatch]:
        """Yield what can be sent now, to its queue and with its shipment; each batch yielded is out
        from then on."""
        while self._alarms and self._alarms[0][0] <= now:
            batch_queue = heapq.heappop(self._alarms)[2]
            batch_queue.alarm_at = math.inf
            self.ready(batch_queue)
        while True:
            while self.line:
                batch_queue = self.line.popleft()
                # Before it is examined: that may put it in line again.
                batch_queue.is_ready = False
                queue = self._examine(batch_queue, now)
                if queue is not None:
                    yield self._assign(batch_queue, queue, now)
            if not self._ready_blocked():
                self._end_loading(now)
                return

    def assigned_alone(self, batch_queue: BatchQueue, now: float) -> ProducerBatch | None:
        """As `assignments` where no other batch queue has anything that is not out."""
        while self.line:
            # Also those that are empty: who keeps the mark is never put in line again.
            self.line.popleft().is_ready = False
        queue = self._examine(batch_queue, now)
        if queue is None:
            return None
        batch = self._assign(batch_queue, queue, now)
        self._end_loading(now)
        return batch

    def next_alarm(self) -> float | None:
        """Return when to look again although nothing has happened, None for never."""
        return self._alarms[0][0] if self._alarms else None

    def expire(self, now: float) -> list[ProducerBatch]:
        """Give up, and return, the batches that are past their deadline and not out."""
        expired = []
        for batch_queue in self._accumulator.batch_queues():
            # From the front only: deadlines ascend, since what is put back is older than the rest.
            while (head := batch_queue.head()) is not None and head.deadline <= now:
                batch_queue.take()
                self._accumulator.complete(head, head.last_error or self._reason(batch_queue))
                if head.queue is not None:
                    self._wake_owed(head.queue)
                expired.append(head)
        return expired

    # Inside

    def _slots(self, broker: str) -> Slots:
        slots = self._brokers.get(broker)
        if slots is None:
            slots = self._brokers[broker] = Slots(Backoff())
        return slots

    def _returned(self, batch: ProducerBatch, now: float) -> Slots:
        assert batch.queue is not None
        batch_queue = batch.batch_queue
        batch_queue.out -= 1
        batch_queue.busy.discard(batch.queue)
        slots = self._brokers[batch.queue.broker]
        shipment, batch.shipment = batch.shipment, None
        assert shipment is not None
        shipment.left -= 1
        if shipment.left == 0:
            self._unloaded(slots, shipment, now)
        if batch_queue.waiting or batch_queue.batch.bodies:
            self.ready(batch_queue)
        if self._accumulator.sequences is not None:
            self._wake_owed(batch.queue)
        return slots

    def _unloaded(self, slots: Slots, shipment: Shipment, now: float) -> None:
        """A broker has answered for all of a shipment."""
        slots.in_flight -= 1
        if slots.shipment is shipment:
            # All of it failed before it was sent: what follows takes a slot of its own.
            slots.shipment = None
        # By the time of the answer: that of the last assignment is always before the pause's end,
        # and what lingers would go on doing so at an idle broker.
        if slots.lingering and slots.in_flight == 0 and slots.pause_end <= now:
            self._ready_lingering(slots)
        if slots.blocked:
            # Before the batch queue whose batch this was, or busy batch queues would keep the slots
            # for ever.
            self.ready(slots.blocked.popitem(last=False)[0])

    def _ready_lingering(self, slots: Slots) -> None:
        for lingering in slots.lingering:
            self.ready(lingering)
        slots.lingering.clear()

    def _batch_queue_of(self, batch: ProducerBatch) -> BatchQueue:
        assert batch.queue is not None
        accumulator = self._accumulator
        return accumulator.by_queue.get(batch.queue) or accumulator.open_by_queue(batch.queue)

    def _wake_owed(self, queue: MessageQueue) -> None:
        """A queue may owe no answer any more: look at the batch queues that may wait for that."""
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
        batch = batch_queue.take()
        batch.queue = queue
        # As `_sequences_of`, without another call.
        sequences = None if batch_queue.delayed else self._accumulator.sequences
        if sequences is not None:
            # Now and not when it is filled: numbers are a queue's, and it may go to any.
            sequences.assign(batch, queue)
        batch_queue.out += 1
        batch_queue.busy.add(queue)
        batch.shipment = self._load(self._brokers[queue.broker], batch, now)
        if batch_queue.waiting or batch_queue.batch.bodies:
            self.ready(batch_queue)
        return batch

    def _load(self, slots: Slots, batch: ProducerBatch, now: float) -> Shipment:
        """Put a batch into a shipment, another one where it has no room in the last."""
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
                    self._ready_company(slots, shipment, now)
        shipment.count += 1
        shipment.left += 1
        shipment.bytes += batch.bytes
        if slots.shipment is shipment:
            slots.taken += 1
        return shipment

    def _ready_company(self, slots: Slots, shipment: Shipment, now: float) -> None:
        """Look at those who can go with a shipment that begins."""
        for _ in range(min(len(slots.blocked), slots.batches_max - 1)):
            self.ready(slots.blocked.popitem(last=False)[0])
        if shipment.was_idle and slots.pause_end <= now:
            self._ready_lingering(slots)

    def _end_loading(self, now: float) -> None:
        """Everything that can go is handed out: batches that join shipments later would be late."""
        if not self._loading:
            return
        for slots in self._loading:
            pause = min(slots.taken * PAUSE_SECONDS_PER_BATCH, PAUSE_SECONDS_MAX)
            slots.pause_end = now + pause
            slots.shipment, slots.taken = None, 0
        self._loading.clear()

    def _sequences_of(self, batch_queue: BatchQueue) -> SequenceBook | None:
        """Who numbers a batch queue's batches: nobody those of delayed messages, which the broker
        stores elsewhere first."""
        return None if batch_queue.delayed else self._accumulator.sequences

    def _ready_blocked(self) -> bool:
        for slots in self._brokers.values():
            free = self._in_flight_max - slots.in_flight
            while slots.blocked and free > 0:
                self.ready(slots.blocked.popitem(last=False)[0])
                free -= 1
        return bool(self.line)

    def _wake_absent(self) -> None:
        absent, self._absent = self._absent, {}
        for batch_queue in absent:
            self.ready(batch_queue)

    def _examine(self, batch_queue: BatchQueue, now: float) -> MessageQueue | None:
        """The queue for the head's batch, or leave its batch queue where it will be found."""
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
        is_due = (
            head is not open_batch
            or batch_queue.is_flushing
            or head.linger_end <= now
            or head.tries > 0
        )

        may_wait = head is open_batch and not batch_queue.is_flushing and head.tries == 0
        sequences = None if batch_queue.delayed else self._accumulator.sequences

        def usable(queue: MessageQueue) -> bool:
            slots = self._brokers.get(queue.broker)
            if slots is None or not slots.is_live or slots.not_before > now:
                return False
            if queue in batch_queue.busy or (
                sequences is not None and sequences.is_owed(queue, head)
            ):
                return False
            return slots.takes(head, now, self._in_flight_max, is_due=is_due, may_wait=may_wait)

        if batch_queue.queue is not None:
            if usable(batch_queue.queue):
                return batch_queue.queue
        else:
            chosen = self._round_robin[batch_queue.topic].choose(queues, usable)
            if chosen is not None:
                return chosen
        self._park(batch_queue, head, queues, now, is_due=is_due, may_wait=may_wait)
        return None

    def _park(
        self,
        batch_queue: BatchQueue,
        head: ProducerBatch,
        queues: Sequence[MessageQueue],
        now: float,
        *,
        is_due: bool,
        may_wait: bool,
    ) -> None:
        pauses = []
        sequences = self._sequences_of(batch_queue)
        free = {
            queue.broker
            for queue in queues
            if queue not in batch_queue.busy and not (sequences and sequences.is_owed(queue, head))
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
                f"{batch_queue.queue or batch_queue.topic} took no messages before their deadline"
            )
        if batch_queue.queue is not None:
            return BrokerUnavailable(broker=batch_queue.queue.broker)
        return NoWritableQueue(topic=batch_queue.topic)
