"""Granting: reads the messages at acquired offsets and delivers them to receivers.

Each acquired offset ends in one of five ways:

- A receiver gets its message.
- It is acknowledged, because it has no message or a filter excludes the message.
- Its message becomes a dead letter.
- It is released, because it cannot be read now, no receiver waits, or settling it has failed.
- Its visibility time expires, because this process fails.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from rockoon.consumer.redelivery import HandlerFailure
from rockoon.consumer.retry import RetryPolicy, RetryStatistics, RetryTopic
from rockoon.errors import RockoonError
from rockoon.message import Batch, Message
from rockoon.net.connection import Connection
from rockoon.receiving.acquirer import Acquirer, PendingAcquire, ReceivingGroup
from rockoon.receiving.offset_reader import MatchedMessages, OffsetReader, Reading
from rockoon.receiving.receive_queue import MESSAGES_MAX, ReceiveQueue, ReceiverName
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages, ReceivedRun
from rockoon.receiving.settler import Settler, offsets_of
from rockoon.receiving.tail_reader import TailReader, TrackedQueue
from rockoon.subscription import Subscription
from rockoon_core.message_queue import queue_from_wire
from rockoon_core.repeated_lines import limited
from rockoon_format import sql92
from rockoon_proto.v1.in_flight_pb2 import Acquired, Granted

log = limited(logging.getLogger(__name__))

_compiled = lru_cache(maxsize=256)(sql92.compile)

# How long a released message stays invisible if it cannot be read now, or if it belongs to
# receivers of another topic.
RELEASED_MS = 1000
# The same if no receiver of this process reads that topic: without a long time, this process would
# acquire the message again and again.
READ_ELSEWHERE_MS = 60_000

Ready = dict[ReceiverName, list[ReceivedRun]]
"""Messages ready for delivery, by the name that holds them."""


@dataclass(frozen=True, slots=True, eq=False)
class AcquiredMessages:
    """Acquired messages of one queue."""

    tail: TrackedQueue
    grant: Acquired
    offsets: list[int]
    name: ReceiverName
    """The holder."""

    def receipts(self, offsets: Sequence[int]) -> list[ReceiptHandle]:
        acquisition = self.grant.acquisition
        return [ReceiptHandle(self.tail.queue, acquisition, offset) for offset in offsets]

    def run(self, found: MatchedMessages) -> ReceivedRun:
        grant = self.grant
        return ReceivedRun(
            self.tail.queue, grant.acquisition, grant.attempt, grant.visible_at_ms, *found
        )


class NeverAcknowledged(Exception):
    """Reason of a dead letter whose receivers reported no reason."""


class Rejected(Exception):
    """Reason of a dead letter: the last reason that a receiver reported."""


class DeadLettering:
    """Puts messages into dead-letter topics."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._statistics = RetryStatistics()

    async def store(
        self,
        group: str,
        found: Sequence[tuple[int, Batch, int]],
        attempts: int,
        reason: Exception,
    ) -> list[int]:
        """Store messages of one queue as dead letters on brokers.

        Args:
            found: offset, batch and index of each message.
            attempts: number of failed deliveries.
            reason: stored with the dead letter, with the name of its class.

        Returns:
            Offsets whose dead letters are durable. Dead letters of other offsets may exist.
        """
        if not found:
            return []
        messages = [Message(batch, index) for _, batch, index in found]
        failure = HandlerFailure(messages, max(attempts, 1), reason, is_last=True)
        topic = RetryTopic(self._cluster, group, RetryPolicy(), self._statistics)
        is_all = await topic.failed(failure) is None
        offsets = zip((at[0] for at in found), messages, strict=True)
        return [offset for offset, message in offsets if is_all or topic.has_sent(message)]


class Granting:
    """Delivers granted messages, and settles the offsets that are not delivered. `tail_reader`,
    `reader`, `settler`: components of the receiving engine."""

    def __init__(
        self, cluster: Connection, tail_reader: TailReader, reader: OffsetReader, settler: Settler
    ) -> None:
        self._cluster = cluster
        self._tail_reader = tail_reader
        self._reader = reader
        self._settler = settler
        self._dead_letters = DeadLettering(cluster)
        self._tasks: set[asyncio.Task[None]] = set()
        self._acquirer: Acquirer | None = None

    def set_acquirer(self, acquirer: Acquirer) -> None:
        """Set the acquirer that is notified when a receive queue needs more messages."""
        self._acquirer = acquirer

    def deliver(self, acquire: PendingAcquire, granted: Granted) -> int:
        """Deliver messages that are in memory, and read the remaining ones in tasks. Returns the
        number of granted messages."""
        count = 0
        ready: Ready = {}
        unread: list[AcquiredMessages] = []
        # The offset service grants in the order of preference: the delivery keeps that order.
        is_in_order = acquire.receiver is not None or any(
            self._tail_reader.of(topic).has_priorities for topic in acquire.receive_queue.topics
        )
        for grant in granted.acquired:
            offsets = offsets_of(grant.first_offset, grant.offsets)
            tail = self._tail_reader.find(queue_from_wire(grant.queue))
            count += len(offsets)
            if tail is None:
                log.info(
                    "%d messages acquired from a deleted queue: not released, they expire",
                    len(offsets),
                )
                continue
            self._tail_reader.record_acquired(tail, offsets[-1] + 1)
            acquired_ends = acquire.group.acquired_ends
            acquired_ends[tail.queue] = max(acquired_ends.get(tail.queue, 0), offsets[-1] + 1)
            acquired = AcquiredMessages(tail, grant, offsets, acquire.names[grant.share])
            if grant.dead:
                self.start_task(self._dead_letter(acquire.group, acquired))
                continue
            reading = self._reader.kept(tail, offsets)
            if reading.unread or (is_in_order and unread):
                unread.append(acquired)
            else:
                self._sort(acquire, acquired, reading, ready)
        acquire.stale_hint = acquire.is_partial and count < acquire.messages_max
        if unread:
            self._read_unread(acquire, ready, unread, is_in_order=is_in_order)
        else:
            self._deliver_ready(acquire, ready)
            self._call_done(acquire)
        return count

    def _call_done(self, acquire: PendingAcquire) -> None:
        # Receivers whose wait time is over wait for a call that names all message queues.
        if not acquire.stale_hint:
            acquire.receive_queue.call_done(acquire.call_number)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task; its errors are logged."""
        task = self._cluster.tasks.create_task(self._guard(work), name="rockoon receiving")
        self._tasks.add(task)

        def done(_: object) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step never awaits the coroutine.
            work.close()

        task.add_done_callback(done)

    def release(
        self, group: ReceivingGroup, receipts: Sequence[ReceiptHandle], visible_after_ms: int = 0
    ) -> None:
        """Release messages for other receivers; the delivery does not count as an attempt."""
        if receipts:
            self.start_task(self._release(group, receipts, visible_after_ms))

    async def close(self, seconds_max: float) -> None:
        """Wait for running tasks, then cancel them."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds_max)
            for task in left:
                task.cancel()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RockoonError as error:
            log.warning("messages were not settled, they become visible again later: %s", error)
        except Exception:
            log.exception("unexpected error while delivering messages (bug)")

    # Reading

    def _read_unread(
        self,
        acquire: PendingAcquire,
        ready: Ready,
        unread: list[AcquiredMessages],
        *,
        is_in_order: bool,
    ) -> None:
        acquire.pending_reads = len(unread)
        if is_in_order:
            # A single task reads all messages and delivers them together.
            acquire.pending_reads = 1
            self.start_task(self._read(acquire, unread, ready))
        else:
            self._deliver_ready(acquire, ready)
            for acquired in unread:
                self.start_task(self._read(acquire, [acquired], {}))

    async def _read(
        self, acquire: PendingAcquire, unread: list[AcquiredMessages], ready: Ready
    ) -> None:
        receive_queue = acquire.receive_queue
        for acquired in unread:
            receive_queue.start_reading(acquired.name, len(acquired.offsets))
        try:
            halted: set[TrackedQueue] = set()
            for acquired in unread:
                if acquired.tail in halted:
                    reading = Reading(unread=acquired.offsets)
                else:
                    reading = await self._reader.read(acquired.tail, acquired.offsets)
                if reading.unread and acquire.receiver is not None:
                    # In a FIFO group, later messages must not be delivered before an unread one.
                    reading.end_at(reading.unread[0])
                    halted.add(acquired.tail)
                self._sort(acquire, acquired, reading, ready)
        finally:
            for acquired in unread:
                receive_queue.end_reading(acquired.name, len(acquired.offsets))
            self._deliver_ready(acquire, ready)
            acquire.pending_reads -= 1
            if not acquire.pending_reads:
                self._call_done(acquire)
            assert self._acquirer is not None
            self._acquirer.update_tracking(receive_queue, acquire.group)
            self._acquirer.make_due(receive_queue, acquire.group)

    def _sort(
        self, acquire: PendingAcquire, acquired: AcquiredMessages, reading: Reading, ready: Ready
    ) -> None:
        """Add messages of a read to the ready ones; settle or release the other offsets."""
        queue, receive_queue = acquired.tail.queue, acquire.receive_queue
        done = reading.gone
        runs = [acquired.run(found) for found in reading.found]
        if queue.is_retry:
            split = [each.split(partial(_is_of, receive_queue.topics)) for each in reading.found]
            runs = [acquired.run(own) for own, _ in split if own.offsets]
            for _, others in split:
                for number in range(len(others.offsets)):
                    alone = acquired.run(others).part(number, number + 1)
                    self._deliver_elsewhere(acquire, alone)
        else:
            subscription = next(
                each for each in receive_queue.key.subscriptions if each.topic == queue.topic
            )
            if subscription.tags or subscription.sql_expression:
                split = [each.split(partial(_matches, subscription)) for each in reading.found]
                done += [offset for _, left in split for offset in left.offsets]
                runs = [acquired.run(found) for found, _ in split if found.offsets]
                _adapt(receive_queue, sum(len(run.offsets) for run in runs), len(acquired.offsets))
        if done:
            self.start_task(self._acknowledge(acquire.group, acquired.receipts(done)))
        if reading.unread:
            self.release(acquire.group, acquired.receipts(reading.unread), RELEASED_MS)
        if reading.damaged:
            log.error(
                "%d messages of %s are damaged: delivered again until their attempts are used up",
                len(reading.damaged),
                queue,
            )
        if runs:
            ready.setdefault(acquired.name, []).extend(runs)

    # Delivery

    def _deliver_ready(self, acquire: PendingAcquire, ready: Ready) -> None:
        for name, runs in ready.items():
            messages = ReceivedMessages(runs)
            if acquire.receiver is not None:
                left = acquire.receive_queue.deliver_to(acquire.receiver, messages)
            else:
                left = acquire.receive_queue.deliver(name, messages)
            self.release(acquire.group, left.receipts)

    def _deliver_elsewhere(self, acquire: PendingAcquire, message: ReceivedRun) -> None:
        """Transfer a message of the retry topic to a receiver of the same group that reads its
        original topic and waits; without one, release the message. The receivers of `acquire` do
        not read this topic."""
        after_ms = READ_ELSEWHERE_MS
        topic = message.message(0).topic
        for receive_queue in acquire.group.receive_queues:
            if topic in receive_queue.topics:
                if receive_queue.waiting:
                    self.start_task(self._transfer(receive_queue, acquire.group, message))
                    return
                after_ms = RELEASED_MS
        self.release(acquire.group, [message.receipt(0)], after_ms)

    async def _transfer(
        self, receive_queue: ReceiveQueue, group: ReceivingGroup, message: ReceivedRun
    ) -> None:
        """Make the first receiver of another receive queue the holder of a message, and deliver
        it."""
        name = next(iter(receive_queue.waiting)).name
        (passed,) = await self._settler.change(
            group.name,
            [message.receipt(0)],
            receive_queue.key.visible_after_ms,
            to=name,
            held_ms_max=receive_queue.key.held_ms_max,
        )
        if passed is None:
            return
        receipt, visible_at_ms = passed
        run = message._replace(acquisition=receipt.acquisition, visible_at_ms=visible_at_ms)
        self.release(group, receive_queue.deliver(name, ReceivedMessages([run])).receipts)
        assert self._acquirer is not None
        self._acquirer.update_tracking(receive_queue, group)

    async def _release(
        self, group: ReceivingGroup, receipts: Sequence[ReceiptHandle], visible_after_ms: int
    ) -> None:
        while True:
            try:
                await self._settler.change(group.name, receipts, visible_after_ms, uncounted=True)
                break
            except RockoonError as error:
                if not error.retriable:
                    raise
                # Not left to expiry: a gateway's reports of a living client extend its messages.
                log.info(
                    "%d messages were not released, next try in %d ms: %s",
                    len(receipts),
                    RELEASED_MS,
                    error,
                )
                await asyncio.sleep(RELEASED_MS / 1000)
        assert self._acquirer is not None
        self._acquirer.messages_settled(group, visible_after_ms / 1000)

    async def _acknowledge(self, group: ReceivingGroup, receipts: Sequence[ReceiptHandle]) -> None:
        try:
            await self._settler.acknowledge(group.name, receipts)
        except RockoonError:
            self.release(group, receipts, RELEASED_MS)
            raise

    # Dead letters

    async def _dead_letter(self, group: ReceivingGroup, acquired: AcquiredMessages) -> None:
        try:
            done = await self._store_dead_letters(group.name, acquired)
        except RockoonError:
            self.release(group, acquired.receipts(acquired.offsets), RELEASED_MS)
            raise
        left = sorted(set(acquired.offsets).difference(done))
        self.release(group, acquired.receipts(left), RELEASED_MS)

    async def _store_dead_letters(self, group: str, acquired: AcquiredMessages) -> list[int]:
        """Put messages with no attempts left into the dead-letter topic; return the offsets that
        are settled."""
        reading = await self._reader.read(acquired.tail, acquired.offsets)
        attempts = acquired.grant.attempt - 1
        failure: Exception
        if acquired.grant.reason:
            failure = Rejected(acquired.grant.reason)
        else:
            failure = NeverAcknowledged(f"it was received {attempts} times and never acknowledged")
        undamaged = _undamaged(group, acquired.tail, reading)
        stored = await self._dead_letters.store(group, undamaged, attempts, failure)
        if done := [*reading.gone, *reading.damaged, *stored]:
            await self._settler.acknowledge(group, acquired.receipts(done))
        return done

    async def dead_letter(
        self,
        group: str,
        tail: TrackedQueue,
        receipts: Sequence[ReceiptHandle],
        reason: str,
        attempts: int = 1,
    ) -> bool:
        """Put messages of one queue into the dead-letter topic; return True if all are stored.
        `attempts`: number of deliveries, those from the retry topic included."""
        reading = await self._reader.read(tail, sorted({each.offset for each in receipts}))
        if reading.unread:
            return False
        undamaged = _undamaged(group, tail, reading)
        if undamaged and tail.queue.is_retry:
            # The broker adds the attempts that the record counts.
            _, batch, index = undamaged[0]
            attempts -= Message(batch, index).reconsume_times
        failure = NeverAcknowledged(reason)
        return len(await self._dead_letters.store(group, undamaged, attempts, failure)) == len(
            undamaged
        )


def _undamaged(group: str, tail: TrackedQueue, reading: Reading) -> list[tuple[int, Batch, int]]:
    """Return the messages that can become dead letters: offset, batch and index of each.

    Other messages are added to `reading.damaged`. No broker stores a message with a wrong checksum,
    and the message must not be delivered again without end.
    """
    split = [each.split(_is_sound) for each in reading.found]
    reading.damaged += [offset for _, left in split for offset in left.offsets]
    if reading.damaged:
        log.error(
            "damaged messages of topic %s skipped by group %s without dead letters: "
            "queue %s, offsets %s",
            tail.queue.topic,
            group,
            tail.queue,
            reading.damaged,
        )
    return [
        (offset, found.batch, index)
        for found, _ in split
        for offset, index in zip(found.offsets, found.indices, strict=True)
    ]


def _is_of(topics: Sequence[str], batch: Batch, index: int) -> bool:
    return _is_damaged(batch, index) or Message(batch, index).topic in topics


def _matches(subscription: Subscription, batch: Batch, index: int) -> bool:
    if _is_damaged(batch, index):
        # Its properties are not reliable. If the filter excluded it, the group would lose it.
        return True
    if subscription.tags:
        return batch.columns.tags[index] in subscription.tags
    properties = batch.columns.properties_bytes[index]
    return _compiled(subscription.sql_expression).matches_encoded(properties) is True


def _is_damaged(batch: Batch, index: int) -> bool:
    return batch.columns.is_damaged(index)


def _is_sound(batch: Batch, index: int) -> bool:
    return not _is_damaged(batch, index)


def _adapt(receive_queue: ReceiveQueue, matched: int, count: int) -> None:
    """Adapt the number of messages to acquire to the share that the filter includes."""
    if 2 * matched * receive_queue.factor < count:
        receive_queue.factor = min(2 * receive_queue.factor, MESSAGES_MAX)
    elif matched * receive_queue.factor > 2 * count:
        receive_queue.factor = max(receive_queue.factor // 2, 1)
