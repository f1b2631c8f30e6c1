"""Plan of a compaction: input of the run, division into parts, covered queue offsets.

Also its last step: the kept records are copied byte for byte into parts of a generation.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from rockoon_format.frames import IntArray, slices
from rockoon_format.generation import (
    PART_BYTES_MAX,
    CoveredQueue,
    GenerationError,
    GenerationPart,
    GenerationTopic,
    LogTail,
    Manifest,
    PartEntries,
    part_entries,
    part_names,
)
from rockoon_spark.compaction.sources import CompactedRecords, CompactionError, Source
from rockoon_spark.compaction.survey import QueueName, Survey


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


PART_BYTES = 256 << 20
_SHARE_BYTES_MIN = 16 << 20
_RECORDS_MISSING = (
    ": records after the current generation are missing, and the broker's retention did not delete "
    "them. Without them, older messages would be kept as the newest. Restore the files of the log; "
    "or, to compact {topic} again from the records that are left, change its cleanup.policy to "
    "DELETE, compact, and change it back"
)


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """State of a broker's log and current generation at the start of a run."""

    now_ms: int
    """Creation time of the new generation, epoch milliseconds."""
    log_start: int
    """Physical offset of the oldest byte of the log."""
    log_end: int
    """Physical offset of a record boundary; the compaction ignores the log after it."""
    log_tail: LogTail
    retention_ms: Mapping[str, int]
    """Retention of tombstones per compacted topic."""
    dropped_below: Mapping[str, int]
    """Per deleted topic, the physical offset below which its records are ignored."""
    former: Manifest | None
    """The current generation, which the new one replaces."""
    number: int
    """Number of the new generation."""

    @property
    def topics(self) -> dict[str, GenerationTopic | None]:
        """Return the topics to compact, each with its entry in the current generation."""
        return {
            topic: self._former_topic(topic)
            for topic in sorted(self.retention_ms, key=str.encode)
            # A topic that was deleted after log_end has no valid records before it.
            if self.dropped_below.get(topic, 0) <= self.log_end
        }

    @property
    def log_min_offsets(self) -> dict[str, int]:
        """Return, per topic, the physical offset from which its records are read from the log."""
        covered = self.former.log_end if self.former else 0
        return {
            topic: self.dropped_below.get(topic, 0) if former is None else covered
            for topic, former in self.topics.items()
        }

    @property
    def former_min_offsets(self) -> dict[str, int]:
        """Return, per topic, the physical offset from which its records are read from the current
        generation.
        """
        return {
            topic: former.dropped_below
            for topic, former in self.topics.items()
            if former is not None
        }

    @property
    def read_from(self) -> int:
        """Physical offset at which reading of the log begins."""
        min_offsets = self.log_min_offsets.values()
        return min(max(self.log_start, min(min_offsets, default=self.log_end)), self.log_end)

    def is_done(self) -> bool:
        """True if the current generation is up to date and none of its tombstones has expired."""
        if self.log_end <= self.log_start:
            # Without log bytes there is no log tail by which the broker could identify the log.
            return True
        former = self.former
        if former is None:
            return not self.topics
        shortest_ms = min(self.retention_ms.values(), default=0)
        return (
            former.log_end >= self.log_end
            and [topic.topic for topic in former.topics] == list(self.topics)
            and None not in self.topics.values()
            and self.now_ms - former.created_ms < shortest_ms
        )

    def _former_topic(self, topic: str) -> GenerationTopic | None:
        known = self.former.topic(topic) if self.former else None
        if known is None or self.dropped_below.get(topic, 0) > known.dropped_below:
            return None
        return known


def plan_parts(
    sources: Sequence[Source],
    surveys: Sequence[Survey],
    left: Sequence[int],
    log_end: int,
    *,
    part_bytes: int,
    parts_min: int = 1,
) -> list[PartPlan]:
    """Divide the log into ranges of physical offsets; the kept records of a range form one part.

    Small adjacent sources are merged, so the number of parts depends on the bytes to write.

    Args:
        sources: in the order of the log; the range of one may be inside that of another.
        surveys: of each source.
        left: number of kept records of each source.
        log_end: end of the log for this run.
        part_bytes: approximate size of a part; a part from a single source may be larger.
        parts_min: number of parallel tasks; parts become smaller to employ all of them, but not
            smaller than a minimum.
    """
    weights = [
        survey.bytes * count / survey.records if survey.records else 0.0
        for survey, count in zip(surveys, left, strict=True)
    ]
    share = round(sum(weights) / parts_min)
    part_bytes = min(part_bytes, max(share, _SHARE_BYTES_MIN))
    starts = sorted({source.start for source in sources})
    plans: list[PartPlan] = []
    part_start: int | None = None
    length = 0.0
    for start, stop in pairwise([*starts, log_end]):
        weight = sum(
            weight * _share(source, start, stop)
            for source, weight in zip(sources, weights, strict=True)
        )
        if part_start is not None and length + weight > part_bytes:
            plans.append(PartPlan(len(plans), part_start, start))
            part_start, length = None, 0.0
        if part_start is None and weight:
            part_start = start
        length += weight
    if part_start is not None:
        plans.append(PartPlan(len(plans), part_start, log_end))
    return plans


def _share(source: Source, start: int, stop: int) -> float:
    """Return the fraction of a source between two physical offsets; assumes an even spread."""
    both = min(source.stop, stop) - max(source.start, start)
    return max(both, 0) / max(source.stop - source.start, 1)


def covered_topics(
    given: CompactionInput,
    sources: Sequence[Source],
    surveys: Sequence[Survey],
    left: Mapping[QueueName, int],
) -> tuple[GenerationTopic, ...]:
    """Return the queue offsets that the new generation covers, by queue.

    Args:
        given: the input of the run.
        sources: in the order of the log.
        surveys: of each source.
        left: number of kept records per queue.

    Raises:
        CompactionError: the offsets of a queue have a gap between two sources.
    """
    bounds: dict[QueueName, tuple[int, int]] = {}
    for topic, former in given.topics.items():
        for queue in former.queues if former else ():
            bounds[topic, queue.queue] = queue.covered_from, queue.covered_to
    # Queues whose records were so far found only in the current generation, not in the log.
    only_former = set(bounds)
    for source, survey in zip(sources, surveys, strict=True):
        for name, offsets in survey.queues.items() if source.is_log else ():
            start, due = bounds.get(name, (offsets.first, offsets.first))
            if offsets.first != due:
                topic, queue_id = name
                raise CompactionError(
                    f"queue {queue_id} of {topic}: the log has offset {offsets.first} between "
                    f"physical offsets {source.start} and {source.stop}, but {due} was expected"
                    f"{_RECORDS_MISSING.format(topic=topic) if name in only_former else ''}"
                )
            only_former.discard(name)
            bounds[name] = start, offsets.last + 1
    return tuple(
        GenerationTopic(
            topic,
            former.dropped_below if former else given.dropped_below.get(topic, 0),
            tuple(
                CoveredQueue(queue, *bounds[topic, queue], left.get((topic, queue), 0))
                for queue in sorted(queue for name, queue in bounds if name == topic)
            ),
        )
        for topic, former in given.topics.items()
    )


def manifest_of(
    given: CompactionInput, topics: tuple[GenerationTopic, ...], parts: Sequence[GenerationPart]
) -> Manifest:
    return Manifest(
        generation=given.number,
        replaces=given.former.generation if given.former else 0,
        created_ms=given.now_ms,
        log_start=min(given.log_start, given.log_end),
        log_end=given.log_end,
        log_tail=given.log_tail,
        topics=topics,
        parts=tuple(parts),
    )
