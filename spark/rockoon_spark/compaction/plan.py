"""Plan of a compaction: input of the run, division into parts, covered queue offsets.

Also its last step: the kept records are copied byte for byte into parts of a generation, or the
files of a former part are linked, with a note of the records that were superseded since.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
    encode_superseded,
    part_entries,
    part_names,
)
from rockoon_spark.compaction.sources import (
    NEVER_MS,
    CompactedRecords,
    CompactionError,
    FormerPart,
    FormerSource,
    Source,
)
from rockoon_spark.compaction.survey import QueueName, Survey


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part of the new generation that a task will write."""

    number: int
    log_start: int
    """Physical offset; the records of the part start at or after it, and before `log_end`."""
    log_end: int
    linked: bool = False
    """The files of a former part are linked, not written again."""


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part of the new generation that a task has written."""

    part: GenerationPart
    queues: Mapping[QueueName, int]
    """Number of the part's kept records, by queue."""
    bytes_written: int
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
            int(content["bytes_written"]),
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

    def link(self, generation: int, former_name: str, name: str) -> None:
        """Use a file of the former generation as a file of the new one, without writing it.

        Args:
            generation: number of the former generation.
            former_name, name: names of the file in the former and in the new generation.

        Raises:
            CompactionError: the file is missing, or the disk refused.
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
    columns: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
    frames: list[bytes] = []
    topics: dict[str, int] = {}
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
    for name, content in zip(part_names(plan.number), (records, encoded), strict=True):
        writer.write(name, content)
    part = _describe(plan, entries, records, encoded)
    written = len(records) + len(encoded)
    return CopiedPart(part, _queues(entries), written, time.process_time() - began)


def link_part(
    plan: PartPlan, former: FormerPart, positions: IntArray, writer: PartWriter
) -> CopiedPart:
    """Use the files of a former part in the new generation; write only which records are
    superseded.

    Args:
        plan: the part.
        former: the former part.
        positions: physical offsets of the records to keep, int64[n], ascending.
        writer: links and writes the files.

    Raises:
        CompactionError: the former part does not have these records, or the writer failed.
    """
    began = time.process_time()
    entries = former.entries()
    at = np.minimum(np.searchsorted(positions, entries.physical_offsets), len(positions) - 1)
    superseded = positions[at] != entries.physical_offsets
    kept = len(entries) - int(superseded.sum())
    if kept != len(positions):
        raise CompactionError(
            f"{former.files.name} has {kept} of {len(positions)} records between physical offsets "
            f"{plan.log_start} and {plan.log_end}: run again"
        )
    encoded = encode_superseded(superseded) if kept < len(entries) else b""
    part = replace(
        former.description,
        number=plan.number,
        records=kept,
        superseded=len(entries) - kept,
        superseded_sha256=hashlib.sha256(encoded).hexdigest() if encoded else "",
    )
    held = {file.sha256: file.name for file in former.description.files}
    written = 0
    for file in part.files:
        if file.sha256 in held:
            writer.link(former.files.number, held[file.sha256], file.name)
        else:
            writer.write(file.name, encoded)
            written += len(encoded)
    queues = _queues(replace(entries, superseded=superseded))
    return CopiedPart(part, queues, written, time.process_time() - began)


def _queues(entries: PartEntries) -> dict[QueueName, int]:
    """Return the number of kept records of each queue of a part."""
    return {(topic, queue): len(entries.kept_rows(own)) for topic, queue, own in entries.slices()}


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
# Adjacent parts are merged if together they have this many times the bytes of the largest one. A
# record is then rewritten at most once each time that the part around it grows by this factor.
_GROWTH = 4
# A part is rewritten if this share of its bytes is superseded, which then becomes free.
_SUPERSEDED_SHARE_MAX = 0.5
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

    def has_nothing(self) -> bool:
        """True if a generation could contain nothing."""
        # Without log bytes there is no log tail by which the broker could identify the log.
        return self.log_end <= self.log_start or (self.former is None and not self.topics)

    def is_done(self) -> bool:
        """True if the current generation is up to date and none of its tombstones has expired."""
        return self.former is not None and self.former.log_end >= self.log_end and self.can_wait()

    def can_wait(self) -> bool:
        """True if the current generation has the topics to compact, and none of its tombstones
        has expired.
        """
        former = self.former
        return (
            former is not None
            and [topic.topic for topic in former.topics] == list(self.topics)
            and None not in self.topics.values()
            and not any(map(self._has_expired, former.topics))
        )

    def _has_expired(self, topic: GenerationTopic) -> bool:
        """True if a tombstone of a topic of the current generation may have expired."""
        oldest_ms = topic.oldest_tombstone_ms
        return oldest_ms > 0 and self.now_ms - oldest_ms >= self.retention_ms[topic.topic]

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
    links: bool = True,
) -> list[PartPlan]:
    """Divide the log into ranges of physical offsets; the kept records of a range form one part.

    A former part stays a part, whose files are linked, unless it is merged or has too many
    superseded bytes. All other adjacent sources are merged, so that the number of parts depends on
    the bytes.

    Args:
        sources: former parts in the order of the log, then the log's; the range of one may be
            inside that of another.
        surveys: surveys of each source.
        left: number of kept records of each source.
        log_end: end of the log for this run.
        part_bytes: approximate size of a part; a part from a single source may be larger.
        parts_min: number of parallel tasks; parts become smaller to employ all of them, but not
            smaller than a minimum.
        links: False to write all parts again.
    """
    weights = [
        survey.bytes * count / survey.records if survey.records else 0.0
        for survey, count in zip(surveys, left, strict=True)
    ]
    linked = _linked(sources, weights, part_bytes) & links
    share = round(sum(np.array(weights)[~linked]) / parts_min)
    part_bytes = min(part_bytes, max(share, _SHARE_BYTES_MIN))
    linked_ends = {
        source.start: source.stop for source, link in zip(sources, linked, strict=True) if link
    }
    starts = sorted({source.start for source in sources})
    plans: list[PartPlan] = []
    part_start: int | None = None
    length = 0.0
    for start, stop in pairwise([*starts, log_end]):
        if start in linked_ends:
            if part_start is not None:
                plans.append(PartPlan(len(plans), part_start, start))
                part_start, length = None, 0.0
            plans.append(PartPlan(len(plans), start, linked_ends[start], linked=True))
            continue
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


def _linked(
    sources: Sequence[Source], weights: Sequence[float], part_bytes: int
) -> NDArray[np.bool_]:
    """Return which sources are former parts whose files are linked.

    Args:
        sources: see `plan_parts`.
        weights: bytes of the kept records of each source.
        part_bytes: parts of half this size are not merged.
    """
    starts = np.array([source.start for source in sources], np.int64)
    stops = np.array([source.stop for source in sources], np.int64)
    linked = np.zeros(len(sources), np.bool_)
    for number, source in enumerate(sources):
        if isinstance(source, FormerSource):
            share = weights[number] / max(source.part.description.records_bytes, 1)
            # Records of a topic that is compacted since belong between those of a former part.
            alone = np.count_nonzero((starts < source.stop) & (stops > source.start)) == 1
            linked[number] = alone and share > 1 - _SUPERSEDED_SHARE_MAX
    order = np.argsort(starts, kind="stable").tolist()
    logs = [number for number in order if not isinstance(sources[number], FormerSource)]
    formers = [number for number in order if isinstance(sources[number], FormerSource)]
    # The log's records are one source here: they are written anyway.
    sizes = [weights[number] for number in formers] + [sum(weights[number] for number in logs)]
    for first, behind in _merges(sizes, part_bytes / 2):
        linked[formers[first:behind]] = False
    return linked


def _merges(sizes: Sequence[float], full: float) -> Iterator[tuple[int, int]]:
    """Yield the ranges of adjacent parts to merge, as first and behind.

    Args:
        sizes: sizes of the parts, in their order.
        full: parts of this size are never merged.
    """
    first = 0
    while first < len(sizes):
        largest = total = 0.0
        behind = first
        for number in range(first, len(sizes)):
            if sizes[number] >= full:
                break
            largest, total = max(largest, sizes[number]), total + sizes[number]
            if number > first and total >= _GROWTH * largest:
                behind = number + 1
        if behind > first:
            yield first, behind
        first = max(behind, first + 1)


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
        surveys: surveys of each source.
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
            min((each.tombstones_ms.get(topic, NEVER_MS) for each in surveys), default=0)
            % NEVER_MS,
        )
        for topic, former in given.topics.items()
    )


def manifest_of(
    given: CompactionInput,
    topics: tuple[GenerationTopic, ...],
    parts: Sequence[GenerationPart],
    version: int,
) -> Manifest:
    return Manifest(
        version=version,
        generation=given.number,
        replaces=given.former.generation if given.former else 0,
        created_ms=given.now_ms,
        log_start=min(given.log_start, given.log_end),
        log_end=given.log_end,
        log_tail=given.log_tail,
        topics=topics,
        parts=tuple(parts),
    )
