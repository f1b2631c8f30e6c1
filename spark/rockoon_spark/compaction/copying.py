"""The second step: what is left goes into the parts of a generation, byte for byte."""

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
from rockoon_spark.compaction.sources import CompactionError, Source, Wanted
from rockoon_spark.compaction.survey import QueueName


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One part to be."""

    number: int
    log_start: int
    """Physical offsets between which its records start, the end exclusive."""
    log_end: int


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part as it was written."""

    part: GenerationPart
    queues: Mapping[QueueName, int]
    """How many records it has of each queue."""
    tombstones: int
    seconds: float
    """Of one processor."""

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
    """Takes the files of a generation to be. Can be pickled."""

    def write(self, name: str, content: bytes) -> None:
        """Make a file, durably and at once; a file of that name is replaced.

        Two attempts at one task write the same bytes, so it does not matter whose are there.

        Raises:
            CompactionError: it cannot be written, or does not read as it was written.
        """
        ...


def copy_part(
    plan: PartPlan, sources: Sequence[tuple[Source, IntArray]], writer: PartWriter
) -> CopiedPart:
    """Write a part and its entries.

    Args:
        plan: which.
        sources: where its records are, and which: physical offsets, int64[n] each, ascending.
        writer: where the files go.

    Raises:
        CompactionError: a record is damaged, or there no more; or the writer's.
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
        # A broker leaves out a deleted topic's records without a word.
        if found != len(positions):
            raise CompactionError(
                f"{len(positions) - found} records between physical offsets {source.start} and "
                f"{source.stop} went while the log was read: was a topic deleted? Run again"
            )
    records, kept_since_ms = _in_order(topics, columns, frames)
    try:
        entries = part_entries(records, kept_since_ms)
        encoded = entries.encode()
    except GenerationError as error:
        raise CompactionError(
            f"between physical offsets {plan.log_start} and {plan.log_end}, among what is left: "
            f"{error}"
        ) from error
    for topic, queue, own in entries.slices():
        queues[topic, queue] = own.stop - own.start
    for name, content in zip(part_names(plan.number), (records, encoded), strict=True):
        writer.write(name, content)
    part = _describe(plan, entries, records, encoded)
    return CopiedPart(part, queues, tombstones, time.process_time() - began)


def _chosen(source: Source, positions: IntArray) -> Iterator[tuple[Wanted, IntArray]]:
    """Records of a source that start at given places; which of those read they are."""
    if not len(positions):
        return
    for wanted in source.read_at(positions):
        physical = wanted.column("physical_offset")
        at = np.minimum(np.searchsorted(positions, physical), len(positions) - 1)
        rows = np.flatnonzero(positions[at] == physical)
        if len(rows):
            yield wanted, rows


def _frames(wanted: Wanted, rows: IntArray) -> list[bytes]:
    """The records themselves."""
    index = wanted.index[rows]
    starts, sizes = wanted.records.parts.starts[index], wanted.records.sizes[index]
    first, behind = int(starts[0]), int(starts[-1] + sizes[-1])
    return slices(wanted.records.buffer[first:behind].tobytes(), starts - first, sizes)


def _in_order(
    topics: Mapping[str, int],
    columns: Sequence[tuple[IntArray, IntArray, IntArray, IntArray]],
    frames: list[bytes],
) -> tuple[bytes, IntArray]:
    """All records by (topic, queue, queue offset), and since when each is kept."""
    if not columns:
        return b"", np.zeros(0, np.int64)
    numbers, queues, offsets, kept = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    # By the topics' bytes, not by when they were met.
    ranks = np.empty(len(topics), np.int64)
    ranks[[topics[topic] for topic in sorted(topics, key=str.encode)]] = np.arange(len(topics))
    order = np.lexsort((offsets, queues, ranks[numbers]))
    total = sum(map(len, frames))
    if total > PART_BYTES_MAX:
        raise CompactionError(f"a part of {total} bytes: take a smaller part_bytes")
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
