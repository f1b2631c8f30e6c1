"""Interfaces of log sources; a store directory and a live cluster implement them.

    LogSource       used once by the driver, when a read is planned
    ContiguousLog   state of one broker's log at that moment, for jobs that read all of it
    LogPartition    input of one task; together, the partitions contain each record once

A query may skip damage (`read`). A job whose result is wrong if one record is missing uses `runs`,
and its driver checks that no records are missing between partitions (`check_complete` of
`store_directory`).

If bodies or properties are read, the checksum of each record is verified: a record with a wrong
checksum is reported as damage. Other reads do not verify checksums. A selection by tags reads the
properties of all messages, and so verifies all of their checksums.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import MessageQueue
from rockoon_format.frames import IntArray
from rockoon_format.names import is_system_topic
from rockoon_spark.records.columns import CHECKED, LogRecords, to_batch
from rockoon_spark.records.selection import Coverage, QueueKey, Selection
from rockoon_spark.records.sent_columns import SentColumns

if TYPE_CHECKING:
    # Only jobs use it; its import would cost each start of a stream.
    from rockoon_spark.records.record_run import RecordRun

log = logging.getLogger(__name__)

BATCH_RECORDS = 8192
SPLIT_BYTES = 64 << 20
FORGED_FAULT = (
    "look like records, but are part of a message's body: the next partition begins within it and"
    " would read false records; another splitBytes divides the log elsewhere"
)


class DataLost(Exception):
    """Messages were deleted or lost after a read was planned."""


class BrokerAway(Exception):
    """A broker cannot be reached, or the cluster has no broker of this name."""


class GenerationReplaced(Exception):
    """A generation was replaced by a newer one, and its files were deleted."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Damaged bytes of a log; physical offsets, `end` is exclusive."""

    log: str
    """Name of the log, for error texts."""
    start: int
    end: int
    fault: str = "hold no record"

    def __str__(self) -> str:
        return f"{self.log}: physical offsets {self.start} to {self.end} {self.fault}"


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record that a run read, by which the next run identifies the log."""

    offset: int
    """Physical offset of the record."""
    bytes: int
    crc32: int
    """CRC-32 of the whole record."""


class LogPartition(Protocol):
    """Partition that one task reads: some records of a log. Can be pickled."""

    def read(self) -> Iterator[LogRecords | SentColumns | DamagedRange]:
        """Yield the records in batches, in the order of the log, and the damaged ranges.

        Columns are yielded only for selected records, and only if the plan was made for these
        columns. If they include data of the producer, the checksums of the records are correct.

        Raises:
            DataLost: records were deleted after the read was planned, and options forbid that.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousPartition(ABC):
    """The records that start between two physical offsets of one broker's log; a `LogPartition`."""

    start: int
    stop: int
    """Physical offset at which the partition ends, exclusive."""
    at_record: bool = False
    """True if a record starts at `start`, or nothing was written from there on. If False, the
    partition begins with the first record after `start`."""
    fails_on_data_loss: bool = True
    """True if `read` fails when messages were deleted."""
    coverage: Coverage | None = None
    """Records that a query reads from a generation instead."""

    def cut(self, split_bytes: int) -> list[Self]:
        """Divide into partitions of at most `split_bytes`, in order."""
        return [
            replace(
                self,
                start=at,
                stop=min(at + split_bytes, self.stop),
                # A cut can be within a record: only the first start is a record boundary.
                at_record=self.at_record and at == self.start,
            )
            for at in range(self.start, self.stop, split_bytes)
        ]

    @abstractmethod
    def read(self) -> Iterator[LogRecords | SentColumns | DamagedRange]:
        """Yield the records of the partition; see `LogPartition`. Records of deleted topics are
        omitted.
        """

    @abstractmethod
    def records(self, offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        """Yield the records of the partition for a job that reads twice; may include records of
        deleted topics.

        Args:
            offsets: physical offsets of the records to read, int64[n], ascending; other records may
                be omitted.

        Raises:
            FileNotFoundError, DataLost: records were deleted.
        """

    @abstractmethod
    def runs(self) -> "Iterator[RecordRun]":
        """Yield all records that start in this partition, as contiguous runs; a run ends only at
        the end of a file.

        Raises:
            LogBroken: records are damaged, deleted, or cannot be read.
        """


class ContiguousLog(Protocol):
    """State of one broker's log at the moment of planning. Can be pickled."""

    @property
    def broker(self) -> str: ...

    @property
    def start(self) -> int:
        """Physical offset of the oldest byte; if the log is not empty, a record starts there."""

    @property
    def sealed_end(self) -> int:
        """Physical offset of the file with the newest record; the log below is immutable."""

    @property
    def end(self) -> int:
        """Physical offset below which all readable records start; see `is_end_known`."""

    @property
    def is_end_known(self) -> bool:
        """True if the last record ends at `end`. False for a store directory, where `end` is the
        end of the last file, because the last record is found only by reading the file."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Per topic, the physical offset below which its records were deleted with it."""

    def partitions(
        self, start: int, stop: int, split_bytes: int | None = None, *, at_record: bool = True
    ) -> Sequence[ContiguousPartition]:
        """Divide a range of the log into partitions.

        Args:
            start, stop: physical offsets; records that start at `stop` or later are excluded.
            split_bytes: maximum size of a partition; by default the largest that a task can read
                with little memory.
            at_record: True if a record or a file starts at `start`.
        """

    def following(self, offset: int) -> int:
        """Return the offset of the next record after one that ends at `offset`.

        This is `offset`, or the start of the next file if the file is closed at `offset`.

        Raises:
            LogBroken: the log can no longer be read there.
        """

    def is_end(self, offset: int) -> bool:
        """True if nothing was written from a physical offset on."""

    def name_at(self, offset: int, /) -> str:
        """Return the file or broker with a physical offset, for error texts."""

    def oldest(self) -> int:
        """Return the physical offset of the oldest byte now, not at the moment of planning.

        Raises:
            RockoonError, StoreReadError: the log cannot be read.
        """

    def knows(self, last: LastRecord) -> bool | None:
        """True if the log contains this record at its offset; None if it was deleted.

        Raises:
            RockoonError: the broker does not answer.
        """


@dataclass(frozen=True, slots=True)
class ExistingQueues:
    """Topics and queues that exist. Internal topics may be missing."""

    topics: frozenset[str]
    queues: frozenset[QueueKey]
    """All keys by which an option may name a queue."""

    def absent_topics(self, names: Iterable[str]) -> list[str]:
        """Return the given topics that do not exist, sorted."""
        return sorted(
            name for name in names if name not in self.topics and not is_system_topic(name)
        )

    def absent_queues(self, keys: Iterable[QueueKey]) -> list[QueueKey]:
        """Return the given queues that do not exist, sorted."""
        return sorted(key for key in keys if key not in self.queues and not is_system_topic(key[0]))


def keys_of(queue: MessageQueue) -> set[QueueKey]:
    """Return the keys by which an option may name a queue."""
    return {(queue.topic, broker, queue.queue_id) for broker in ("", queue.broker)}


def existing_queues(routes: Iterable[TopicRoute]) -> ExistingQueues:
    """Return the topics and queues of some routes."""
    topics, queues = set[str](), set[QueueKey]()
    for route in routes:
        topics.add(route.name)
        for queue in route.queues:
            queues |= keys_of(queue)
    return ExistingQueues(frozenset(topics), frozenset(queues))


CheckQueues = Callable[[ExistingQueues | None], None]
"""Type of a function that checks names against the topics and queues that exist, or None if these
are not known; it may raise."""


class LogSource(Protocol):
    """The logs of one broker or of several. Can be pickled."""

    def partitions(
        self,
        selection: Selection,
        split_bytes: int,
        check: CheckQueues | None = None,
        columns: Sequence[str] = (),
    ) -> Sequence[LogPartition]:
        """Divide the current logs and generations into partitions.

        Partitions that cannot contain a selected record may be omitted.

        Args:
            selection: the records to read.
            split_bytes: maximum size of a partition.
            check: called once, before any log is read.
            columns: the only columns that the reader needs; empty: it needs whole records.
        """

    def existing(self) -> ExistingQueues | None:
        """Return the topics and queues that exist; None if they are not known."""

    def log(self) -> ContiguousLog:
        """Return the current state of the only log, which may be empty.

        Raises:
            LogBroken, StoreReadError: there is no log, or several and none was named.
            RockoonError: no nameserver answers.
        """

    def logs(self) -> Sequence[ContiguousLog]:
        """Return the current state of all nonempty logs.

        Raises:
            BrokerAway, LogBroken, LogUnreadable, RockoonError, StoreReadError: one cannot be read.
        """


def in_batches(
    data: NDArray[np.uint8] | bytes, base: int, starts: IntArray, sizes: IntArray, broker: str
) -> Iterator[LogRecords]:
    """Yield the records of some bytes in batches of BATCH_RECORDS; see `LogRecords.of`."""
    for at in range(0, len(starts), BATCH_RECORDS):
        chosen = slice(at, at + BATCH_RECORDS)
        yield LogRecords.of(data, base, starts[chosen], sizes[chosen], broker)


def report_loss(sentence: str, *, fails: bool) -> None:
    """Report lost messages: raise DataLost, or log a warning."""
    if fails:
        raise DataLost(f"{sentence}; option failOnDataLoss=false reads what is left")
    log.warning("%s", sentence)


RECORD_FAULT = "are a record with a wrong checksum"


def rows(
    found: Iterable[LogRecords | SentColumns | DamagedRange],
    selection: Selection,
    columns: Sequence[str],
    report: Callable[[DamagedRange], None],
) -> Iterator[pa.RecordBatch]:
    """Convert records to rows.

    Args:
        found: the content of a partition (`LogPartition.read`).
        selection: the records to return.
        columns: names of COLUMNS.
        report: called with each damaged range, before the rows after it; may raise. If it returns,
            the range is skipped.
    """
    for each in found:
        if isinstance(each, DamagedRange):
            report(each)
            continue
        if isinstance(each, SentColumns):
            yield each.to_batch(columns)
            continue
        records = each
        if "tags" in selection.one_of:
            # The tag of a damaged record is unknown, so the damage is reported before the selection
            # by tags.
            records = records.chosen(selection.of_any_tags().mask(records))
            records = without_damaged(records, report)
        records = records.chosen(selection.mask(records))
        if "tags" not in selection.one_of and not CHECKED.isdisjoint(columns):
            records = without_damaged(records, report)
        if len(records):
            yield to_batch(records, columns)


def rows_of_schema(
    found: Iterable[LogRecords | SentColumns | DamagedRange],
    selection: Selection,
    schema: pa.Schema,
    report: Callable[[DamagedRange], None],
) -> Iterator[pa.RecordBatch]:
    """Convert records to rows of a schema, whose columns have the types of COLUMNS.

    Args:
        found, selection, report: as in `rows`.
        schema: of the rows.

    Raises:
        ValueError: a column of the schema may not be null, and a row has no value.
    """
    for batch in rows(found, selection, schema.names, report):
        if batch.schema.equals(schema):
            yield batch
        else:
            yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def without_damaged(records: LogRecords, report: Callable[[DamagedRange], None]) -> LogRecords:
    """Return the records with correct checksums; call `report` for each of the other records."""
    damaged = records.are_damaged()
    if not damaged.any():
        return records
    starts = records.prefix("physical_offset")[damaged]
    for start, size in zip(starts.tolist(), records.sizes[damaged].tolist(), strict=True):
        report(DamagedRange(f"broker {records.broker!r}", start, start + size, RECORD_FAULT))
    return records.chosen(np.logical_not(damaged))
