"""Runs of contiguous records of a log, for jobs that need every record."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rockoon_format.consume_queue import LogCutter, QueueRuns, queue_runs
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.index_entries import KeyEntries, index_entries, joined, keys_within
from rockoon_format.scan import Scan, scan

# Records scanned together. The more, the longer are the runs of a queue's entries; Spark has a cost
# per run that exceeds the cost of its entries.
_RECORDS_TOGETHER = 65_536
_BYTES_TOGETHER = 16 << 20


class LogBroken(Exception):
    """A log is damaged, was partly deleted before it was read, or cannot be read."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """A run: contiguous whole records of a log, in one block of bytes."""

    content: bytes
    """Bytes that begin with the first record; may be longer than the records."""
    base: int
    """Physical offset of the first byte of `content`."""
    stop: int
    """Position in `content` after the last record."""

    @property
    def extent(self) -> tuple[int, int]:
        """Physical offsets at which the first record begins and the last one ends."""
        return self.base, self.base + self.stop

    def scans(
        self, *, with_tag_codes: bool, delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    ) -> Iterator[Scan]:
        """Parse the records in batches; see `scan`. Positions are in `content`.

        Raises:
            LogBroken: bytes among them are not a record.
        """
        position = 0
        while position < self.stop:
            records = scan(
                self.content,
                position,
                self.stop,
                check_crc=False,
                with_tag_codes=with_tag_codes,
                records_max=_RECORDS_TOGETHER,
                delay_levels_ms=delay_levels_ms,
            )
            if records.count == 0:
                raise LogBroken(f"the record at {self.base + position}: {records.end.value}")
            yield records
            position = records.position

    def keys(self) -> KeyEntries:
        """Return the entries of the records in an index by key.

        Raises:
            LogBroken: bytes among them are not a record.
        """
        found = keys_within(self.content, self.stop, self.base)
        if found is not None:
            return found
        scans = self.scans(with_tag_codes=False)
        return joined([index_entries(self.content, records, self.base) for records in scans])


def queue_runs_of(
    runs: Iterable[RecordRun],
    marks: Mapping[str, int],
    delay_levels_ms: Sequence[int],
    file_entries: int,
) -> Iterator[tuple[list[str], QueueRuns]]:
    """Yield the ConsumeQueue entries of records in batches, each with its numbered topics.

    Args:
        runs: of records, in order.
        marks: per topic, the physical offset below which its records were deleted with it.
        delay_levels_ms: delays of the broker's levels, milliseconds.
        file_entries: entries per queue file.

    Raises:
        LogBroken: bytes among the records are not a record.
    """
    cutter = LogCutter(marks, file_entries)
    cut_bytes = 0
    left: list[RecordRun] = []
    for run in runs:
        is_cut = cutter.add(run.content, run.stop, run.base)
        if left and (is_cut or not _joins(left, run)):
            yield from _scanned(left, marks, delay_levels_ms, file_entries)
            left = []
        if is_cut:
            cut_bytes += run.stop
        else:
            left.append(run)
        if cut_bytes and (not is_cut or cut_bytes >= _BYTES_TOGETHER):
            cut_bytes = 0
            yield _named(cutter)
    if left:
        yield from _scanned(left, marks, delay_levels_ms, file_entries)
    if cut_bytes:
        yield _named(cutter)


def _joins(runs: Sequence[RecordRun], run: RecordRun) -> bool:
    """True if a run continues the given runs, and all runs together are small enough for one
    scan.
    """
    start, end = run.extent
    return runs[-1].extent[1] == start and end - runs[0].base <= _BYTES_TOGETHER


def _scanned(
    neighbours: Sequence[RecordRun],
    marks: Mapping[str, int],
    delay_levels_ms: Sequence[int],
    file_entries: int,
) -> Iterator[tuple[list[str], QueueRuns]]:
    """Yield the ConsumeQueue entries of runs that the cutter does not process; see
    `queue_runs_of`.
    """
    content = b"".join([run.content[: run.stop] for run in neighbours])
    together = RecordRun(content, neighbours[0].base, len(content))
    for records in together.scans(with_tag_codes=True, delay_levels_ms=delay_levels_ms):
        topics = [topic.decode(errors="replace") for topic in records.topics]
        min_offsets = np.array([marks.get(topic, 0) for topic in topics], np.int64)
        physical = records.offsets + together.base
        listed = records.has_queue_entry & (physical >= min_offsets[records.topic_numbers])
        yield topics, queue_runs(records, physical, listed, file_entries)


def _named(cutter: LogCutter) -> tuple[list[str], QueueRuns]:
    topics, runs = cutter.taken()
    return [topic.decode() for topic in topics], runs


def no_record(name: str, start: int, end: int) -> str:
    """Return the error text for damaged bytes."""
    return f"{name}: physical offsets {start} to {end} hold no record"
