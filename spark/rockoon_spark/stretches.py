"""Where a log comes from, as a reader sees it: stretches, each of which one task reads.

A place is asked once, when a read is planned; its stretches go to the tasks, which may be on other
machines. Together they hold every record of the log once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_spark.log_columns import LogRecords
from rockoon_spark.selection import Selection

BATCH_RECORDS = 8192


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """Bytes of a log that belong to no record; physical offsets, the end exclusive."""

    log: str
    """Which log, for people."""
    start: int
    end: int


class Stretch(Protocol):
    """The records that start between two places of a log. Can be pickled."""

    def read(self) -> Iterator[LogRecords | DamagedPlace]:
        """The records, some at a time in the order of the log, and what is damaged among them."""
        ...


class LogPlace(Protocol):
    """A log, or several. Can be pickled."""

    def stretches(self, selection: Selection, split_bytes: int) -> Sequence[Stretch]:
        """Cut the log as it is now; what cannot hold a record that is selected may be left out.

        Args:
            selection: which records are wanted.
            split_bytes: length of a stretch, at most.
        """
        ...


def in_batches(
    buffer: NDArray[np.uint8], base: int, starts: IntArray, sizes: IntArray, broker: str
) -> Iterator[LogRecords]:
    """Records of a buffer, as many at a time as make one batch; see `LogRecords.of`."""
    for at in range(0, len(starts), BATCH_RECORDS):
        chosen = slice(at, at + BATCH_RECORDS)
        yield LogRecords.of(buffer, base, starts[chosen], sizes[chosen], broker)
