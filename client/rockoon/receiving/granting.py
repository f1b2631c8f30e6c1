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

from rockoon.errors import RockoonError
from rockoon.message import Batch, Message
from rockoon.net.connection import Connection
from rockoon.receiving.acquirer import Acquirer, PendingAcquire, ReceivingGroup
from rockoon.receiving.dead_lettering import DeadLettering, NeverAcknowledged, Rejected
from rockoon.receiving.offset_bits import offsets_of
from rockoon.receiving.offset_reader import Found, OffsetReader, Reading
from rockoon.receiving.receive_queue import MESSAGES_MAX, ReceiveQueue, ReceiverName
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages, ReceivedRun
from rockoon.receiving.settler import Settler
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
GIVEN_BACK_MS = 1000
# The same if no receiver of this process reads that topic: without a long time, this process would
# acquire the message again and again.
READ_ELSEWHERE_MS = 60_000

Ready = dict[ReceiverName, list[ReceivedRun]]
"""Messages ready for delivery, by the name that holds them."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Acquired messages of one queue."""

    tail: TrackedQueue
    acquired: Acquired
    offsets: list[int]
    name: ReceiverName
    """The holder."""

    def receipts(self, offsets: Sequence[int]) -> list[ReceiptHandle]:
        acquisition = self.acquired.acquisition
        return [ReceiptHandle(self.tail.queue, acquisition, offset) for offset in offsets]

    def run(self, found: Found) -> ReceivedRun:
        acquired = self.acquired
        return ReceivedRun(
            self.tail.queue, acquired.acquisition, acquired.attempt, acquired.visible_at_ms, *found
        )


class Granting:
    """Delivers granted messages, and settles the offsets that are not delivered.

    Args:
        cluster: the connection.
        tail_reader, reader, settler: components of the receiving engine.
    """

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

    def tell(self, acquirer: Acquirer) -> None:
        """Set the acquirer that is notified when a receive queue needs more messages."""
        self._acquirer = acquirer

    def take(self, acquire: PendingAcquire, granted: Granted) -> int:
        """Deliver messages that are in memory, and read the others in tasks; return the number of
        granted messages."""
        count = 0
        ready: Ready = {}
        late: list[Share] = []
        # The offset service grants in the order of preference: the delivery keeps that order.
        is_in_order = acquire.receiver is not None or any(
            self._tail_reader.of(topic).has_priorities for topic in acquire.receive_queue.topics
        )
        for acquired in granted.acquired:
            offsets = offsets_of(acquired.first_offset, acquired.offsets)
            tail = self._tail_reader.find(queue_from_wire(acquired.queue))
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
            share = Share(tail, acquired, offsets, acquire.names[acquired.share])
            if acquired.dead:
                self.start(self._bury(acquire.group, share))
                continue
            reading = self._reader.kept(tail, offsets)
            if reading.unread or (is_in_order and late):
                late.append(share)
            else:
                self._sort_out(acquire, share, reading, ready)
        acquire.stale_hint = acquire.is_partial and count < acquire.messages_max
        if late:
            self._read_late(acquire, ready, late, is_in_order=is_in_order)
        else:
            self._give(acquire, ready)
            self._call_done(acquire)
        return count

    def _call_done(self, acquire: PendingAcquire) -> None:
        # Receivers whose wait time is over wait for a call that names all message queues.
        if not acquire.stale_hint:
            acquire.receive_queue.call_done(acquire.call_number)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task; its errors are logged."""
        task = self._cluster.tasks.create_task(self._guard(work), name="rockoon receiving")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def give_back(
        self, group: ReceivingGroup, receipts: Sequence[ReceiptHandle], visible_after_ms: int = 0
    ) -> None:
        """Release messages for other receivers; the delivery does not count as an attempt."""
        if receipts:
            self.start(self._give_back(group, receipts, visible_after_ms))

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

    def _read_late(
        self,
        acquire: PendingAcquire,
        ready: Ready,
        late: list[Share],
        *,
        is_in_order: bool,
    ) -> None:
        acquire.pending_reads = len(late)
        if is_in_order:
            # One task reads all of them and delivers them together.
            acquire.pending_reads = 1
            self.start(self._read(acquire, late, ready))
        else:
            self._give(acquire, ready)
            for share in late:
                self.start(self._read(acquire, [share], {}))

    async def _read(self, acquire: PendingAcquire, late: list[Share], ready: Ready) -> None:
        receive_queue = acquire.receive_queue
        for share in late:
            receive_queue.start_reading(share.name, len(share.offsets))
        try:
            halted: set[TrackedQueue] = set()
            for share in late:
                if share.tail in halted:
                    reading = Reading(unread=share.offsets)
                else:
                    reading = await self._reader.read(share.tail, share.offsets)
                if reading.unread and acquire.receiver is not None:
                    # In a FIFO group, later messages must not be delivered before an unread one.
                    reading.end_at(reading.unread[0])
                    halted.add(share.tail)
                self._sort_out(acquire, share, reading, ready)
        finally:
            for share in late:
                receive_queue.end_reading(share.name, len(share.offsets))
            self._give(acquire, ready)
            acquire.pending_reads -= 1
            if not acquire.pending_reads:
                self._call_done(acquire)
            assert self._acquirer is not None
            self._acquirer.update_tracking(receive_queue, acquire.group)
            self._acquirer.make_due(receive_queue, acquire.group)

    def _sort_out(
        self, acquire: PendingAcquire, share: Share, reading: Reading, ready: Ready
    ) -> None:
        """Add messages of a read to the ready ones; settle or release the other offsets."""
        queue, receive_queue = share.tail.queue, acquire.receive_queue
        done = reading.gone
        runs = [share.run(found) for found in reading.found]
        if queue.is_retry:
            split = [each.split(partial(_is_of, receive_queue.topics)) for each in reading.found]
            runs = [share.run(own) for own, _ in split if own.offsets]
            for _, others in split:
                for number in range(len(others.offsets)):
                    alone = share.run(others).part(number, number + 1)
                    self._give_elsewhere(acquire, alone)
        else:
            subscription = next(
                each for each in receive_queue.key.subscriptions if each.topic == queue.topic
            )
            if subscription.tags or subscription.sql_expression:
                split = [each.split(partial(_matches, subscription)) for each in reading.found]
                done += [offset for _, left in split for offset in left.offsets]
                runs = [share.run(found) for found, _ in split if found.offsets]
                _adapt(receive_queue, sum(len(run.offsets) for run in runs), len(share.offsets))
        if done:
            self.start(self._acknowledge(acquire.group, share.receipts(done)))
        if reading.unread:
            self.give_back(acquire.group, share.receipts(reading.unread), GIVEN_BACK_MS)
        if reading.damaged:
            log.error(
                "%d messages of %s are damaged: delivered again until their attempts are used up",
                len(reading.damaged),
                queue,
            )
        if runs:
            ready.setdefault(share.name, []).extend(runs)

    # Delivery

    def _give(self, acquire: PendingAcquire, ready: Ready) -> None:
        for name, runs in ready.items():
            messages = ReceivedMessages(runs)
            if acquire.receiver is not None:
                left = acquire.receive_queue.deliver_to(acquire.receiver, messages)
            else:
                left = acquire.receive_queue.deliver(name, messages)
            self.give_back(acquire.group, left.receipts)

    def _give_elsewhere(self, acquire: PendingAcquire, message: ReceivedRun) -> None:
        """Transfer or release a message of the retry topic whose topic these receivers do not
        read."""
        after_ms = READ_ELSEWHERE_MS
        topic = message.message(0).topic
        for receive_queue in acquire.group.receive_queues:
            if topic in receive_queue.topics:
                if receive_queue.waiting:
                    self.start(self._pass_on(receive_queue, acquire.group, message))
                    return
                after_ms = GIVEN_BACK_MS
        self.give_back(acquire.group, [message.receipt(0)], after_ms)

    async def _pass_on(
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
        self.give_back(group, receive_queue.deliver(name, ReceivedMessages([run])).receipts)
        assert self._acquirer is not None
        self._acquirer.update_tracking(receive_queue, group)

    async def _give_back(
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
                    GIVEN_BACK_MS,
                    error,
                )
                await asyncio.sleep(GIVEN_BACK_MS / 1000)
        assert self._acquirer is not None
        self._acquirer.messages_settled(group, visible_after_ms / 1000)

    async def _acknowledge(self, group: ReceivingGroup, receipts: Sequence[ReceiptHandle]) -> None:
        try:
            await self._settler.acknowledge(group.name, receipts)
        except RockoonError:
            self.give_back(group, receipts, GIVEN_BACK_MS)
            raise

    # Dead letters

    async def _bury(self, group: ReceivingGroup, share: Share) -> None:
        try:
            done = await self._buried(group.name, share)
        except RockoonError:
            self.give_back(group, share.receipts(share.offsets), GIVEN_BACK_MS)
            raise
        left = sorted(set(share.offsets).difference(done))
        self.give_back(group, share.receipts(left), GIVEN_BACK_MS)

    async def _buried(self, group: str, share: Share) -> list[int]:
        """Put messages with no attempts left into the dead-letter topic; return the offsets that
        are settled."""
        reading = await self._reader.read(share.tail, share.offsets)
        attempts = share.acquired.attempt - 1
        failure: Exception
        if share.acquired.reason:
            failure = Rejected(share.acquired.reason)
        else:
            failure = NeverAcknowledged(f"it was received {attempts} times and never acknowledged")
        sound = _sound(group, share.tail, reading)
        buried = await self._dead_letters.bury(group, sound, attempts, failure)
        if done := [*reading.gone, *reading.damaged, *buried]:
            await self._settler.acknowledge(group, share.receipts(done))
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

        Args:
            attempts: number of deliveries, those from the retry topic included.
        """
        reading = await self._reader.read(tail, sorted({each.offset for each in receipts}))
        if reading.unread:
            return False
        sound = _sound(group, tail, reading)
        if sound and tail.queue.is_retry:
            # The broker adds the attempts that the record counts.
            _, batch, index = sound[0]
            attempts -= Message(batch, index).reconsume_times
        failure = NeverAcknowledged(reason)
        return len(await self._dead_letters.bury(group, sound, attempts, failure)) == len(sound)


def _sound(group: str, tail: TrackedQueue, reading: Reading) -> list[tuple[int, Batch, int]]:
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


def _adapt(receive_queue: ReceiveQueue, matched: int, acquired: int) -> None:
    """Adapt the number of messages to acquire to the share that the filter includes."""
    if 2 * matched * receive_queue.factor < acquired:
        receive_queue.factor = min(2 * receive_queue.factor, MESSAGES_MAX)
    elif matched * receive_queue.factor > 2 * acquired:
        receive_queue.factor = max(receive_queue.factor // 2, 1)
