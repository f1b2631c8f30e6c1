"""Runs of records: neighbours in a log, for jobs that need every one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rockoon_format import kernel
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.index_entries import KeyEntries, index_entries, joined, keys_within
from rockoon_format.queue_runs import LogCutter, QueueRuns, queue_runs
from rockoon_format.scan import Scan, scan

# Runs of a queue's entries are the longer, the more records are looked at together; one costs Spark
# more than its entries do.
_RECORDS_TOGETHER = 65_536
_BYTES_TOGETHER = 16 << 20


class LogBroken(Exception):
    """A log is damaged, has lost what was to be read, or cannot be read."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Whole records that are neighbours in the log."""

    content: bytes
    """Begins with the first of them."""
    base: int
    """Physical offset of the first byte."""
    stop: int
    """Where in the content the last one ends."""

    @property
    def extent(self) -> tuple[int, int]:
        """Physical offsets where the first begins and the last one ends."""
        return self.base, self.base + self.stop

    def scans(
        self, *, with_tag_codes: bool, delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    ) -> Iterator[Scan]:
        """The records' fields, so many records at a time; see `scan`. Positions are in the content.

        Raises:
            LogBroken: one of them is no record.
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
        """What an index by key holds of the records.

        Raises:
            LogBroken: one of them is no record.
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
    """What ConsumeQueues hold of records, many at a time, with the topics that are numbered.

    Args:
        runs: of records, in order.
        marks: topic to the physical offset below which its records went with it.
        delay_levels_ms: of the broker.
        file_entries: of a queue's file.

    Raises:
        LogBroken: there is something else among them.
    """
    cutter = None if kernel.native is None else LogCutter(marks, file_entries)
    cut_bytes = 0
    left: list[RecordRun] = []
    for run in runs:
        is_cut = cutter is not None and cutter.add(run.content, run.stop, run.base)
        if left and (is_cut or not _goes_on(left, run)):
            yield from _scanned(left, marks, delay_levels_ms, file_entries)
            left = []
        if is_cut:
            cut_bytes += run.stop
        else:
            left.append(run)
        if cutter is not None and cut_bytes and (not is_cut or cut_bytes >= _BYTES_TOGETHER):
            cut_bytes = 0
            yield _named(cutter)
    if left:
        yield from _scanned(left, marks, delay_levels_ms, file_entries)
    if cutter is not None and cut_bytes:
        yield _named(cutter)


def _goes_on(runs: Sequence[RecordRun], run: RecordRun) -> bool:
    """Whether a run follows some neighbours and they are looked at together."""
    start, end = run.extent
    return runs[-1].extent[1] == start and end - runs[0].base <= _BYTES_TOGETHER


def _scanned(
    neighbours: Sequence[RecordRun],
    marks: Mapping[str, int],
    delay_levels_ms: Sequence[int],
    file_entries: int,
) -> Iterator[tuple[list[str], QueueRuns]]:
    """As `queue_runs_of`, where the kernel leaves it open, or there is none."""
    content = b"".join([run.content[: run.stop] for run in neighbours])
    together = RecordRun(content, neighbours[0].base, len(content))
    for records in together.scans(with_tag_codes=True, delay_levels_ms=delay_levels_ms):
        topics = [topic.decode(errors="replace") for topic in records.topics]
        floors = np.array([marks.get(topic, 0) for topic in topics], np.int64)
        physical = records.offsets + together.base
        listed = records.has_queue_entry & (physical >= floors[records.topic_numbers])
        yield topics, queue_runs(records, physical, listed, file_entries)


def _named(cutter: LogCutter) -> tuple[list[str], QueueRuns]:
    topics, runs = cutter.taken()
    return [topic.decode() for topic in topics], runs


def no_record(name: str, start: int, end: int) -> str:
    """What is wrong with damaged bytes, in one sentence."""
    return f"{name}: physical offsets {start} to {end} hold no record"
