"""End of a log on disk: the end of its last whole record, with verified checksums.

The broker may be writing to the log, or a power failure may have left half a batch. An incomplete
record at the end was never acknowledged, so it is ignored. If whole records follow a broken one,
the job fails: only the broker decides about them, when it starts. Records that are durable by the
store's checkpoint are not verified here; the copying step detects damage in the records it keeps.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rockoon_spark.compaction.exchange import Exchange
from rockoon_spark.compaction.sources import CompactionError
from rockoon_spark.compaction.steps import Message, MessageKind
from rockoon_spark.files import LogFile
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import in_batches


@dataclass(slots=True)
class _Extent:
    """Range of whole records in a partition; physical offsets."""

    first: int | None = None
    """Start of the first record; None if there is none."""
    end: int = 0
    """End of the last whole record."""
    broken: int | None = None
    """Start of the first bytes that are not a whole record, if records follow them."""
    trouble: str | None = field(default=None, kw_only=True)
    """Error text if the partition cannot be read."""


@dataclass(frozen=True, slots=True)
class _Examine:
    """Step that examines one partition of a file; the task number is the partition's index."""

    partitions: Sequence[FilePartition]
    durable_ms: int

    def __call__(self, number: int) -> Iterator[Message]:
        extent = _examine(self.partitions[number], self.durable_ms)
        values = [extent.first, extent.end, extent.broken, extent.trouble]
        yield Message(MessageKind.SURVEY, 0, number, json.dumps(values).encode())


def log_end(
    files: Sequence[LogFile], exchange: Exchange, *, split_bytes: int, durable_ms: int
) -> int:
    """Return the physical offset at which a log ends.

    Args:
        files: of the log, in order.
        exchange: runs the tasks.
        split_bytes: bytes that one task reads.
        durable_ms: records stored before this time are on disk, epoch milliseconds.

    Raises:
        CompactionError: whole records follow broken ones, or a file cannot be read.
    """
    for file in reversed(files):
        end = _end_in(file, exchange, split_bytes, durable_ms)
        if end > file.start:
            return end
    return files[0].start if files else 0


def _end_in(file: LogFile, exchange: Exchange, split_bytes: int, durable_ms: int) -> int:
    partitions = FilePartition.of(file).cut(split_bytes)
    answers = sorted(
        exchange.start(len(partitions), _Examine(partitions, durable_ms)).collect(),
        key=lambda each: each.source,
    )
    end, broken = file.start, None
    for answer in answers:
        first, whole_end, torn, trouble = json.loads(answer.content)
        if trouble:
            raise CompactionError(trouble)
        # A partition that begins at a cut does not report damage before its first record.
        if broken is None and first is not None and first != end:
            broken = end
        if broken is None:
            broken = torn
        if first is not None:
            if broken is not None and whole_end > broken:
                raise CompactionError(
                    f"{file.shown}: a broken record at physical offset {broken} is followed by "
                    "whole records: start the broker, which repairs its log, then run again"
                )
            end = max(whole_end, first)
    return end if broken is None else broken


def _examine(partition: FilePartition, durable_ms: int) -> _Extent:
    try:
        buffer, found = partition.scan()
    except OSError as error:
        return _Extent(trouble=f"{partition.file.shown} cannot be read: {error}; run again")
    base = partition.start
    extent = _Extent(broken=found.damages[0].start if found.damages else None)
    # Store times ascend within a file: if the last record is durable, all are.
    last = LogRecords.of(buffer, base, found.starts[-1:], found.sizes[-1:], "")
    if len(last) and int(last.store_timestamps_ms[0]) < durable_ms:
        extent.first = base + int(found.starts[0])
        extent.end = base + int(found.starts[-1] + found.sizes[-1])
        return extent
    for records in in_batches(buffer, base, found.starts, found.sizes, ""):
        wrong = records.are_damaged()
        starts = records.prefix("physical_offset")
        if wrong.any():
            at = int(starts[int(wrong.argmax())])
            extent.broken = at if extent.broken is None else min(extent.broken, at)
        if extent.first is None:
            extent.first = int(starts[0])
        whole = np.flatnonzero(~wrong)
        if len(whole):
            extent.end = int(starts[whole[-1]] + records.sizes[whole[-1]])
    return extent
