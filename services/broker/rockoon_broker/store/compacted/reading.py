"""Reads of compacted queues: from the generation in its covered range, else from the log.

A queue without a generation costs one dict lookup. For order and meaning of the results see
`rockoon_broker.store.reading.reader`; this wraps its `Reader`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.compacted.open_generation import OpenGeneration, QueueCoverage
from rockoon_broker.store.errors import StoreDamaged, UnknownOffset
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.reading.reader import (
    GetResult,
    GetStatus,
    NewestBatch,
    QueueStatus,
    Reader,
    StoredAt,
    TimeBoundary,
)
from rockoon_format.record import decode_record


class Served(Protocol):
    """The active generation and its coverage; may change between two calls."""

    @property
    def generation(self) -> OpenGeneration | None:
        """The active generation."""

    @property
    def coverages(self) -> Mapping[QueueKey, QueueCoverage]:
        """Offsets that the active generation covers, by queue."""

    def is_compacted(self, topic: str) -> bool:
        """True for a compacted topic: the log keeps its messages until a generation contains
        them."""


class CompactedReader:
    """A `Reader` of log and generation; owned by the thread that owns both."""

    def __init__(self, log_reader: Reader, served: Served) -> None:
        self._log = log_reader
        self._served = served

    def _covering(self, topic: str, queue_id: int) -> tuple[OpenGeneration, QueueCoverage] | None:
        coverage = self._served.coverages.get((topic, queue_id))
        generation = self._served.generation
        return None if coverage is None or generation is None else (generation, coverage)

    def min_offset(self, topic: str, queue_id: int) -> int:
        covering = self._covering(topic, queue_id)
        return covering[1].covered_from if covering else self._log.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._log.max_offset(topic, queue_id)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        entries_max: int,
        tag_codes: NDArray[np.int64] | None,
    ) -> GetResult:
        """Read messages of a queue; see `Store.get`. One call reads from the generation or from the
        log, not from both."""
        covering = self._covering(topic, queue_id)
        if covering is None or offset >= covering[1].covered_to:
            found = self._log.get(
                topic,
                queue_id,
                offset,
                messages_max=messages_max,
                bytes_max=bytes_max,
                entries_max=entries_max,
                tag_codes=tag_codes,
            )
            if covering is None or found.status is GetStatus.OFFSET_TOO_SMALL:
                # After a change of policy, the log may have lost messages that follow the
                # generation.
                return found
            return replace(found, min_offset=covering[1].covered_from)
        generation, coverage = covering
        low, high = coverage.covered_from, self._log.max_offset(topic, queue_id)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        return self._from_generation(
            generation,
            coverage,
            (topic, queue_id),
            offset,
            GetResult(GetStatus.NO_MATCHED_MESSAGE, coverage.covered_to, low, high),
            messages_max=messages_max,
            bytes_max=bytes_max,
            entries_max=max(1, entries_max),
            tag_codes=tag_codes,
        )

    def newest(self, topic: str, queue_id: int, offset: int) -> NewestBatch | None:
        """Return the newest batch of a queue from memory, as `Store.newest`; None for a queue of a
        generation."""
        if (topic, queue_id) in self._served.coverages:
            return None
        return self._log.newest(topic, queue_id, offset)

    def _from_generation(
        self,
        generation: OpenGeneration,
        coverage: QueueCoverage,
        key: QueueKey,
        offset: int,
        nothing: GetResult,
        *,
        messages_max: int,
        bytes_max: int,
        entries_max: int,
        tag_codes: NDArray[np.int64] | None,
    ) -> GetResult:
        """Read from the generation from an offset on; return `nothing` if it has no record
        there."""
        taken: list[bytes] = []
        lengths: list[NDArray[np.int64]] = []
        next_offset = nothing.next_offset
        for entries, part, rows in generation.rows(coverage, offset):
            if entries_max <= 0:
                next_offset = int(entries.queue_offsets[rows[0]])
                break
            examined = rows[:entries_max]
            entries_max -= len(examined)
            wanted = examined
            if tag_codes is not None:
                wanted = examined[np.isin(entries.tag_codes[examined], tag_codes)]
            sizes = np.cumsum(entries.sizes[wanted].astype(np.int64))
            fitting = min(int(np.searchsorted(sizes, bytes_max, side="right")), messages_max)
            if not taken and len(wanted):
                fitting = max(1, fitting)
            if fitting:
                try:
                    frames, read_sizes = generation.read(key, part, wanted[:fitting])
                except StoreDamaged:
                    if not taken:
                        raise
                    # Return the records read before it; the next pull raises the error.
                    next_offset = int(entries.queue_offsets[wanted[0]])
                    break
                taken.append(frames)
                lengths.append(read_sizes)
                fitting = len(read_sizes)
                bytes_max -= len(frames)
                messages_max -= fitting
            if fitting < len(wanted):
                next_offset = int(entries.queue_offsets[wanted[fitting]])
                break
            if len(examined) < len(rows):
                next_offset = int(entries.queue_offsets[rows[len(examined)]])
                break
        if not taken:
            return replace(nothing, next_offset=next_offset)
        return replace(
            nothing,
            status=GetStatus.FOUND,
            next_offset=next_offset,
            frames=b"".join(taken) if len(taken) > 1 else taken[0],
            lengths=np.concatenate(lengths).astype(np.uint32),
        )

    def read_at(self, physical_offset: int) -> tuple[bytes, str]:
        """Return the record at a physical offset and its topic; see `Store.read_at`.

        Read from the log as long as the log has it, even if a newer message replaced it.
        """
        try:
            return self._log.read_at(physical_offset)
        except UnknownOffset:
            generation = self._served.generation
            frame = generation.read_at(physical_offset) if generation else None
            if frame is None:
                raise
        return frame, decode_record(frame, check_crc=False).topic.decode(errors="replace")

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: TimeBoundary
    ) -> int:
        """Find a message by its store time; see `Store.search_offset`. The result is the offset of
        an existing message."""
        covering = self._covering(topic, queue_id)
        if covering is None:
            return self._log.search_offset(topic, queue_id, timestamp_ms, boundary)
        generation, coverage = covering
        is_upper = boundary is TimeBoundary.UPPER
        # The log first: if some of its records are earlier than the time, so are all before them.
        following = self._log.search_offset(
            topic, queue_id, timestamp_ms + is_upper, TimeBoundary.LOWER, coverage.covered_to
        )
        if following > max(coverage.covered_to, self._log.min_offset(topic, queue_id)):
            return following - is_upper
        row = generation.first_since(coverage, timestamp_ms, behind=is_upper)
        if not is_upper:
            return following if row is None else generation.queue_offset(row)
        last = generation.before(coverage, row)
        return coverage.covered_from if last is None else generation.queue_offset(last)

    def status(
        self,
        topic: str,
        queue_id: int,
        visible_end: int,
        *,
        with_residency: bool,
        with_times: bool,
    ) -> QueueStatus:
        """Return the status of a queue; see `Store.queue_status`."""
        covering = self._covering(topic, queue_id)
        covered_to = 0 if covering is None else covering[1].covered_to
        status = self._log.status(
            topic,
            queue_id,
            visible_end,
            with_residency=with_residency,
            with_times=with_times,
            lowest=covered_to,
        )
        if covering is None:
            return status
        generation, coverage = covering
        status = replace(status, min_offset=coverage.covered_from)
        first, last = generation.first(coverage), generation.last(coverage)
        if first is None or last is None:
            return status
        if with_times:
            last_ms = status.last_store_timestamp_ms
            status = replace(
                status,
                first_store_timestamp_ms=generation.store_timestamp_ms(first),
                last_store_timestamp_ms=(
                    generation.store_timestamp_ms(last) if last_ms is None else last_ms
                ),
            )
        return replace(
            status,
            # A record of the generation is never near the log's end.
            first_entry_in_memory_by_distance=False,
            first_entry_pages_resident=(
                generation.pages_resident(first) if with_residency else None
            ),
        )

    def stored_at(self, topic: str, queue_id: int, offset: int) -> StoredAt | None:
        """Return position and time of a message; see `Store.stored_at`."""
        covering = self._covering(topic, queue_id)
        row = None
        if covering is not None:
            generation, coverage = covering
            row = generation.find(coverage, offset)
            offset = max(offset, coverage.covered_to)
        if covering is None or row is None:
            found = self._log.stored_at(topic, queue_id, offset)
            return found and replace(found, lasting=self._served.is_compacted(topic))
        physical, stored_ms = generation.physical_offset(row), generation.store_timestamp_ms(row)
        return StoredAt(physical, stored_ms, lasting=True)
