"""A log as a job takes it in: every byte of it, in order, with nothing missing between two records.

What a job makes out of a log (an index, queues) is wrong if a single record is passed over, so it
does not read like a query, which takes what it finds. A place is asked once what it has; tasks read
partitions of that, each the records that *start* in it; at the end the driver sees that every
partition begins where the one before ended (`see_whole`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.scan import Scan, scan

_RECORDS_PER_SCAN = 65_536


class LogBroken(Exception):
    """A log is damaged, has lost what was to be read, or cannot be read."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Whole records that are neighbours in the log."""

    buffer: NDArray[np.uint8]
    base: int
    """Physical offset of the buffer's first byte."""
    start: int
    """Where the first of them starts, position in the buffer."""
    stop: int
    """Where the last one ends."""

    def scans(
        self, *, with_tag_codes: bool, delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    ) -> Iterator[Scan]:
        """The records' fields, some records at a time; see `scan`. Positions are in the buffer.

        Raises:
            LogBroken: one of them is no record.
        """
        position = self.start
        while position < self.stop:
            records = scan(
                self.buffer.data,
                position,
                self.stop,
                check_crc=False,
                with_tag_codes=with_tag_codes,
                records_max=_RECORDS_PER_SCAN,
                delay_levels_ms=delay_levels_ms,
            )
            if records.count == 0:
                raise LogBroken(f"the record at {self.base + position}: {records.end.value}")
            yield records
            position = records.position


class ContiguousPartition(Protocol):
    """What lies between two physical offsets of a log. Can be pickled."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def runs(self) -> Iterator[RecordRun]:
        """The records that start here; between two runs, nothing but the ends of files.

        Raises:
            LogBroken: something here is damaged, gone, or cannot be read.
        """
        ...


class LogReading(Protocol):
    """A log as it was when somebody looked."""

    @property
    def start(self) -> int:
        """Physical offset of its oldest byte; a record starts there, if there is any."""
        ...

    @property
    def sealed_end(self) -> int:
        """Where the file begins that the newest record lies in: nothing below changes any more."""
        ...

    @property
    def end(self) -> int:
        """Every record that may be read lies below. Where nobody knows without reading, the end of
        the last file."""
        ...

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which its records went with it."""
        ...

    def partitions(self, start: int, stop: int, split_bytes: int) -> Sequence[ContiguousPartition]:
        """Cut what lies between two physical offsets.

        Args:
            start: a record starts there, or a file.
            stop: records that start at or behind it are left out.
            split_bytes: length of a partition, at most.
        """
        ...

    def following(self, offset: int) -> int:
        """Where the log goes on behind a record that ends at a physical offset: there, or, where a
        file is closed, with the next file.

        Raises:
            LogBroken: it cannot be read any more.
        """
        ...

    def is_end(self, offset: int) -> bool:
        """Whether nothing was ever written from a physical offset on."""
        ...

    def name_at(self, offset: int, /) -> str:
        """The file, or the broker, that has a physical offset, for people."""
        ...


class ContiguousLog(Protocol):
    """Where a log is."""

    def look(self) -> LogReading:
        """The log as it is now.

        Raises:
            LogBroken, StoreError: there is none.
            RockoonError: nobody answers.
        """
        ...


Extent = tuple[int, int] | None
"""Physical offsets where a partition's first record starts and its last one ends, if any."""


def see_whole(reading: LogReading, start: int, stop: int, extents: Sequence[Extent]) -> int:
    """See that the records of partitions, one after the other, are all that a log has.

    Args:
        start, stop: physical offsets between which the partitions lie, in order, without a gap.
        extents: of each partition.

    Returns:
        Where the log goes on behind the last record: `stop`, or where what is written ends.

    Raises:
        LogBroken: bytes are missing between two of them, or before the end.
    """
    at = start
    for extent in extents:
        if extent is None:
            continue
        first, behind = extent
        if first != at:
            at = reading.following(at)
        if first != at:
            raise LogBroken(no_record(reading.name_at(at), at, first))
        at = behind
    if at != stop:
        at = reading.following(at)
    if at != stop and not (stop == reading.end and reading.is_end(at)):
        raise LogBroken(no_record(reading.name_at(at), at, stop))
    return at


def no_record(name: str, start: int, end: int) -> str:
    """What is wrong with damaged bytes, in one sentence."""
    return f"{name}: physical offsets {start} to {end} hold no record"
