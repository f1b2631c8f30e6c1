"""Runs of records: neighbours in a log, for jobs that need every one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.scan import RECORDS_MAX_DEFAULT, Scan, scan


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
        self,
        *,
        with_tag_codes: bool,
        delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
        records_max: int = RECORDS_MAX_DEFAULT,
    ) -> Iterator[Scan]:
        """The records' fields, so many records at a time; see `scan`. Positions are in the buffer.

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
                records_max=records_max,
                delay_levels_ms=delay_levels_ms,
            )
            if records.count == 0:
                raise LogBroken(f"the record at {self.base + position}: {records.end.value}")
            yield records
            position = records.position


def no_record(name: str, start: int, end: int) -> str:
    """What is wrong with damaged bytes, in one sentence."""
    return f"{name}: physical offsets {start} to {end} hold no record"
