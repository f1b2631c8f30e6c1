"""Compaction: a new generation with the newest record of each key of the compacted topics.

    survey    one task per source (a partition of the log, or a part of the previous generation):
              a row of 24 bytes for each key's newest record, in buckets by the key's hash
    decide    one task per bucket: selects the newest record of each key
    copy      one task per part: reads its sources again and copies the kept records, or links the
              files of a former part and writes which of its records are superseded

The log is surveyed first: if it has few new records, the run ends there. Only the rows and the
positions of the kept records are shuffled between tasks. Docs: adr/0018, adr/0107.
"""

import contextlib
import hashlib
import mmap
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rockoon_format.generation import (
    CURRENT_FILE,
    FORMER_VERSION,
    MANIFEST_FILE,
    VERSION,
    GenerationError,
    GenerationPart,
    Manifest,
    PartEntries,
    check_order,
    decode_current,
    generation_name,
    part_checks,
    part_names,
)
from rockoon_spark.compaction.exchange import (
    CompactionTarget,
    Exchange,
    Incoming,
    Messages,
    SparkExchange,
)
from rockoon_spark.compaction.newest import SECRET_BYTES
from rockoon_spark.compaction.plan import (
    PART_BYTES,
    CompactionInput,
    CopiedPart,
    PartPlan,
    PartWriter,
    copy_part,
    covered_topics,
    manifest_of,
    plan_parts,
)
from rockoon_spark.compaction.sources import (
    NEVER_MS,
    CompactionError,
    FormerSource,
    PartitionSource,
    Source,
)
from rockoon_spark.compaction.steps import (
    AssignParts,
    KeyedMessage,
    MessageKind,
    SelectionResult,
    SelectNewest,
    SurveySource,
    WriteParts,
    copied_parts,
)
from rockoon_spark.compaction.survey import QueueName, Survey
from rockoon_spark.session import run_tasks
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
    skipped: str = ""
    """Why the run made no generation although the log has new records; else empty."""
    dirty_ratio: float = 1.0
    """Share of the compacted topics' bytes that the previous generation does not have."""
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
    """Bytes of the files that were written; all other files are links."""
    bytes_linked: int = 0
    parts: int = 0
    parts_linked: int = 0
    shuffle_bytes: int = 0
    """Number of bytes sent from task to task, before compression."""
    log_end: int = 0
    """Physical offset up to which the generation contains the log."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of each step; names that end with `_cpu` are CPU time of all tasks."""


MIN_DIRTY_RATIO = 0.5
MAX_LAG_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Worthwhile:
    """Conditions under which a run makes a generation and writes parts again. Without a former
    generation, for other topics than that one has, or to remove an expired tombstone, a run always
    makes one.

    Args:
        min_dirty_ratio: minimum share of new bytes among the bytes of the compacted topics in the
            generation and in the log after it, as Kafka's `min.cleanable.dirty.ratio`.
        max_lag_ms: records of this age are compacted in any case, milliseconds; until then, the
            broker must keep all of the log after them.
        rewrites: the run makes a generation in any case and writes all parts again, so that no
            superseded record stays in a file; the manifest has the former version.
    """

    min_dirty_ratio: float
    max_lag_ms: int
    rewrites: bool = False

    def reason_to_wait(self, given: CompactionInput, logs: Sequence[Survey]) -> str:
        """Return why a run is not worthwhile; empty if it is.

        Args:
            given: the input of the run.
            logs: the surveys of the log after the generation.
        """
        ratio = dirty_ratio(given, logs)
        oldest_ms = min((each.oldest_ms for each in logs), default=NEVER_MS)
        if (
            self.rewrites
            or not given.can_wait()
            or ratio >= self.min_dirty_ratio
            or given.now_ms - oldest_ms >= self.max_lag_ms
        ):
            return ""
        return (
            f"{ratio:.1%} of the compacted topics' bytes are newer than the generation, below "
            f"min-dirty-ratio {self.min_dirty_ratio:g}, and none is older than "
            f"{self.max_lag_ms / 1000:g} seconds"
        )


ALWAYS = Worthwhile(0.0, 0)


def dirty_ratio(given: CompactionInput, logs: Sequence[Survey]) -> float:
    """Return the share of new bytes among the bytes of the compacted topics, 0 to 1.

    Args:
        given, logs: see `Worthwhile.reason_to_wait`.
    """
    dirty = sum(each.bytes for each in logs)
    former = given.former.parts if given.former else ()
    clean = sum(part.records_bytes * part.records / max(part.rows, 1) for part in former)
    return dirty / max(dirty + clean, 1)


def compact(
    spark: SparkSession,
    target: CompactionTarget,
    *,
    min_lag_seconds: float = 0.0,
    min_dirty_ratio: float = MIN_DIRTY_RATIO,
    max_lag_seconds: float = MAX_LAG_SECONDS,
    rewrites: bool = False,
    split_bytes: int = SPLIT_BYTES,
    part_bytes: int = PART_BYTES,
) -> CompactReport:
    """Write the next generation of a broker's compacted topics and publish it to the broker.

    Args:
        spark: runs the tasks.
        target: the broker's store.
        min_lag_seconds: minimum age of the records to compact.
        min_dirty_ratio, max_lag_seconds, rewrites: see `Worthwhile`.
        split_bytes: bytes of log that one task reads.
        part_bytes: approximate size of a part.

    Raises:
        CompactionError: the log is damaged or incomplete, another run compacts the store, or the
            broker refuses the generation. The current generation is unchanged.
    """
    return compact_on(
        SparkExchange(spark),
        target,
        round(min_lag_seconds * 1000),
        worthwhile=Worthwhile(min_dirty_ratio, round(max_lag_seconds * 1000), rewrites),
        split_bytes=split_bytes,
        part_bytes=part_bytes,
    )


def compact_on(
    exchange: Exchange,
    target: CompactionTarget,
    min_lag_ms: int = 0,
    *,
    worthwhile: Worthwhile = ALWAYS,
    split_bytes: int = SPLIT_BYTES,
    part_bytes: int = PART_BYTES,
) -> CompactReport:
    """Compact a store as in `compact`; the exchange runs the tasks."""
    began = time.monotonic()
    given = target.inspect(exchange, min_lag_ms=min_lag_ms, split_bytes=split_bytes)
    current = given.former.generation if given.former else 0
    none_made = CompactReport(
        target.name, current, is_new=False, dirty_ratio=0.0, log_end=given.log_end
    )
    if given.has_nothing() or (given.is_done() and not worthwhile.rewrites):
        return none_made
    inspected = time.monotonic()
    formers, logs = _sources(target, given, split_bytes)
    sources: list[Source] = [*formers, *logs]
    buckets = _buckets(sources, exchange.parallel_tasks)
    secret = secrets.token_bytes(SECRET_BYTES)
    survey = SurveySource(sources, buckets, secret, dict(given.retention_ms), given.now_ms)
    with target.incoming(given.number) as incoming, ExitStack() as kept:
        of_logs = exchange.start(range(len(formers), len(sources)), survey).kept()
        kept.callback(of_logs.release)
        found = SelectionResult.of(_results(of_logs), len(sources))
        ratio = dirty_ratio(given, found.surveys)
        if reason := worthwhile.reason_to_wait(given, found.surveys):
            log_bytes = _log_bytes(logs)
            return replace(none_made, skipped=reason, dirty_ratio=ratio, log_bytes=log_bytes)
        surveyed = of_logs.and_those(exchange.start(range(len(formers)), survey))
        messages = surveyed.to_addresses(buckets, SelectNewest(len(sources))).kept()
        kept.callback(messages.release)
        found = SelectionResult.of(_results(messages), len(sources))
        decided = time.monotonic()
        plans = plan_parts(
            sources,
            found.surveys,
            found.counts.left,
            given.log_end,
            part_bytes=part_bytes,
            parts_min=exchange.parallel_tasks,
            links=not worthwhile.rewrites,
        )
        copied: list[CopiedPart] = []
        if plans:
            assigned = messages.of_kinds(MessageKind.POSITIONS).then(AssignParts(plans))
            write = WriteParts(plans, sources, incoming.writer)
            copied = copied_parts(assigned.to_addresses(len(plans), write).collect())
            copied += _empty_parts(plans, copied, incoming.writer)
        written = time.monotonic()
        version = FORMER_VERSION if worthwhile.rewrites else VERSION
        _publish(incoming, given, sources, found, copied, version)
    seconds = {
        "planning": inspected - began,
        "surveying_and_deciding": decided - inspected,
        "copying": written - decided,
        "publishing": time.monotonic() - written,
        "surveying_cpu": sum(each.seconds for each in found.surveys),
        "deciding_cpu": found.counts.seconds,
        "copying_cpu": sum(part.seconds for part in copied),
    }
    report = _report(target.name, given, logs, found, copied)
    linked = sum(plan.linked for plan in plans)
    return replace(report, dirty_ratio=ratio, parts_linked=linked, seconds=seconds)


def _results(messages: Messages) -> list[KeyedMessage]:
    kinds = (MessageKind.SURVEY, MessageKind.COUNTS, MessageKind.FAILURE)
    return messages.of_kinds(*kinds).collect()


def _sources(
    target: CompactionTarget, given: CompactionInput, split_bytes: int
) -> tuple[list[FormerSource], list[PartitionSource]]:
    """Return the sources that the compaction reads: former parts, and partitions of the log."""
    former_min_offsets, log_min_offsets = given.former_min_offsets, given.log_min_offsets
    formers: list[FormerSource] = []
    logs: list[PartitionSource] = []
    if given.former is not None and former_min_offsets:
        parts = target.former_parts(given.former)
        formers = [FormerSource(part, former_min_offsets) for part in parts]
    if log_min_offsets:
        logs = [
            PartitionSource(partition, log_min_offsets, given.log_end, given.now_ms)
            for partition in target.partitions(given.read_from, given.log_end, split_bytes)
        ]
    return formers, logs


def _log_bytes(logs: Sequence[PartitionSource]) -> int:
    return sum(source.stop - source.start for source in logs)


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
    version: int,
) -> None:
    left: dict[QueueName, int] = {}
    for part in copied:
        for queue, records in part.queues.items():
            left[queue] = left.get(queue, 0) + records
    topics = covered_topics(given, sources, found.surveys, left)
    parts = sorted((part.part for part in copied), key=lambda part: part.number)
    manifest = manifest_of(given, topics, parts, version)
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
    logs: Sequence[PartitionSource],
    found: SelectionResult,
    copied: Sequence[CopiedPart],
) -> CompactReport:
    written = sum(part.bytes_written for part in copied)
    return CompactReport(
        name=name,
        generation=given.number,
        is_new=True,
        log_bytes=_log_bytes(logs),
        former_bytes=given.former.records_bytes if given.former else 0,
        records=sum(each.records for each in found.surveys),
        keys=found.counts.keys,
        keyless=sum(each.keyless for each in found.surveys),
        records_left=sum(found.counts.left),
        tombstones_left=found.counts.tombstones,
        tombstones_dropped=found.counts.dropped,
        bytes_written=written,
        bytes_linked=sum(file.bytes for part in copied for file in part.part.files) - written,
        parts=len(copied),
        shuffle_bytes=found.counts.shuffle_bytes,
        log_end=given.log_end,
    )


_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class VerifiedGeneration:
    """Numbers of topics, parts and records that a verification compared."""

    generation: int
    topics: int
    parts: int
    records: int
    bytes: int
    log_end: int


def generation_directory(target: Path) -> Path | None:
    """Return the directory of a generation; for a `compacted` directory, the current generation's.

    None if it is neither.
    """
    with contextlib.suppress(FileNotFoundError):
        target = target / generation_name(decode_current((target / CURRENT_FILE).read_bytes()))
    return target if (target / MANIFEST_FILE).is_file() else None


def verify_generation(spark: SparkSession, directory: Path) -> tuple[VerifiedGeneration, list[str]]:
    """Check each part's checksums, records and entries, and the totals of the manifest.

    Not checked: whether a record is the newest of its key, and whether it is equal to the log's.

    Args:
        directory: contains the manifest; every executor must see it.

    Returns:
        The numbers, and a sentence for each faulty part.

    Raises:
        GenerationError: the manifest cannot be read.
    """
    directory = directory.resolve()
    manifest = Manifest.from_json((directory / MANIFEST_FILE).read_bytes())
    parts = manifest.parts

    def check(number: int) -> dict[str, Any]:
        return {"problem": _part_problem(directory, parts[number])}

    answers = run_tasks(spark, len(parts), check)
    problems = [answer["problem"] for answer in answers if answer["problem"]]
    if not problems:
        try:
            check_order(manifest, [_entries(directory, part) for part in parts])
        except GenerationError as error:
            problems.append(f"{directory}: {error}")
    report = VerifiedGeneration(
        manifest.generation,
        len(manifest.topics),
        len(parts),
        manifest.records,
        manifest.files_bytes,
        manifest.log_end,
    )
    return report, problems


def _part_problem(directory: Path, part: GenerationPart) -> str | None:
    records = directory / part_names(part.number)[0]
    try:
        for file in part.files:
            if _sha256(directory / file.name) != file.sha256:
                return f"{directory / file.name}: its checksum differs from the manifest"
        for _ in part_checks(_mapped(records), _entries(directory, part)):
            pass
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except GenerationError as error:
        return f"{records}: {error}"
    return None


def _entries(directory: Path, part: GenerationPart) -> PartEntries:
    mapped = [_mapped(directory / file.name) for file in part.files[1:]]
    entries = PartEntries.decode(mapped[0])
    return entries.with_superseded(mapped[1]) if part.superseded else entries


def _mapped(path: Path) -> memoryview:
    if not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
