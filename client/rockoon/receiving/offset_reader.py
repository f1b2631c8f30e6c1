"""Offset reader: reads the messages at acquired offsets, from kept batches or by pulls."""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from rockoon.consumer.pull import NoSuchRecords, Pulled, PullLimits, PullOutOfRange, pull
from rockoon.errors import Internal, RockoonError, StoreCorrupt
from rockoon.message import Batch
from rockoon.net.connection import Connection
from rockoon.receiving.kept_batches import KeptBatch, KeptBatches, separate_group_hash
from rockoon.receiving.tail_reader import TailReader, TrackedQueue
from rockoon.subscription import ALL, Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))

# Larger than most reads, because receivers mostly read the following messages next.
LIMITS = PullLimits(messages_max=1024, bytes_max=1 << 20, wait_ms=0)
ONE = PullLimits(messages_max=1, bytes_max=1, wait_ms=0)
# Errors of a pull whose record is damaged on the broker.
DAMAGE = (StoreCorrupt, NoSuchRecords)
# These errors, and errors of a broker whose disk fails, maybe temporarily.
UNREADABLE = (*DAMAGE, Internal)
# Offsets of one read that may fail, each in a separate pull. Messages after an unreadable one are
# read, and the reader stops early if the whole disk fails.
REFUSED_MAX = 8


class MatchedMessages(NamedTuple):
    """Messages of one batch: their queue offsets and their indices in the batch, ascending."""

    batch: Batch
    offsets: Sequence[int]
    indices: Sequence[int]

    def split(
        self, is_chosen: Callable[[Batch, int], bool]
    ) -> tuple["MatchedMessages", "MatchedMessages"]:
        """Return the messages for which `is_chosen(batch, index)` is true, and the rest."""
        flags = [is_chosen(self.batch, index) for index in self.indices]
        return self._part(flags), self._part([not flag for flag in flags])

    def _part(self, flags: Sequence[bool]) -> "MatchedMessages":
        both = list(compress(self.offsets, flags)), list(compress(self.indices, flags))
        return MatchedMessages(self.batch, *both)


@dataclass(slots=True)
class Reading:
    """Result of reading some offsets of a queue. Each offset is in one of the lists."""

    found: list[MatchedMessages] = field(default_factory=list)
    """Messages, ascending; no entry is empty."""
    gone: list[int] = field(default_factory=list)
    """Offsets without a message, for example deleted by retention."""
    damaged: list[int] = field(default_factory=list)
    """Offsets whose messages are damaged on the broker."""
    unread: list[int] = field(default_factory=list)
    """Offsets that could not be read now."""

    def add(self, kept: KeptBatch, offsets: Sequence[int]) -> None:
        """Add the messages at some offsets, ascending, which are all in the range of one batch."""
        batch, start = kept.batch, kept.first
        if batch is None:
            self.gone += offsets
        elif not offsets:
            pass
        elif kept.holds_all(offsets):
            first, last = offsets[0], offsets[-1]
            if last - first == len(offsets) - 1:
                indices: Sequence[int] = range(first - start, last + 1 - start)
                offsets = range(first, last + 1)
            else:
                indices = [each - start for each in offsets]
            self.found.append(MatchedMessages(batch, offsets, indices))
        else:
            places = [(offset, kept.index(offset)) for offset in offsets]
            self.gone += [offset for offset, index in places if index is None]
            if there := [(offset, index) for offset, index in places if index is not None]:
                self.found.append(MatchedMessages(batch, *map(list, zip(*there, strict=True))))

    def end_at(self, offset: int) -> None:
        """Move the messages from an offset on to the unread ones."""
        found, self.found = self.found, []
        unread = set(self.unread)
        for each in found:
            at = bisect_left(each.offsets, offset)
            unread.update(each.offsets[at:])
            if at:
                self.found.append(MatchedMessages(each.batch, each.offsets[:at], each.indices[:at]))
        self.unread = sorted(unread)


class OffsetReader:
    """Reads messages for all groups of a connection.

    Args:
        kept: batches in memory; pulled batches are added.
        tail_reader: records queue ends and errors of pulls.
    """

    def __init__(self, cluster: Connection, kept: KeptBatches, tail_reader: TailReader) -> None:
        self._cluster = cluster
        self._kept = kept
        self._tail_reader = tail_reader
        # One pull per queue at a time: concurrent reads mostly need the same messages.
        self._pulling: dict[TrackedQueue, asyncio.Lock] = {}

    def kept(self, tail: TrackedQueue, offsets: Sequence[int]) -> Reading:
        """Read offsets, ascending, from memory. From the first unknown offset on all are unread."""
        reading = Reading()
        self._add_kept(tail, offsets, reading)
        return reading

    async def read(self, tail: TrackedQueue, offsets: Sequence[int]) -> Reading:
        """Read offsets, ascending. If a pull fails, the rest is unread and the tail stores the
        error."""
        reading = Reading()
        left = self._add_kept(tail, offsets, reading)
        if not left:
            return reading
        refused: list[int] = []
        lock = self._pulling.setdefault(tail, asyncio.Lock())
        try:
            async with lock:
                while left := self._add_kept(tail, left, reading):
                    try:
                        left = await self._pull(tail, left, reading)
                    except Internal as error:
                        if len(refused) == REFUSED_MAX:
                            raise
                        log.warning(
                            "message %d of %s not read, retried later: %s",
                            left[0],
                            tail.queue,
                            error,
                        )
                        refused.append(left.pop(0))
        except RockoonError as error:
            log.info("message %d of %s not read, retried later: %s", left[0], tail.queue, error)
            self._tail_reader.record_failure(tail, error)
        finally:
            reading.unread = refused + left
            if not lock.locked():
                self._pulling.pop(tail, None)
        return reading

    async def message_groups(self, tail: TrackedQueue, first: int, end_offset: int) -> list[int]:
        """Return the hashes of the message groups of consecutive offsets, up to the first message
        that cannot be read now."""
        if tail.queue.is_retry:
            return [separate_group_hash(offset) for offset in range(first, end_offset)]
        found: list[int] = []
        while (offset := first + len(found)) < end_offset:
            if offset < tail.min_offset:
                # Deleted: the service grants it, the engine acknowledges it, and progress advances.
                found.append(separate_group_hash(offset))
                continue
            kept = self._kept.find(tail.queue, offset)
            if kept is None:
                reading = await self.read(tail, [offset])
                if reading.unread:
                    break
                kept = self._kept.find(tail.queue, offset)
            if kept is None:
                # Deleted, or damaged.
                found.append(separate_group_hash(offset))
            else:
                found += kept.message_groups(offset, end_offset)
        return found

    def _add_kept(self, tail: TrackedQueue, offsets: Sequence[int], reading: Reading) -> list[int]:
        """Add messages in memory to the reading; return the other offsets, now unread."""
        at = 0
        while at < len(offsets) and (kept := self._kept.find(tail.queue, offsets[at])) is not None:
            end = bisect_left(offsets, kept.next_offset, at)
            reading.add(kept, offsets[at:end])
            at = end
        reading.unread = list(offsets[at:])
        return reading.unread

    async def _pulled(self, queue: MessageQueue, first: int) -> Pulled | PullOutOfRange:
        """Pull from an offset on. Raises an error of UNREADABLE if the message at the offset cannot
        be read."""
        everything = Subscription.parse(queue.topic, ALL)
        try:
            return await pull(self._cluster, queue, first, everything, LIMITS)
        except UNREADABLE:
            # A later message may have caused the error.
            return await pull(self._cluster, queue, first, everything, ONE)

    async def _pull(self, tail: TrackedQueue, offsets: list[int], reading: Reading) -> list[int]:
        """Pull from the first offset on; return the offsets that are still to be read."""
        queue, first = tail.queue, offsets[0]
        try:
            answer = await self._pulled(queue, first)
        except DAMAGE as damage:
            log.error("message %d of %s is damaged: %s", first, queue, damage)  # noqa: TRY400
            reading.damaged.append(first)
            return offsets[1:]
        if isinstance(answer, PullOutOfRange):
            if not answer.below_min:
                raise answer.to_error()
            tail.min_offset = answer.min_offset
            reading.gone += [each for each in offsets if each < answer.min_offset]
            return [each for each in offsets if each >= answer.min_offset]
        now = asyncio.get_running_loop().time()
        self._tail_reader.record_end(tail, answer.max_offset)
        kept = self._kept.put(queue, first, answer, now)
        if kept.next_offset <= first:
            # The queue ends before an acquired offset: the log has lost messages.
            raise PullOutOfRange(queue, first, tail.min_offset, answer.max_offset).to_error()
        # Not read from the cache: it may have dropped the batch.
        rest = [each for each in offsets if each >= kept.next_offset]
        reading.add(kept, offsets[: len(offsets) - len(rest)])
        return rest
