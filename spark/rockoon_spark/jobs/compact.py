"""Compaction: a new generation with the newest record of each key of the compacted topics.

    survey    one task per source (a partition of the log, or a part of the previous generation):
              a row of 24 bytes for each key's newest record, in buckets by the key's hash
    decide    one task per bucket: selects the newest record of each key
    copy      one task per part: reads its sources again and copies the kept records

Only the rows and the positions of the kept records are shuffled between tasks. Docs: adr/0018.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from rockoon_spark.compaction.copying import CopiedPart, PartPlan, PartWriter, copy_part
from rockoon_spark.compaction.exchange import Exchange, SparkExchange
from rockoon_spark.compaction.key_hash import SECRET_BYTES
from rockoon_spark.compaction.plan import (
    PART_BYTES,
    CompactionInput,
    covered_topics,
    manifest_of,
    plan_parts,
)
from rockoon_spark.compaction.sources import CompactionError, FormerSource, PartitionSource, Source
from rockoon_spark.compaction.steps import (
    AssignParts,
    MessageKind,
    SelectionResult,
    SelectNewest,
    SurveySource,
    WriteParts,
    copied_parts,
)
from rockoon_spark.compaction.survey import QueueName
from rockoon_spark.compaction.target import CompactionTarget, Incoming
from rockoon_spark.source.log_source import SPLIT_BYTES

# Input bytes per bucket: a few million rows, which one task can sort.
_BUCKET_BYTES = 1 << 30
_BUCKETS_MAX = 512


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Figures of the compaction of one broker."""

    name: str
    """Name of the store that was compacted."""
    generation: int
    """Number of the new generation, or of the current one if nothing was to do; 0 for none."""
    is_new: bool
    log_bytes: int = 0
    """Bytes read from the log."""
    former_bytes: int = 0
    """Bytes read from the previous generation."""
    records: int = 0
    """Number of records of compacted topics read, in the log and in the previous generation."""
    keys: int = 0
    """Number of distinct keys plus records without a key."""
    keyless: int = 0
    """Number of records without a key: all are kept."""
    records_left: int = 0
    tombstones_left: int = 0
    tombstones_dropped: int = 0
    bytes_written: int = 0
    parts: int = 0
    shuffle_bytes: int = 0
    """Number of bytes sent from task to task, before compression."""
    log_end: int = 0
    """Physical offset up to which the generation contains the log."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of each step; names that end with `_cpu` are CPU time of all tasks."""


def compact(
    spark: SparkSession,
    target: CompactionTarget,
    *,
    min_lag_seconds: float = 0.0,
    split_bytes: int = SPLIT_BYTES,
    part_bytes: int = PART_BYTES,
) -> CompactReport:
    """Write the next generation of a broker's compacted topics and publish it to the broker.

    Args:
        spark: runs the tasks.
        target: the broker's store.
        min_lag_seconds: minimum age of the records to compact.
        split_bytes: bytes of log that one task reads.
        part_bytes: approximate size of a part.

    Raises:
        CompactionError: the log is damaged or incomplete, another run compacts the store, or the
            broker refuses the generation. The current generation is unchanged.
    """
    exchange = SparkExchange(spark)
    lag_ms = round(min_lag_seconds * 1000)
    return compact_on(exchange, target, lag_ms, split_bytes=split_bytes, part_bytes=part_bytes)


def compact_on(
    exchange: Exchange,
    target: CompactionTarget,
    min_lag_ms: int = 0,
    *,
    split_bytes: int = SPLIT_BYTES,
    part_bytes: int = PART_BYTES,
) -> CompactReport:
    """Compact a store as in `compact`; the exchange runs the tasks."""
    began = time.monotonic()
    given = target.inspect(exchange, min_lag_ms=min_lag_ms, split_bytes=split_bytes)
    if given.is_done():
        current = given.former.generation if given.former else 0
        return CompactReport(target.name, current, is_new=False, log_end=given.log_end)
    inspected = time.monotonic()
    sources = _sources(target, given, split_bytes)
    buckets = _buckets(sources, exchange.parallel_tasks)
    secret = secrets.token_bytes(SECRET_BYTES)
    survey = SurveySource(sources, buckets, secret, dict(given.retention_ms), given.now_ms)
    with target.incoming(given.number) as incoming:
        surveyed = exchange.start(len(sources), survey)
        messages = surveyed.to_addresses(buckets, SelectNewest(len(sources))).kept()
        try:
            answers = messages.of_kinds(
                MessageKind.SURVEY, MessageKind.COUNTS, MessageKind.FAILURE
            ).collect()
            found = SelectionResult.of(answers, len(sources))
            decided = time.monotonic()
            left = found.counts.left
            plans = plan_parts(
                sources,
                found.surveys,
                left,
                given.log_end,
                part_bytes=part_bytes,
                parts_min=exchange.parallel_tasks,
            )
            copied: list[CopiedPart] = []
            if plans:
                assigned = messages.of_kinds(MessageKind.POSITIONS).then(AssignParts(plans))
                write = WriteParts(plans, sources, incoming.writer)
                copied = copied_parts(assigned.to_addresses(len(plans), write).collect())
                copied += _empty_parts(plans, copied, incoming.writer)
        finally:
            messages.release()
        written = time.monotonic()
        _publish(incoming, given, sources, found, copied)
    seconds = {
        "planning": inspected - began,
        "surveying_and_deciding": decided - inspected,
        "copying": written - decided,
        "publishing": time.monotonic() - written,
        "surveying_cpu": sum(each.seconds for each in found.surveys),
        "deciding_cpu": found.counts.seconds,
        "copying_cpu": sum(part.seconds for part in copied),
    }
    return _report(target.name, given, sources, found, copied, seconds)


def _sources(target: CompactionTarget, given: CompactionInput, split_bytes: int) -> list[Source]:
    """Return the sources that the compaction reads, in the order of the log."""
    former_min_offsets, log_min_offsets = given.former_min_offsets, given.log_min_offsets
    found: list[Source] = []
    if given.former is not None and former_min_offsets:
        parts = target.former_parts(given.former)
        found += [FormerSource(part, former_min_offsets) for part in parts]
    if log_min_offsets:
        partitions = target.partitions(given.read_from, given.log_end, split_bytes)
        found += [
            PartitionSource(partition, log_min_offsets, given.log_end, given.now_ms)
            for partition in partitions
        ]
    return sorted(found, key=lambda source: source.start)


def _empty_parts(
    plans: Sequence[PartPlan], copied: Sequence[CopiedPart], writer: PartWriter
) -> list[CopiedPart]:
    """Write those planned parts of the generation that received no records.

    The plan estimates how the records of a former part are distributed, so it can be wrong.
    """
    written = {part.part.number for part in copied}
    return [copy_part(plan, (), writer) for plan in plans if plan.number not in written]


def _buckets(sources: Sequence[Source], parallel_tasks: int) -> int:
    length = sum(source.stop - source.start for source in sources)
    return min(max(parallel_tasks, -(-length // _BUCKET_BYTES)), _BUCKETS_MAX)


def _publish(
    incoming: Incoming,
    given: CompactionInput,
    sources: Sequence[Source],
    found: SelectionResult,
    copied: Sequence[CopiedPart],
) -> None:
    left: dict[QueueName, int] = {}
    for part in copied:
        for queue, records in part.queues.items():
            left[queue] = left.get(queue, 0) + records
    topics = covered_topics(given, sources, found.surveys, left)
    parts = sorted((part.part for part in copied), key=lambda part: part.number)
    manifest = manifest_of(given, topics, parts)
    selected = sum(found.counts.left)
    # Spark repeats a lost task, and the log may have changed between two reads. So the number of
    # written records is compared with the number selected before the generation is published.
    if manifest.records != selected:
        raise CompactionError(
            f"{manifest.records} records were written, but {selected} were selected: run again"
        )
    incoming.publish(manifest)


def _report(
    name: str,
    given: CompactionInput,
    sources: Sequence[Source],
    found: SelectionResult,
    copied: Sequence[CopiedPart],
    seconds: Mapping[str, float],
) -> CompactReport:
    return CompactReport(
        name=name,
        generation=given.number,
        is_new=True,
        log_bytes=sum(source.stop - source.start for source in sources if source.is_log),
        former_bytes=given.former.records_bytes if given.former else 0,
        records=sum(each.records for each in found.surveys),
        keys=found.counts.keys,
        keyless=sum(each.keyless for each in found.surveys),
        records_left=sum(found.counts.left),
        tombstones_left=sum(part.tombstones for part in copied),
        tombstones_dropped=found.counts.dropped,
        bytes_written=sum(part.part.records_bytes + part.part.entries_bytes for part in copied),
        parts=len(copied),
        shuffle_bytes=found.counts.shuffle_bytes,
        log_end=given.log_end,
        seconds=dict(seconds),
    )
