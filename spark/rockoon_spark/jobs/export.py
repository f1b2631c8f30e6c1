"""Messages exported to Parquet files, each once, run after run.

A task reads a section of one broker's log and writes its messages into files aside, by topic and
date (`rockoon_spark.export.rows`); the driver publishes them together with a manifest that says how
far each log is exported, which is where the next run begins (`rockoon_spark.export.target`).
"""

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from rockoon_core.redaction import redacted
from rockoon_spark.export.rows import FILE_BYTES, PartitionedWriter, gathered
from rockoon_spark.export.sections import (
    ExportError,
    SectionReading,
    SectionSeen,
    TopicChoice,
    read_section,
    told_gap,
)
from rockoon_spark.export.target import (
    Check,
    ExportedFile,
    ExportManifest,
    ExportTarget,
    Gap,
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
from rockoon_spark.source.log_source import ContiguousLog, LastRecord, LogSource

# Of a log, for one task: large files where there is much to read, every core at work where not.
SECTION_BYTES_MIN, SECTION_BYTES_MAX = 64 << 20, 1 << 30
_SECTIONS_PER_CORE = 2


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


Ends = Mapping[str, tuple[int, LastRecord | None]]
"""By broker: up to where its log was read, and the last record there, if there was one."""


@dataclass(frozen=True, slots=True)
class _LogPart:
    """A log from where the last run ended, as far as this one looks at it."""

    log: ContiguousLog
    start: int
    sealed_only: bool

    @property
    def end(self) -> int:
        """Behind the last byte that is looked at, physical offset."""
        return self.log.sealed_end if self._is_sealed_only else self.log.end

    @property
    def is_open(self) -> bool:
        """Whether records may end before `end`: the tasks find out where."""
        return not self.log.is_end_known and not self.sealed_only

    @property
    def _is_sealed_only(self) -> bool:
        # Only of files nobody can tell whether their broker is writing the last one.
        return self.sealed_only and not self.log.is_end_known

    def cut(self, section_bytes: int) -> "Iterator[_Work]":
        for at in range(self.start, self.end, section_bytes):
            section = Section(self.log.broker, at, min(at + section_bytes, self.end))
            yield _Work(section, at_record=at == self.start)


@dataclass(frozen=True, slots=True)
class _Work:
    """A section, and whether a record is known to start where it does."""

    section: Section
    at_record: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a run reads, and what it goes on with."""

    former: ExportManifest | None
    reading: SectionReading
    parts: Mapping[str, _LogPart]
    """By broker."""
    work: Sequence[_Work]
    gaps: Sequence[Gap]
    """What is gone before that."""

    @property
    def positions(self) -> dict[str, Position]:
        return dict(self.former.positions) if self.former else {}

    @property
    def former_run(self) -> int:
        return self.former.run if self.former else 0


def export(
    spark: SparkSession,
    source: LogSource,
    target: str,
    *,
    topics: TopicChoice | None = None,
    sealed_only: bool = True,
    fails_on_data_loss: bool = True,
    skips_damage: bool = False,
    section_bytes: int | None = None,
    file_bytes: int = FILE_BYTES,
    move: Move | None = None,
) -> ExportReport:
    """Export what the logs of a source have beyond what was exported into `target` before.

    Args:
        source: of a live cluster, what readers see when the run begins.
        target: a directory, as a path or URI, made if need be; every executor must see it.
        topics: must be the same in each run; the default is all topics that are not internal.
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
        BrokerAway, LogBroken, LogUnreadable, RockoonError, StoreError: a log cannot be read.
    """
    reading = SectionReading(topics or TopicChoice(), fails_on_data_loss, skips_damage)
    into = ExportTarget.of(target)
    # To the end: what is planned here counts on the newest manifest staying the newest.
    with locked(into) as check:
        # First of all: a run that died while it was publishing is this one's predecessor.
        recover(into, check=check)
        former = newest_manifest(into)
        _check_topics(into, former, reading.topics)
        if former is None:
            _refuse_absent(source, reading.topics)
        plan = _planned(spark, source, former, reading, sealed_only, section_bytes)
        if not plan.work:
            return _report(plan, plan.former_run, {}, [], plan.gaps)
        return _run(spark, plan, into, file_bytes, move, check)


def _planned(
    spark: SparkSession,
    source: LogSource,
    former: ExportManifest | None,
    reading: SectionReading,
    sealed_only: bool,
    section_bytes: int | None,
) -> _Plan:
    positions = former.positions if former else {}
    logs = {log.broker: log for log in source.logs()}
    starts, gaps = _starts(logs, positions, fails_on_data_loss=reading.fails_on_data_loss)
    parts = {name: _LogPart(log, starts[name], sealed_only) for name, log in logs.items()}
    wanted_bytes = section_bytes or _section_bytes(spark, parts.values())
    work = [each for part in parts.values() for each in part.cut(wanted_bytes)]
    return _Plan(former, reading, parts, work, gaps)


def _run(
    spark: SparkSession,
    plan: _Plan,
    target: ExportTarget,
    file_bytes: int,
    move: Move | None,
    check: Check,
) -> ExportReport:
    """Write what was planned, and publish it."""
    run_id = uuid.uuid4().hex
    staging = target.staging(run_id)
    target.make(staging)
    run = plan.former_run
    try:
        stem = f"{run + 1:08}-{run_id[:8]}"
        answers = _write(spark, plan, target, staging, stem, file_bytes)
        files = [ExportedFile(**file) for answer in answers for file in answer["files"]]
        gaps = [*plan.gaps, *(Gap(**gap) for answer in answers for gap in answer["gaps"])]
        ends = _ends(plan, answers)
        positions = plan.positions
        for name, (end, last) in ends.items():
            known = positions.get(name)
            positions[name] = Position(end, last or (known.last if known else None))
        # A position moves without a message too: what was read for nothing is not read again.
        if plan.former is None or positions != plan.former.positions:
            run += 1
            sections = _sections_below(plan.work, ends)
            choice = plan.reading.topics.to_json()
            manifest = ExportManifest(run, run_id, choice, positions, sections, files, gaps)
            publish(target, manifest, move, check)
    finally:
        discard(target, run_id)
    return _report(plan, run, ends, files, gaps)


def _report(
    plan: _Plan, run: int, ends: Ends, files: Sequence[ExportedFile], gaps: Sequence[Gap]
) -> ExportReport:
    return ExportReport(
        log_bytes=sum(end - plan.parts[broker].start for broker, (end, _) in ends.items()),
        messages=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        run=run,
        gaps=tuple(gaps),
    )


def _refuse_absent(source: LogSource, topics: TopicChoice) -> None:
    # In the first run only: what was exported may be deleted later on.
    absent = source.absent(topics.names or ())
    if absent:
        raise ExportError(f"topic {absent[0]!r} does not exist")


def _check_topics(target: ExportTarget, former: ExportManifest | None, topics: TopicChoice) -> None:
    if excluded := topics.selection.excluded_names:
        raise ExportError(
            f"{excluded[0]!r} is an internal topic of the brokers:"
            " --include-internal-topics exports it"
        )
    if former is None:
        return
    exported = TopicChoice.from_json(former.topics)
    if topics.is_same(exported):
        return
    if topics.is_same(replace(exported, includes_internal=topics.includes_internal)):
        has, does = (
            ("has", "pass --include-internal-topics")
            if exported.includes_internal
            else ("does not have", "leave out --include-internal-topics")
        )
        raise ExportError(
            f"{target.shown} {has} the internal topics of the brokers: {does}, or take another"
            " directory"
        )
    raise ExportError(
        f"{target.shown} has {_told(former.topics)}: the same in each run, or messages of the "
        "others would be missing; take another directory"
    )


def _told(topics: Mapping[str, Any]) -> str:
    if topics["names"]:
        return f"the topics {', '.join(topics['names'])}"
    return f"topics like {topics['pattern']}" if topics["pattern"] else "all topics"


def _starts(
    logs: Mapping[str, ContiguousLog],
    positions: Mapping[str, Position],
    *,
    fails_on_data_loss: bool,
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
        if position.end_offset > log.end or (position.last and log.knows(position.last) is False):
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


def _section_bytes(spark: SparkSession, parts: Collection[_LogPart]) -> int:
    total = sum(max(part.end - part.start, 0) for part in parts)
    share = total // (spark.sparkContext.defaultParallelism * _SECTIONS_PER_CORE)
    return min(max(share, SECTION_BYTES_MIN), SECTION_BYTES_MAX)


def _ends(plan: _Plan, answers: Sequence[Mapping[str, Any]]) -> Ends:
    ends: dict[str, tuple[int, LastRecord | None]] = {}
    for each, answer in zip(plan.work, answers, strict=True):
        broker = each.section.broker
        is_open = plan.parts[broker].is_open
        last = LastRecord(**answer["last"]) if answer["last"] else None
        end, known = ends.get(broker, (each.section.start, None))
        behind = answer["behind"] if is_open else each.section.stop
        ends[broker] = max(end, behind) if last or not is_open else end, last or known
    return ends


def _sections_below(work: Sequence[_Work], ends: Ends) -> list[Section]:
    """What was read, without what lies behind each log's end."""
    sections = [each.section for each in work]
    return [
        replace(section, stop=min(section.stop, ends[section.broker][0]))
        for section in sections
        if section.start < ends[section.broker][0]
    ]


def _write(
    spark: SparkSession,
    plan: _Plan,
    target: ExportTarget,
    staging: str,
    stem: str,
    file_bytes: int,
) -> list[dict[str, Any]]:
    reading, work = plan.reading, plan.work
    logs = {name: part.log for name, part in plan.parts.items()}

    def write(number: int) -> dict[str, Any]:
        each = work[number]
        context = TaskContext.get()
        # A task that is tried again has to leave the files of the first attempt alone.
        attempt = context.taskAttemptId() if context else 0
        section = each.section
        writer = PartitionedWriter(
            target, section.broker, staging, f"{stem}-{number:05}-{attempt}", file_bytes
        )
        seen = SectionSeen(section.start)
        records = read_section(
            logs[section.broker], section, reading, seen, at_record=each.at_record
        )
        try:
            for tables in gathered(records):
                writer.write(tables)
            files = writer.close()
        except OSError as error:
            raise ExportError(
                f"broker {section.broker!r} to {target.shown}: {redacted(error)}"
            ) from error
        return {
            "files": [asdict(file) for file in files],
            "behind": seen.behind,
            "last": asdict(seen.last) if seen.last else None,
            "gaps": [asdict(gap) for gap in seen.gaps],
        }

    return run_tasks(spark, len(work), write)
