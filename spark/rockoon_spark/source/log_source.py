"""Log sources: a store directory, or a live cluster. Both offer the same.

    LogSource       asked once, in the driver, when a read is planned
    ContiguousLog   one broker's log as it is at that moment, for jobs that go through it in order
    LogPartition    what one task reads, on whichever machine; together they hold each record once

A query takes what it finds and may pass over damage (`read`). A job whose result would be wrong
without one record may not (`runs`), and its driver sees that nothing is missing between two
partitions (`source.completeness`).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.record_run import RecordRun
from rockoon_spark.records.selection import QueueKey, Selection

log = logging.getLogger(__name__)

BATCH_RECORDS = 8192
SPLIT_BYTES = 64 << 20
FORGED_FAULT = (
    "look like records, but are part of a message: the next partition begins there, and cannot"
    " tell; another splitBytes begins elsewhere"
)


class DataLost(Exception):
    """Messages that were there when a read was planned are there no more."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes of a log that are not what was stored; physical offsets, the end exclusive."""

    log: str
    """Which log, for people."""
    start: int
    end: int
    fault: str = "hold no record"

    def __str__(self) -> str:
        return f"{self.log}: physical offsets {self.start} to {self.end} {self.fault}"


@dataclass(frozen=True, slots=True)
class LastRecord:
    """A record by which a log is known again."""

    offset: int
    """Physical."""
    bytes: int
    crc32: int
    """Of all of it."""


class LogPartition(Protocol):
    """Some records of a log. Can be pickled."""

    def read(self) -> Iterator[LogRecords | DamagedRange]:
        """The records, some at a time in the order of the log, and what is damaged among them.

        Raises:
            DataLost: what was there when the read was planned is gone, and that is not allowed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousPartition(ABC):
    """The records that start between two physical offsets of one broker's log; a `LogPartition`."""

    start: int
    stop: int
    """Exclusive."""
    at_record: bool = False
    """A record starts at `start`, or nothing was written from there on. If not, the partition
    begins with the first record behind it."""
    fails_on_data_loss: bool = True
    """What `read` does about messages that are gone."""
    coverage: Coverage | None = None
    """Records that a query reads from elsewhere."""

    def cut(self, split_bytes: int) -> list[Self]:
        """The same in partitions of at most `split_bytes`, in order."""
        return [
            replace(
                self,
                start=at,
                stop=min(at + split_bytes, self.stop),
                # A cut falls anywhere: only the first one's start is known to be a record's.
                at_record=self.at_record and at == self.start,
            )
            for at in range(self.start, self.stop, split_bytes)
        ]

    @abstractmethod
    def read(self) -> Iterator[LogRecords | DamagedRange]:
        """See `LogPartition`. Records of deleted topics are left out."""

    @abstractmethod
    def records(self, offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        """As `read`, for a job that reads twice; records of deleted topics may be among them.

        Args:
            offsets: physical offsets of the records that are wanted, int64[n], ascending; others
                may be left out.

        Raises:
            FileNotFoundError, DataLost: they are gone.
        """

    @abstractmethod
    def runs(self) -> Iterator[RecordRun]:
        """All records that start here; between two runs, nothing but the ends of files.

        Raises:
            LogBroken: something here is damaged, gone, or cannot be read.
        """


class ContiguousLog(Protocol):
    """One broker's log as it was when somebody looked. Can be pickled."""

    @property
    def broker(self) -> str: ...

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
        """Every record that may be read lies below; see `is_end_known`."""
        ...

    @property
    def is_end_known(self) -> bool:
        """Whether the last record ends at `end`. Of files nobody knows without reading them: there,
        `end` is that of the last file."""
        ...

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which its records went with it."""
        ...

    def partitions(
        self, start: int, stop: int, split_bytes: int | None = None, *, at_record: bool = True
    ) -> Sequence[ContiguousPartition]:
        """Cut what lies between two physical offsets.

        Args:
            start, stop: records that start at `stop` or behind are left out.
            split_bytes: length of a partition, at most; by default as long as a task can read one
                with little memory.
            at_record: a record starts at `start`, or a file.
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

    def oldest(self) -> int:
        """Physical offset of the oldest byte at this moment, not when somebody looked.

        Raises:
            RockoonError, StoreError: that cannot be told.
        """
        ...

    def knows(self, last: LastRecord) -> bool | None:
        """Whether a record stands where it did; None where nobody can tell any more.

        Raises:
            RockoonError: the broker does not answer.
        """
        ...


class LogSource(Protocol):
    """The logs of one broker or of several. Can be pickled."""

    def partitions(self, selection: Selection, split_bytes: int) -> Sequence[LogPartition]:
        """Cut the logs as they are now, and what was compacted of them; what cannot hold a record
        that is selected may be left out.

        Args:
            selection: which records are wanted.
            split_bytes: length of a partition, at most.
        """
        ...

    def absent(self, topics: Collection[str]) -> Sequence[str]:
        """Those of some topics of which it is known that they do not exist."""
        ...

    def absent_queues(self, queues: Collection[QueueKey]) -> Sequence[QueueKey]:
        """The queues among some that are known not to exist, sorted. Internal topics are not
        checked."""
        ...

    def log(self) -> ContiguousLog:
        """The one log that there is, as it is now, perhaps without a record.

        Raises:
            LogBroken, StoreError: there is none, or it is not said which.
            RockoonError: nobody answers.
        """
        ...

    def logs(self) -> Sequence[ContiguousLog]:
        """All logs that have records, as they are now.

        Raises:
            BrokerAway, LogBroken, LogUnreadable, RockoonError, StoreError: one cannot be read.
        """
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
