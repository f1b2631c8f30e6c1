"""Compaction: of each key of a compacted topic the newest record, as a new generation.

    survey    each source (a partition of the log, or a part of the generation before) by one task:
              24 bytes of each key's newest record, divided into buckets by the key's hash
    decide    each bucket by one task: which of a key's records is the newest
    copy      each part by one task, which reads its sources once more and copies what is left

Only the 24 bytes, and the places of what is left, cross the cluster. Docs: adr/0018.
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
    Address,
    Decide,
    Decided,
    Kind,
    Look,
    Write,
    copied_parts,
)
from rockoon_spark.compaction.survey import QueueName
from rockoon_spark.compaction.target import CompactionTarget, Incoming
from rockoon_spark.source.log_source import SPLIT_BYTES

# So much of what is read makes one bucket: some million rows, which one task can sort.
_BUCKET_BYTES = 1 << 30
_BUCKETS_MAX = 512


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a run read and wrote, of one broker."""

    name: str
    """Whose log it was."""
    generation: int
    """Its number; that of the one in force when there was nothing to do; 0 for none."""
    is_new: bool
    log_bytes: int = 0
    """Read of the log."""
    former_bytes: int = 0
    """Read of the generation before."""
    records: int = 0
    """Of compacted topics, in both."""
    keys: int = 0
    """Different ones, and records without a key."""
    keyless: int = 0
    """Records without a key: all of them stay."""
    records_left: int = 0
    tombstones_left: int = 0
    tombstones_dropped: int = 0
    bytes_written: int = 0
    parts: int = 0
    shuffle_bytes: int = 0
    """Handed from task to task, before Spark packs them."""
    log_end: int = 0
    """The log before this physical offset is in the generation."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each step took; those that end in `_cpu` are sums over all tasks."""


def compact(
    spark: SparkSession,
    target: CompactionTarget,
    *,
    min_lag_seconds: float = 0.0,
    split_bytes: int = SPLIT_BYTES,
    part_bytes: int = PART_BYTES,
) -> CompactReport:
    """Make the next generation of a broker's compacted topics, and hand it to the broker.

    Args:
        spark: where the tasks run.
        target: the broker's store.
        min_lag_seconds: records younger than that are left for the next run.
        split_bytes: bytes of log that one task reads.
        part_bytes: how long a part is to become, about.

    Raises:
        CompactionError: the log is damaged or incomplete, another run is at it, or the broker
            does not take the generation. The one before stays in force.
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
    """See `compact`, whoever runs the tasks."""
    began = time.monotonic()
    given = target.look(exchange, min_lag_ms=min_lag_ms, split_bytes=split_bytes)
    if given.is_done():
        in_force = given.former.generation if given.former else 0
        return CompactReport(target.name, in_force, is_new=False, log_end=given.log_end)
    looked = time.monotonic()
    sources = _sources(target, given, split_bytes)
    buckets = _buckets(sources, exchange.parallel_tasks)
    secret = secrets.token_bytes(SECRET_BYTES)
    look = Look(sources, buckets, secret, dict(given.retention_ms), given.now_ms)
    with target.incoming(given.number) as incoming:
        surveyed = exchange.start(len(sources), look)
        messages = surveyed.to_addresses(buckets, Decide(len(sources))).kept()
        try:
            answers = messages.of_kinds(Kind.SURVEY, Kind.DECISION, Kind.TROUBLE).collect()
            found = Decided.of(answers, len(sources))
            decided = time.monotonic()
            left = found.decision.left
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
                addressed = messages.of_kinds(Kind.PLACES).then(Address(plans))
                write = Write(plans, sources, incoming.writer)
                copied = copied_parts(addressed.to_addresses(len(plans), write).collect())
                copied += _empty_parts(plans, copied, incoming.writer)
        finally:
            messages.let_go()
        written = time.monotonic()
        _publish(incoming, given, sources, found, copied)
    seconds = {
        "planning": looked - began,
        "surveying_and_deciding": decided - looked,
        "copying": written - decided,
        "publishing": time.monotonic() - written,
        "surveying_cpu": sum(each.seconds for each in found.surveys),
        "deciding_cpu": found.decision.seconds,
        "copying_cpu": sum(part.seconds for part in copied),
    }
    return _report(target.name, given, sources, found, copied, seconds)


def _sources(target: CompactionTarget, given: CompactionInput, split_bytes: int) -> list[Source]:
    """What is to be read, in the order of the log."""
    former_floors, log_floors = given.former_floors, given.log_floors
    found: list[Source] = []
    if given.former is not None and former_floors:
        parts = target.former_parts(given.former)
        found += [FormerSource(part, former_floors) for part in parts]
    if log_floors:
        partitions = target.partitions(given.read_from, given.log_end, split_bytes)
        found += [
            PartitionSource(partition, log_floors, given.log_end, given.now_ms)
            for partition in partitions
        ]
    return sorted(found, key=lambda source: source.start)


def _empty_parts(
    plans: Sequence[PartPlan], copied: Sequence[CopiedPart], writer: PartWriter
) -> list[CopiedPart]:
    """The parts for which nothing came: a plan guesses where in a part of before records lie."""
    written = {part.part.number for part in copied}
    return [copy_part(plan, (), writer) for plan in plans if plan.number not in written]


def _buckets(sources: Sequence[Source], parallel_tasks: int) -> int:
    length = sum(source.stop - source.start for source in sources)
    return min(max(parallel_tasks, -(-length // _BUCKET_BYTES)), _BUCKETS_MAX)


def _publish(
    incoming: Incoming,
    given: CompactionInput,
    sources: Sequence[Source],
    found: Decided,
    copied: Sequence[CopiedPart],
) -> None:
    left: dict[QueueName, int] = {}
    for part in copied:
        for queue, records in part.queues.items():
            left[queue] = left.get(queue, 0) + records
    topics = covered_topics(given, sources, found.surveys, left)
    parts = sorted((part.part for part in copied), key=lambda part: part.number)
    manifest = manifest_of(given, topics, parts)
    decided = sum(found.decision.left)
    # Spark runs a lost task again, and the log may have changed between two readings: what was
    # written is compared with what was decided before a generation can replace the one in force.
    if manifest.records != decided:
        raise CompactionError(f"{manifest.records} records were written, and {decided} are left")
    incoming.publish(manifest)


def _report(
    name: str,
    given: CompactionInput,
    sources: Sequence[Source],
    found: Decided,
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
        keys=found.decision.keys,
        keyless=sum(each.keyless for each in found.surveys),
        records_left=sum(found.decision.left),
        tombstones_left=sum(part.tombstones for part in copied),
        tombstones_dropped=found.decision.dropped,
        bytes_written=sum(part.part.records_bytes + part.part.entries_bytes for part in copied),
        parts=len(copied),
        shuffle_bytes=found.decision.shuffle_bytes,
        log_end=given.log_end,
        seconds=dict(seconds),
    )
