"""Messages exported to Parquet files, each once, run after run.

A task reads a section of one broker's log and writes its messages into files aside, by topic and
date (`rockoon_spark.export.rows`); the driver publishes them together with a manifest that says how
far each log is exported, which is where the next run begins (`rockoon_spark.export.target`).
"""

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from pyspark import TaskContext
from pyspark.sql import SparkSession

from rockoon_spark.export.broker_logs import BrokerLog, directory_log, live_logs
from rockoon_spark.export.rows import FILE_BYTES, PartitionedWriter, gathered, wanted_rows
from rockoon_spark.export.target import (
    ExportedFile,
    ExportManifest,
    ExportTarget,
    Gap,
    LastRecord,
    Move,
    Position,
    Section,
    discard,
    locked,
    newest_manifest,
    publish,
    recover,
)
from rockoon_spark.jobs.numbered_tasks import run_tasks
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import DamagedPlace, DataLost
from rockoon_spark.source.rows import without_damaged
from rockoon_spark.source.store_directory import StoreDirectory

# Of a log, for one task: large files where there is much to read, every core at work where not.
SECTION_BYTES_MIN, SECTION_BYTES_MAX = 64 << 20, 1 << 30
_SECTIONS_PER_CORE = 2


class ExportError(Exception):
    """A log cannot be exported, or not into this target."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics are exported: those named, those that match a pattern, else all but the ones
    that brokers keep for themselves."""

    names: frozenset[str] | None = None
    pattern: str | None = None

    @property
    def selection(self) -> Selection:
        chosen = Selection(topic_pattern=self.pattern or "*")
        return chosen if self.names is None else chosen.among("topic", self.names)

    @property
    def has_own(self) -> bool:
        """Whether brokers' own topics are among them, where the choice says so."""
        return self.names is not None or self.pattern is not None

    def to_json(self) -> dict[str, Any]:
        return {"names": sorted(self.names) if self.names else None, "pattern": self.pattern}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TopicChoice":
        names = content["names"]
        return cls(frozenset(names) if names else None, content["pattern"])


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What a run read and wrote."""

    log_bytes: int
    messages: int
    files: int
    bytes: int
    """Of those files."""
    run: int
    """The last one that was published: this one, if there was anything new."""
    gaps: tuple[Gap, ...]
    """What was passed over, having been allowed to."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a log is read."""

    topics: TopicChoice
    fails_on_data_loss: bool
    skips_damage: bool
    is_final: bool = False
    """Whether it was read before: what is behind a section is none of its business."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A section, and whether a record is known to start where it does."""

    section: Section
    at_record: bool


@dataclass(slots=True)
class Seen:
    """What the reading of a section came by."""

    behind: int
    """Physical offset behind the last record."""
    last: LastRecord | None = None
    gaps: list[Gap] = field(default_factory=list)


def export(
    spark: SparkSession,
    place: StoreDirectory | LiveCluster,
    target: str,
    *,
    topics: TopicChoice | None = None,
    broker: str | None = None,
    sealed_only: bool = True,
    fails_on_data_loss: bool = True,
    skips_damage: bool = False,
    section_bytes: int | None = None,
    file_bytes: int = FILE_BYTES,
    move: Move | None = None,
) -> ExportReport:
    """Export what the logs of a place have beyond what was exported into `target` before.

    Args:
        place: of a live cluster, what readers see when the run begins.
        target: a directory, as a path or URI, made if need be; every executor must see it.
        topics: the same in each run; by default all but the brokers' own.
        broker: of a live cluster: only this one.
        sealed_only: of a directory: leave out the last file that has messages, which a broker may
            be writing. Without, nobody may write the store.
        fails_on_data_loss: whether to fail when retention deleted messages before they were
            exported; without, the manifest notes where.
        skips_damage: whether to pass over what belongs to no record; the manifest notes where.
        section_bytes: of a log, for one task; by default as many as keep every core at work.
        file_bytes: files are ended at about so many.
        move: renames a file of the target.

    Raises:
        ExportError: the log is damaged, or messages are gone that were not exported yet, or the
            target has another log's messages or other topics'. Nothing is published.
        ExportTargetError: the target holds something else, or another export is at it.
        StoreError, BrokerAway, RockoonError: a log cannot be read.
    """
    reading = Reading(topics or TopicChoice(), fails_on_data_loss, skips_damage)
    into = ExportTarget.of(target)
    with locked(into):
        recover(into)
        former = newest_manifest(into)
        _check_topics(into, former, reading.topics)
        if former is None:
            _refuse_absent(place, reading.topics)
        positions = dict(former.positions) if former else {}
        logs = {log.broker: log for log in logs_of(place, broker, sealed_only=sealed_only)}
        starts, gaps = _starts(logs, positions, fails_on_data_loss=fails_on_data_loss)
        wanted_bytes = section_bytes or _section_bytes(spark, logs, starts)
        work = [each for log in logs.values() for each in _cut(log, starts, wanted_bytes)]
        run = former.run if former else 0
        if not work:
            return _report(run, {}, starts, [], gaps)
        run_id = uuid.uuid4().hex
        staging = into.staging(run_id)
        into.make(staging)
        try:
            stem = f"{run + 1:08}-{run_id[:8]}"
            answers = _write(spark, logs, work, reading, into, staging, stem, file_bytes)
            files = [ExportedFile(**file) for answer in answers for file in answer["files"]]
            gaps += [Gap(**gap) for answer in answers for gap in answer["gaps"]]
            ends = _ends(logs, work, answers)
            for name, (end, last) in ends.items():
                known = positions.get(name)
                positions[name] = Position(end, last or (known.last if known else None))
            if former is None or positions != former.positions:
                run += 1
                sections = _sections_below(work, ends)
                choice = reading.topics.to_json()
                manifest = ExportManifest(run, run_id, choice, positions, sections, files, gaps)
                publish(into, manifest, move)
        finally:
            discard(into, run_id)
    return _report(run, ends, starts, files, gaps)


def _report(
    run: int,
    ends: Mapping[str, tuple[int, LastRecord | None]],
    starts: Mapping[str, int],
    files: Sequence[ExportedFile],
    gaps: Sequence[Gap],
) -> ExportReport:
    return ExportReport(
        log_bytes=sum(end - starts[broker] for broker, (end, _) in ends.items()),
        messages=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        run=run,
        gaps=tuple(gaps),
    )


def logs_of(
    place: StoreDirectory | LiveCluster, broker: str | None = None, *, sealed_only: bool
) -> Sequence[BrokerLog]:
    """The logs that a place has now, or the one of a live cluster's broker."""
    if isinstance(place, LiveCluster):
        return live_logs(place, broker)
    log = directory_log(place, sealed_only=sealed_only)
    return [log] if log else []


def _refuse_absent(place: StoreDirectory | LiveCluster, topics: TopicChoice) -> None:
    # In the first run only: what was exported may be deleted later on.
    absent = place.absent(topics.names or ())
    if absent:
        raise ExportError(f"topic {absent[0]!r} does not exist")


def _check_topics(target: ExportTarget, former: ExportManifest | None, topics: TopicChoice) -> None:
    if former is not None and former.topics != topics.to_json():
        raise ExportError(
            f"{target.uri} has {_told(former.topics)}: the same in each run, or messages of the "
            "others would be missing; take another directory"
        )


def _told(topics: Mapping[str, Any]) -> str:
    if topics["names"]:
        return f"the topics {', '.join(topics['names'])}"
    return f"topics like {topics['pattern']}" if topics["pattern"] else "all topics"


def _starts(
    logs: Mapping[str, BrokerLog], positions: Mapping[str, Position], *, fails_on_data_loss: bool
) -> tuple[dict[str, int], list[Gap]]:
    """Where to begin in each log, and what is gone before that.

    Raises:
        ExportError: that is not allowed, or it is not the log that was exported.
    """
    starts: dict[str, int] = {}
    gaps = []
    for broker, log in logs.items():
        position = positions.get(broker)
        if position is None:
            starts[broker] = log.start
            continue
        if position.end_offset > log.bound or (position.last and log.knows(position.last) is False):
            raise ExportError(
                f"the log of broker {broker!r} is not the one that was exported up to physical "
                f"offset {position.end_offset}: it is another store's, or a crash took messages "
                "that had been exported; take another directory"
            )
        starts[broker] = max(position.end_offset, log.start)
        if position.end_offset < log.start:
            gap = Gap(
                broker, position.end_offset, log.start, "were deleted before they were exported"
            )
            if fails_on_data_loss:
                raise ExportError(
                    f"{told_gap(gap)}; not failing on data loss, the rest is exported"
                )
            gaps.append(gap)
    return starts, gaps


def told_gap(gap: Gap) -> str:
    """A gap in words."""
    return f"broker {gap.broker!r}: physical offsets {gap.start} to {gap.end} {gap.reason}"


def _section_bytes(
    spark: SparkSession, logs: Mapping[str, BrokerLog], starts: Mapping[str, int]
) -> int:
    total = sum(max(log.end - starts[broker], 0) for broker, log in logs.items())
    share = total // (spark.sparkContext.defaultParallelism * _SECTIONS_PER_CORE)
    return min(max(share, SECTION_BYTES_MIN), SECTION_BYTES_MAX)


def _cut(log: BrokerLog, starts: Mapping[str, int], section_bytes: int) -> Iterator[_Work]:
    start = starts[log.broker]
    for at in range(start, log.end, section_bytes):
        section = Section(log.broker, at, min(at + section_bytes, log.end))
        yield _Work(section, at_record=at == start)


def _ends(
    logs: Mapping[str, BrokerLog], work: Sequence[_Work], answers: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[int, LastRecord | None]]:
    """Up to where each log was read, and its last record there, if there was one."""
    ends: dict[str, tuple[int, LastRecord | None]] = {}
    for each, answer in zip(work, answers, strict=True):
        broker = each.section.broker
        last = LastRecord(**answer["last"]) if answer["last"] else None
        end, known = ends.get(broker, (each.section.start, None))
        behind = answer["behind"] if logs[broker].is_open else each.section.stop
        ends[broker] = max(end, behind) if last or not logs[broker].is_open else end, last or known
    return ends


def _sections_below(
    work: Sequence[_Work], ends: Mapping[str, tuple[int, LastRecord | None]]
) -> list[Section]:
    """What was read, without what lies behind each log's end."""
    sections = [each.section for each in work]
    return [
        replace(section, stop=min(section.stop, ends[section.broker][0]))
        for section in sections
        if section.start < ends[section.broker][0]
    ]


def _write(
    spark: SparkSession,
    logs: Mapping[str, BrokerLog],
    work: Sequence[_Work],
    reading: Reading,
    target: ExportTarget,
    staging: str,
    stem: str,
    file_bytes: int,
) -> list[dict[str, Any]]:
    def write(number: int) -> dict[str, Any]:
        each = work[number]
        context = TaskContext.get()
        # A task that is tried again has to leave the files of the first attempt alone.
        attempt = context.taskAttemptId() if context else 0
        section = each.section
        writer = PartitionedWriter(
            target, section.broker, staging, f"{stem}-{number:05}-{attempt}", file_bytes
        )
        seen = Seen(section.start)
        records = read_section(
            logs[section.broker], section, reading, seen, at_record=each.at_record
        )
        try:
            for tables in gathered(records):
                writer.write(tables)
            files = writer.close()
        except OSError as error:
            raise ExportError(f"broker {section.broker!r} to {target.uri}: {error}") from error
        return {
            "files": [asdict(file) for file in files],
            "behind": seen.behind,
            "last": asdict(seen.last) if seen.last else None,
            "gaps": [asdict(gap) for gap in seen.gaps],
        }

    return run_tasks(spark, len(work), write)


def read_section(
    log: BrokerLog, section: Section, reading: Reading, seen: Seen, *, at_record: bool
) -> Iterator[LogRecords]:
    """The wanted records of a section.

    Raises:
        ExportError: some are damaged or gone, and that is not allowed.
    """
    selection, own_topics = reading.topics.selection, reading.topics.has_own

    def report(damage: DamagedPlace) -> None:
        gap = Gap(section.broker, damage.start, damage.end, damage.fault)
        if not reading.skips_damage:
            raise ExportError(f"{told_gap(gap)}; skipping damage, the rest is exported")
        seen.gaps.append(gap)

    for found in _found(log, section, reading, seen, at_record=at_record):
        if isinstance(found, DamagedPlace):
            # What follows the last record is told too: it may have been damaged since.
            if found.start < section.stop or not reading.is_final:
                report(found)
        elif len(found):
            seen.behind, seen.last = _last_record(found)
            wanted = wanted_rows(found, selection, own_topics=own_topics)
            yield without_damaged(wanted, report)


def _found(
    log: BrokerLog, section: Section, reading: Reading, seen: Seen, *, at_record: bool
) -> Iterator[LogRecords | DamagedPlace]:
    start, broker = section.start, section.broker
    while start < section.stop:
        try:
            for partition in log.partitions(start, section.stop, at_record=at_record):
                yield from partition.read()
        except (DataLost, FileNotFoundError) as error:
            if reading.fails_on_data_loss:
                raise ExportError(
                    f"messages of broker {broker!r} went while they were read: {error}"
                ) from error
            oldest = log.oldest()
            start, at_record = (oldest, True) if oldest > seen.behind else (section.stop, False)
            lost = Gap(
                broker, seen.behind, min(start, section.stop), "were deleted while they were read"
            )
            seen.gaps.append(lost)
            seen.behind = lost.end
        else:
            return


def _last_record(records: LogRecords) -> tuple[int, LastRecord]:
    position, size = int(records.parts.starts[-1]), int(records.sizes[-1])
    content = np.ascontiguousarray(records.buffer[position : position + size])
    # Not by its place in the buffer: a broker leaves out records that went with their topic.
    offset = int(records.prefix("physical_offset")[-1])
    return offset + size, LastRecord(offset, size, zlib.crc32(content.data))
