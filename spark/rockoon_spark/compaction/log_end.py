"""End of a log on a disk: behind its last whole record, every checksum verified.

Its broker may be writing it at this moment, or a power cut may have left half a batch. Whatever
breaks off at the end was acknowledged to nobody. Whole records behind a broken one are another
matter: a start of the broker decides about them, no job does. What the store's checkpoint says to
be on disk since long needs no checksum here; damage in what is left is noticed where it is copied.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rockoon_spark.compaction.exchange import Exchange
from rockoon_spark.compaction.sources import CompactionError
from rockoon_spark.compaction.steps import Kind, Message
from rockoon_spark.files import LogFile
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import in_batches


@dataclass(slots=True)
class _Extent:
    """What of a partition is whole; physical offsets."""

    first: int | None = None
    """Where the first record starts; None if there is none."""
    behind: int = 0
    """Behind the last one that is whole."""
    broken: int | None = None
    """Where the first bytes are that are no whole record, with others behind them."""
    trouble: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class _Examine:
    """Looks at partitions of one file; a task is the number of one."""

    partitions: Sequence[FilePartition]
    durable_ms: int

    def __call__(self, number: int) -> Iterator[Message]:
        extent = _examine(self.partitions[number], self.durable_ms)
        values = [extent.first, extent.behind, extent.broken, extent.trouble]
        yield Message(Kind.SURVEY, 0, number, json.dumps(values).encode())


def log_end(
    files: Sequence[LogFile], exchange: Exchange, *, split_bytes: int, durable_ms: int
) -> int:
    """The end of a log, physical offset.

    Args:
        files: of the log, in order.
        exchange: runs the tasks.
        split_bytes: bytes that one task reads.
        durable_ms: every record that was stored before is on disk, epoch milliseconds.

    Raises:
        CompactionError: whole records stand behind broken ones, or a file cannot be read.
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
        first, behind, torn, trouble = json.loads(answer.content)
        if trouble:
            raise CompactionError(trouble)
        # A partition that begins at a cut does not see what is damaged before its first record.
        if broken is None and first is not None and first != end:
            broken = end
        if broken is None:
            broken = torn
        if first is not None:
            if broken is not None and behind > broken:
                raise CompactionError(
                    f"{file.shown}: at physical offset {broken} is no whole record, and behind it "
                    "there are: a start of the broker mends what a power cut left"
                )
            end = max(behind, first)
    return end if broken is None else broken


def _examine(partition: FilePartition, durable_ms: int) -> _Extent:
    try:
        buffer, found = partition.look()
    except OSError as error:
        return _Extent(trouble=f"{partition.file.shown} cannot be read: {error}; run again")
    base = partition.start
    extent = _Extent(broken=found.damages[0].start if found.damages else None)
    # Store times ascend over a file, so the last one answers for all.
    last = LogRecords.of(buffer, base, found.starts[-1:], found.sizes[-1:], "")
    if len(last) and int(last.store_timestamps_ms[0]) < durable_ms:
        extent.first = base + int(found.starts[0])
        extent.behind = base + int(found.starts[-1] + found.sizes[-1])
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
            extent.behind = int(starts[whole[-1]] + records.sizes[whole[-1]])
    return extent
