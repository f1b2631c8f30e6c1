"""Offset reader: the messages at acquired offsets, from what is kept or by pulls."""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from rockoon.consumer.pull import NoSuchRecords, OutOfRange, Pulled, PullLimits, pull
from rockoon.errors import Internal, RockoonError, StoreCorrupt
from rockoon.message import Batch
from rockoon.net.connection import Connection
from rockoon.receiving.kept_batches import KeptBatch, KeptBatches
from rockoon.receiving.message_groups import hash_of_nobody
from rockoon.receiving.tails import QueueTail, Tails
from rockoon.subscription import ALL, Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))

# More than is asked for: what comes next is mostly wanted next.
LIMITS = PullLimits(messages_max=1024, bytes_max=1 << 20, wait_ms=0)
ONE = PullLimits(messages_max=1, bytes_max=1, wait_ms=0)
# Answers to a pull of a record that is not what was stored.
DAMAGE = (StoreCorrupt, NoSuchRecords)
# Those, and of a broker that fails, for now or in one place: its disk may be well again.
UNREADABLE = (*DAMAGE, Internal)
# Of one reading, each asked for alone: one bad place hides nothing behind it, and of a disk that
# refuses everything not every place is tried.
REFUSED_MAX = 8


class Found(NamedTuple):
    """Messages of one batch, by their queue offsets and by their indices in it; ascending."""

    batch: Batch
    offsets: Sequence[int]
    indices: Sequence[int]

    def split(self, is_chosen: Callable[[Batch, int], bool]) -> tuple["Found", "Found"]:
        """What is chosen, by batch and index, and the rest."""
        flags = [is_chosen(self.batch, index) for index in self.indices]
        return self._part(flags), self._part([not flag for flag in flags])

    def _part(self, flags: Sequence[bool]) -> "Found":
        both = list(compress(self.offsets, flags)), list(compress(self.indices, flags))
        return Found(self.batch, *both)


@dataclass(slots=True)
class Reading:
    """What is at some offsets of a queue."""

    found: list[Found] = field(default_factory=list)
    """Ascending, none of them empty."""
    gone: list[int] = field(default_factory=list)
    """There is no message, and will be none."""
    damaged: list[int] = field(default_factory=list)
    """What is there is not what was stored."""
    unread: list[int] = field(default_factory=list)
    """Not to be had now."""

    def take(self, kept: KeptBatch, offsets: Sequence[int]) -> None:
        """Note what is known of some offsets, ascending, all of them in one kept range."""
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
            self.found.append(Found(batch, offsets, indices))
        else:
            places = [(offset, kept.index(offset)) for offset in offsets]
            self.gone += [offset for offset, index in places if index is None]
            if there := [(offset, index) for offset, index in places if index is not None]:
                self.found.append(Found(batch, *map(list, zip(*there, strict=True))))

    def end_at(self, offset: int) -> None:
        """Count the messages from an offset on as unread."""
        found, self.found = self.found, []
        unread = set(self.unread)
        for each in found:
            at = bisect_left(each.offsets, offset)
            unread.update(each.offsets[at:])
            if at:
                self.found.append(Found(each.batch, each.offsets[:at], each.indices[:at]))
        self.unread = sorted(unread)


class OffsetReader:
    """Reads for all groups.

    Args:
        cluster: the connection.
        kept: what was read before, and where it goes.
        tails: told how far queues reach.
    """

    def __init__(self, cluster: Connection, kept: KeptBatches, tails: Tails) -> None:
        self._cluster = cluster
        self._kept = kept
        self._tails = tails
        # What one reads, others want too.
        self._pulling: dict[QueueTail, asyncio.Lock] = {}

    def kept(self, tail: QueueTail, offsets: Sequence[int]) -> Reading:
        """Return what is known of offsets, ascending; from the first unknown one on all count as
        unread."""
        reading = Reading()
        self._take_kept(tail, offsets, reading)
        return reading

    async def read(self, tail: QueueTail, offsets: Sequence[int]) -> Reading:
        """Read offsets, ascending. Failures are told to the tail, and leave the rest unread."""
        reading = Reading()
        left = self._take_kept(tail, offsets, reading)
        if not left:
            return reading
        refused: list[int] = []
        lock = self._pulling.setdefault(tail, asyncio.Lock())
        try:
            async with lock:
                while left := self._take_kept(tail, left, reading):
                    try:
                        left = await self._pull(tail, left, reading)
                    except Internal as error:
                        if len(refused) == REFUSED_MAX:
                            raise
                        log.warning("%s cannot be read at %d now: %s", tail.queue, left[0], error)
                        refused.append(left.pop(0))
        except RockoonError as error:
            log.info("%s cannot be read at %d now: %s", tail.queue, left[0], error)
            self._tails.note_unreadable(tail, error)
        finally:
            reading.unread = refused + left
            if not lock.locked():
                self._pulling.pop(tail, None)
        return reading

    async def message_groups(self, tail: QueueTail, first: int, end_offset: int) -> list[int]:
        """Return the hashes of the message groups of consecutive messages, up to the first that
        cannot be read now."""
        if tail.queue.is_retry:
            return [hash_of_nobody(offset) for offset in range(first, end_offset)]
        found: list[int] = []
        while (offset := first + len(found)) < end_offset:
            if offset < tail.min_offset:
                # Deleted: granted like others, it is acknowledged, and the floor goes on.
                found.append(hash_of_nobody(offset))
                continue
            kept = self._kept.find(tail.queue, offset)
            if kept is None:
                reading = await self.read(tail, [offset])
                if reading.unread:
                    break
                kept = self._kept.find(tail.queue, offset)
            if kept is None:
                # Deleted, or damaged.
                found.append(hash_of_nobody(offset))
            else:
                found += kept.message_groups(offset, end_offset)
        return found

    def _take_kept(self, tail: QueueTail, offsets: Sequence[int], reading: Reading) -> list[int]:
        """Move what is kept into the reading; returns and notes what is not."""
        at = 0
        while at < len(offsets) and (kept := self._kept.find(tail.queue, offsets[at])) is not None:
            end = bisect_left(offsets, kept.next_offset, at)
            reading.take(kept, offsets[at:end])
            at = end
        reading.unread = list(offsets[at:])
        return reading.unread

    async def _pulled(self, queue: MessageQueue, first: int) -> Pulled | OutOfRange:
        """Pull from an offset on. Raises one of UNREADABLE where not even it alone can be had."""
        everything = Subscription.parse(queue.topic, ALL)
        try:
            return await pull(self._cluster, queue, first, everything, LIMITS)
        except UNREADABLE:
            # One behind it may be at fault.
            return await pull(self._cluster, queue, first, everything, ONE)

    async def _pull(self, tail: QueueTail, offsets: list[int], reading: Reading) -> list[int]:
        """Pull from the first of them on; returns what is to be looked for again."""
        queue, first = tail.queue, offsets[0]
        try:
            answer = await self._pulled(queue, first)
        except DAMAGE as damage:
            log.error("message %d of %s cannot be read: %s", first, queue, damage)  # noqa: TRY400
            reading.damaged.append(first)
            return offsets[1:]
        if isinstance(answer, OutOfRange):
            if not answer.below_min:
                raise answer.to_error()
            tail.min_offset = answer.min_offset
            reading.gone += [each for each in offsets if each < answer.min_offset]
            return [each for each in offsets if each >= answer.min_offset]
        now = asyncio.get_running_loop().time()
        self._tails.note_read(tail, answer.max_offset)
        kept = self._kept.put(queue, first, answer, now)
        if kept.next_offset <= first:
            # At its end, which lies before what was acquired: the log has lost some.
            raise OutOfRange(queue, first, tail.min_offset, answer.max_offset).to_error()
        # Not by way of `kept` alone: it may have had no room for it.
        rest = [each for each in offsets if each >= kept.next_offset]
        reading.take(kept, offsets[: len(offsets) - len(rest)])
        return rest
