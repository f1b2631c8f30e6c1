"""Partitions of a log: each is read by one task.

A place is asked once, when a read is planned; its partitions go to the tasks, which may be on other
machines. Together they hold every record of the log once.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Selection

log = logging.getLogger(__name__)

BATCH_RECORDS = 8192
FORGED_FAULT = (
    "look like records, but are part of a message: the next split begins there, and cannot tell;"
    " another splitBytes begins elsewhere"
)


class DataLost(Exception):
    """Messages that were there when a read was planned are there no more."""


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """Bytes of a log that are not what was stored; physical offsets, the end exclusive."""

    log: str
    """Which log, for people."""
    start: int
    end: int
    fault: str = "hold no record"

    def __str__(self) -> str:
        return f"{self.log}: physical offsets {self.start} to {self.end} {self.fault}"


class LogPartition(Protocol):
    """The records that start between two places of a log. Can be pickled."""

    def read(self) -> Iterator[LogRecords | DamagedPlace]:
        """The records, some at a time in the order of the log, and what is damaged among them."""
        ...


class LogSource(Protocol):
    """A log, or several. Can be pickled."""

    def partitions(self, selection: Selection, split_bytes: int) -> Sequence[LogPartition]:
        """Cut the log as it is now; what cannot hold a record that is selected may be left out.

        Args:
            selection: which records are wanted.
            split_bytes: length of a partition, at most.
        """
        ...

    def absent(self, topics: Collection[str]) -> Sequence[str]:
        """Those of some topics of which it is known that they do not exist."""
        ...


def in_batches(
    buffer: NDArray[np.uint8], base: int, starts: IntArray, sizes: IntArray, broker: str
) -> Iterator[LogRecords]:
    """Records of a buffer, as many at a time as make one batch; see `LogRecords.of`."""
    for at in range(0, len(starts), BATCH_RECORDS):
        chosen = slice(at, at + BATCH_RECORDS)
        yield LogRecords.of(buffer, base, starts[chosen], sizes[chosen], broker)


def report_loss(sentence: str, *, fails: bool) -> None:
    """Raise DataLost, or say what is left out."""
    if fails:
        raise DataLost(f"{sentence}; option failOnDataLoss=false reads what is left")
    log.warning("%s", sentence)
