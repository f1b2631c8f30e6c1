"""Plan of a compaction: what is read, cut, covered and copied. Decided first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rockoon_format.generation import (
    CoveredQueue,
    GenerationPart,
    GenerationTopic,
    LogTail,
    Manifest,
)
from rockoon_spark.compaction.copying import PartPlan
from rockoon_spark.compaction.sources import CompactionError, Source
from rockoon_spark.compaction.survey import QueueName, Survey

PART_BYTES = 256 << 20
_SHARE_BYTES_MIN = 16 << 20
_BEGIN_ANEW = (
    ": what followed the generation in force is gone, and not by the broker's retention. Older "
    "messages must not take its place. Restore the files of the log, or begin again with what it "
    "has of {topic}: change its cleanup.policy to DELETE, compact, and change it back"
)


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """A broker's log and what is compacted of it, as a run finds them."""

    now_ms: int
    """When the generation to be is made, epoch milliseconds."""
    log_start: int
    """Physical offset of the oldest byte."""
    log_end: int
    """A record's boundary; nothing behind it is looked at."""
    log_tail: LogTail
    retention_ms: Mapping[str, int]
    """The compacted topics, and how long a tombstone of each stays."""
    dropped_below: Mapping[str, int]
    """Physical offsets below which records of deleted topics do not count."""
    former: Manifest | None
    """The generation in force."""
    number: int
    """Of the generation to be."""

    @property
    def topics(self) -> dict[str, GenerationTopic | None]:
        """The topics to compact, with what the generation in force covers of each."""
        return {
            topic: self._former_topic(topic)
            for topic in sorted(self.retention_ms, key=str.encode)
            # Deleted, and perhaps created again, behind the end: nothing of it lies before.
            if self.dropped_below.get(topic, 0) <= self.log_end
        }

    @property
    def log_floors(self) -> dict[str, int]:
        """Physical offset from which each topic's records come from the log."""
        covered = self.former.log_end if self.former else 0
        return {
            topic: self.dropped_below.get(topic, 0) if former is None else covered
            for topic, former in self.topics.items()
        }

    @property
    def former_floors(self) -> dict[str, int]:
        """The same of those topics of which the generation in force holds something."""
        return {
            topic: former.dropped_below
            for topic, former in self.topics.items()
            if former is not None
        }

    @property
    def read_from(self) -> int:
        """Where in the log to begin."""
        floors = self.log_floors.values()
        return min(max(self.log_start, min(floors, default=self.log_end)), self.log_end)

    def is_done(self) -> bool:
        """Whether the generation in force says it all, and none of its tombstones has to go."""
        if self.log_end <= self.log_start:
            # Nothing is left by which the log could be known to the broker.
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
    """Divide the log into partitions whose records go into one part each.

    Neighbours that are small are taken together, so their number is bounded by that of the bytes.

    Args:
        sources: in the order of the log; one of them may lie within another.
        surveys: of each.
        left: how many records of each are left.
        log_end: where the log ends for this run.
        part_bytes: how long a part is to become, about; one source alone may be longer.
        parts_min: how many tasks there are to share the work, unless that makes parts small.
    """
    weights = [
        survey.bytes * count / survey.records if survey.records else 0.0
        for survey, count in zip(surveys, left, strict=True)
    ]
    share = round(sum(weights) / parts_min)
    part_bytes = min(part_bytes, max(share, _SHARE_BYTES_MIN))
    starts = sorted({source.start for source in sources})
    plans: list[PartPlan] = []
    begun: int | None = None
    length = 0.0
    for start, behind in pairwise([*starts, log_end]):
        weight = sum(
            weight * _share(source, start, behind)
            for source, weight in zip(sources, weights, strict=True)
        )
        if begun is not None and length + weight > part_bytes:
            plans.append(PartPlan(len(plans), begun, start))
            begun, length = None, 0.0
        if begun is None and weight:
            begun = start
        length += weight
    if begun is not None:
        plans.append(PartPlan(len(plans), begun, log_end))
    return plans


def _share(source: Source, start: int, behind: int) -> float:
    """How much of a source lies between two places, if its records are spread evenly."""
    both = min(source.stop, behind) - max(source.start, start)
    return max(both, 0) / max(source.stop - source.start, 1)


def covered_topics(
    given: CompactionInput,
    sources: Sequence[Source],
    surveys: Sequence[Survey],
    left: Mapping[QueueName, int],
) -> tuple[GenerationTopic, ...]:
    """What the generation covers of each queue.

    Args:
        given: what was to be compacted.
        sources: in the order of the log.
        surveys: of each.
        left: how many records are left of each queue.

    Raises:
        CompactionError: a queue's records do not follow one another from source to source.
    """
    bounds: dict[QueueName, tuple[int, int]] = {}
    for topic, former in given.topics.items():
        for queue in former.queues if former else ():
            bounds[topic, queue.queue] = queue.covered_from, queue.covered_to
    # Of which nothing was found in the log yet.
    formerly = set(bounds)
    for source, survey in zip(sources, surveys, strict=True):
        for name, span in survey.spans.items() if source.is_log else ():
            start, due = bounds.get(name, (span.first, span.first))
            if span.first != due:
                topic, queue_id = name
                raise CompactionError(
                    f"queue {queue_id} of {topic}: the log has offset {span.first} between "
                    f"physical offsets {source.start} and {source.stop}, where {due} is due"
                    f"{_BEGIN_ANEW.format(topic=topic) if name in formerly else ''}"
                )
            formerly.discard(name)
            bounds[name] = start, span.last + 1
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
    """The manifest of what was made."""
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
