"""Second step of a compaction: copies the kept records byte for byte into parts of a generation."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from rockoon_format.frames import IntArray, slices
from rockoon_format.generation import (
    PART_BYTES_MAX,
    GenerationError,
    GenerationPart,
    PartEntries,
    part_entries,
    part_names,
)
from rockoon_spark.compaction.sources import CompactedRecords, CompactionError, Source
from rockoon_spark.compaction.survey import QueueName


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part of the new generation that a task will write."""

    number: int
    log_start: int
    """Physical offset; the records of the part start at or after it, and before `log_end`."""
    log_end: int


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part of the new generation that a task has written."""

    part: GenerationPart
    queues: Mapping[QueueName, int]
    """Number of the part's records, by queue."""
    tombstones: int
    seconds: float
    """CPU time in which the part was written."""

    def to_json(self) -> dict[str, Any]:
        queues = [[*queue, records] for queue, records in self.queues.items()]
        return asdict(self) | {"queues": queues}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "CopiedPart":
        return cls(
            GenerationPart(**content["part"]),
            {(topic, queue): records for topic, queue, records in content["queues"]},
            int(content["tombstones"]),
            float(content["seconds"]),
        )


class PartWriter(Protocol):
    """Writes the files of a new generation. Can be pickled."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file durably and atomically; a file of that name is replaced.

        Two attempts of a task write the same bytes, so either may replace the other's file.

        Raises:
            CompactionError: it cannot be written, or reads back differently.
        """
        ...


def copy_part(
    plan: PartPlan, sources: Sequence[tuple[Source, IntArray]], writer: PartWriter
) -> CopiedPart:
    """Write a part of the new generation, and its entries.

    Args:
        plan: the part.
        sources: the sources of its records, each with the physical offsets of the records to copy,
            int64[n], ascending.
        writer: writes the files.

    Raises:
        CompactionError: a record is damaged or no longer there, or the writer failed.
    """
    began = time.process_time()
    queues: dict[QueueName, int] = {}
    columns: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
    frames: list[bytes] = []
    topics: dict[str, int] = {}
    tombstones = 0
    for source, positions in sources:
        found = 0
        for wanted, rows in _chosen(source, positions):
            numbers = np.array(
                [topics.setdefault(topic, len(topics)) for topic in wanted.topics], np.int64
            )
            columns.append(
                (
                    numbers[wanted.which[rows]],
                    wanted.column("queue_id")[rows],
                    wanted.column("queue_offset")[rows],
                    wanted.kept_since_ms[rows],
                )
            )
            frames += _frames(wanted, rows)
            tombstones += int(wanted.are_empty[rows].sum())
            found += len(rows)
        # A broker silently omits the records of a deleted topic.
        if found != len(positions):
            raise CompactionError(
                f"{len(positions) - found} records between physical offsets {source.start} and "
                f"{source.stop} disappeared while the log was read: was a topic deleted? Run again"
            )
    records, kept_since_ms = _in_order(topics, columns, frames)
    try:
        entries = part_entries(records, kept_since_ms)
        encoded = entries.encode()
    except GenerationError as error:
        raise CompactionError(
            f"the kept records between physical offsets {plan.log_start} and {plan.log_end} are "
            f"no valid part: {error}"
        ) from error
    for topic, queue, own in entries.slices():
        queues[topic, queue] = own.stop - own.start
    for name, content in zip(part_names(plan.number), (records, encoded), strict=True):
        writer.write(name, content)
    part = _describe(plan, entries, records, encoded)
    return CopiedPart(part, queues, tombstones, time.process_time() - began)


def _chosen(source: Source, positions: IntArray) -> Iterator[tuple[CompactedRecords, IntArray]]:
    """Yield the records that were read from a source, with the indexes of the records at the
    positions.
    """
    if not len(positions):
        return
    for wanted in source.read_at(positions):
        physical = wanted.column("physical_offset")
        at = np.minimum(np.searchsorted(positions, physical), len(positions) - 1)
        rows = np.flatnonzero(positions[at] == physical)
        if len(rows):
            yield wanted, rows


def _frames(wanted: CompactedRecords, rows: IntArray) -> list[bytes]:
    """Return the unmodified bytes of each selected record."""
    index = wanted.index[rows]
    starts, sizes = wanted.records.parts.starts[index], wanted.records.sizes[index]
    first, behind = int(starts[0]), int(starts[-1] + sizes[-1])
    return slices(wanted.records.buffer[first:behind].tobytes(), starts - first, sizes)


def _in_order(
    topics: Mapping[str, int],
    columns: Sequence[tuple[IntArray, IntArray, IntArray, IntArray]],
    frames: list[bytes],
) -> tuple[bytes, IntArray]:
    """Return all records to copy and their `kept_since_ms`, sorted by (topic, queue, queue
    offset).
    """
    if not columns:
        return b"", np.zeros(0, np.int64)
    numbers, queues, offsets, kept = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    # Topics are numbered in the order of reading, but parts are sorted by the topics' bytes.
    ranks = np.empty(len(topics), np.int64)
    ranks[[topics[topic] for topic in sorted(topics, key=str.encode)]] = np.arange(len(topics))
    order = np.lexsort((offsets, queues, ranks[numbers]))
    total = sum(map(len, frames))
    if total > PART_BYTES_MAX:
        raise CompactionError(
            f"a part has {total} bytes, at most {PART_BYTES_MAX} are allowed: reduce part_bytes"
        )
    return b"".join(map(frames.__getitem__, order.tolist())), kept[order]


def _describe(
    plan: PartPlan, entries: PartEntries, records: bytes, encoded: bytes
) -> GenerationPart:
    return GenerationPart(
        number=plan.number,
        log_start=plan.log_start,
        log_end=plan.log_end,
        records=len(entries),
        records_bytes=len(records),
        records_sha256=hashlib.sha256(records).hexdigest(),
        entries_bytes=len(encoded),
        entries_sha256=hashlib.sha256(encoded).hexdigest(),
    )
