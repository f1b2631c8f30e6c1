"""Export of messages to Parquet files; each run exports the new messages, each message once.

A task reads a section of one broker's log and writes its messages to files in a staging directory,
by topic and date (`rockoon_spark.export.rows`). The driver publishes the files together with a
manifest. The manifest contains the end offset of each log, at which the next run begins
(`rockoon_spark.export.target`).
"""

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from rockoon_core.valid_text import redacted
from rockoon_spark.export.progress import ExportProgress
from rockoon_spark.export.rows import (
    FILE_BYTES,
    ExportError,
    PartitionedWriter,
    SectionReading,
    SectionResult,
    TopicChoice,
    gap_text,
    gathered,
    read_section,
)
from rockoon_spark.export.target import (
    Check,
    ExportedFile,
    ExportManifest,
    ExportPosition,
    ExportTarget,
    Gap,
    Move,
    Section,
    discard,
    locked,
    newest_manifest,
    publish,
    recover,
)
from rockoon_spark.jobs.merge import merge_locked
from rockoon_spark.session import parallel_tasks, run_tasks
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import ContiguousLog, LastRecord, LogSource

# Bytes of log per task: small enough to employ every core, large enough for large files.
SECTION_BYTES_MIN, SECTION_BYTES_MAX = 64 << 20, 1 << 30
_SECTIONS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Figures of a run of an export."""

    log_bytes: int
    messages: int
    files: int
    bytes: int
    """Size of the written files."""
    run: int
    """Number of the last published run: of this one, if anything was new."""
    gaps: tuple[Gap, ...]
    """Skipped ranges of the logs."""
    merged: int = 0
    """Number of small files that were merged after the export."""


Ends = Mapping[str, tuple[int, LastRecord | None]]
"""For each broker: physical offset up to which its log was read, and the last record, if any."""


@dataclass(frozen=True, slots=True)
class _NewLog:
    """The range of a broker's log that this run exports: it begins where the last run ended."""

    log: ContiguousLog
    start: int
    sealed_only: bool

    @property
    def end(self) -> int:
        """Physical offset at which the range ends, exclusive."""
        return self.log.sealed_end if self._is_sealed_only else self.log.end

    @property
    def is_open(self) -> bool:
        """True if the last record may end before `end`; then the tasks find the end."""
        return not self.log.is_end_known and not self.sealed_only

    @property
    def _is_sealed_only(self) -> bool:
        # Only for a store directory, where a broker may be writing to the last file.
        return self.sealed_only and not self.log.is_end_known

    def tasks(self, section_bytes: int) -> "Iterator[_Task]":
        for at in range(self.start, self.end, section_bytes):
            section = Section(self.log.broker, at, min(at + section_bytes, self.end))
            yield _Task(section, at_record=at == self.start)


@dataclass(frozen=True, slots=True)
class _Task:
    section: Section
    at_record: bool
    """True if a record is known to start at the section's start."""


@dataclass(frozen=True, slots=True)
class _ExportPlan:
    """Plan of a run of an export, with the manifest of the previous run."""

    former: ExportManifest | None
    reading: SectionReading
    logs: Mapping[str, _NewLog]
    """New range of the log of each broker."""
    tasks: Sequence[_Task]
    gaps: Sequence[Gap]
    """Ranges whose messages were deleted before this run could export them."""

    @property
    def positions(self) -> dict[str, ExportPosition]:
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
    merges: bool = False,
    keep_seconds: float = 0.0,
    move: Move | None = None,
    group: str = "",
) -> ExportReport:
    """Export the messages of a source that are not yet in `target`.

    Args:
        source: the logs; of a live cluster, the messages visible to readers at the start.
        target: a directory (path or URI), created if necessary; every executor must see it.
        topics: must be the same in each run; the default is all topics except internal ones.
        sealed_only: skip the last file of a store directory, to which a broker may be writing. If
            False, no broker may be writing to the store directory.
        fails_on_data_loss: True to fail if retention deleted messages before their export; False
            to list the deleted ranges in the manifest.
        skips_damage: True to skip damaged bytes of the log and list them in the manifest.
        section_bytes: bytes of log per task; by default small enough to employ every core.
        file_bytes: approximate maximum size of a file.
        merges: True to merge small files after the export, also those of former runs.
        keep_seconds: see `merge_small_files`.
        move: renames a file of the target.
        group: consumer group for which the ends of the exported queues are committed; empty: none.
            The source must be a live cluster; see `ExportProgress`.

    Raises:
        ExportError: the log is damaged, messages were deleted before their export, or the target
            contains messages of another log or other topics. Nothing is published.
        GroupInUse: live consumers read with the group. Nothing is published.
        ExportTargetError: the target contains something else, or another export is running.
        BrokerAway, LogBroken, LogUnreadable, RockoonError, StoreReadError: a log cannot be read.
    """
    reading = SectionReading(topics or TopicChoice(), fails_on_data_loss, skips_damage)
    into = ExportTarget.of(target)
    # Locked during the whole run, because the plan depends on the newest manifest.
    with (
        locked(into) as check,
        # Before the ends of the logs are read.
        _progress(source, reading.topics, group) as progress,
    ):
        # First, because a run that died while publishing becomes the previous run.
        recover(into, check=check)
        former = newest_manifest(into)
        _check_topics(into, former, reading.topics)
        if former is None:
            _refuse_absent(source, reading.topics)
        plan = _planned(spark, source, former, reading, sealed_only, section_bytes)
        report = (
            _run(spark, plan, into, file_bytes, move, check)
            if plan.tasks
            else _report(plan, plan.former_run, {}, [], plan.gaps)
        )
        if progress is not None:
            progress.commit(plan.logs.keys())
        if merges:
            done = merge_locked(spark, into, check, file_bytes, keep_seconds, move)
            report = replace(report, merged=done.merged, run=done.run)
        return report


def _progress(
    source: LogSource, topics: TopicChoice, group: str
) -> AbstractContextManager[ExportProgress | None]:
    if not group:
        return nullcontext()
    if not isinstance(source, LiveCluster):
        raise ExportError("a store directory has no consumer groups: they need a running cluster")
    return ExportProgress(source, topics, group)


def _planned(
    spark: SparkSession,
    source: LogSource,
    former: ExportManifest | None,
    reading: SectionReading,
    sealed_only: bool,
    section_bytes: int | None,
) -> _ExportPlan:
    positions = former.positions if former else {}
    logs = {log.broker: log for log in source.logs()}
    starts, gaps = _starts(logs, positions, fails_on_data_loss=reading.fails_on_data_loss)
    new = {name: _NewLog(log, starts[name], sealed_only) for name, log in logs.items()}
    task_bytes = section_bytes or _section_bytes(spark, new.values())
    tasks = [task for each in new.values() for task in each.tasks(task_bytes)]
    return _ExportPlan(former, reading, new, tasks, gaps)


def _run(
    spark: SparkSession,
    plan: _ExportPlan,
    target: ExportTarget,
    file_bytes: int,
    move: Move | None,
    check: Check,
) -> ExportReport:
    """Write the planned sections, and publish the files."""
    run_id = uuid.uuid4().hex
    staging = target.staging(run_id)
    target.make(staging)
    run = plan.former_run
    try:
        stem = f"{run + 1:08}-{run_id[:8]}"
        answers = _write(spark, plan, target, staging, stem, file_bytes)
        files = [ExportedFile.from_json(each) for answer in answers for each in answer["files"]]
        gaps = [*plan.gaps, *(Gap(**gap) for answer in answers for gap in answer["gaps"])]
        ends = _ends(plan, answers)
        positions = plan.positions
        for name, (end, last) in ends.items():
            known = positions.get(name)
            positions[name] = ExportPosition(end, last or (known.last if known else None))
        # Positions advance also without new messages, so that no log is read twice.
        if plan.former is None or positions != plan.former.positions:
            run += 1
            sections = _sections_below(plan.tasks, ends)
            choice = plan.reading.topics.to_json()
            manifest = ExportManifest(run, run_id, choice, positions, sections, files, gaps)
            publish(target, manifest, move, check)
    finally:
        discard(target, run_id)
    return _report(plan, run, ends, files, gaps)


def _report(
    plan: _ExportPlan, run: int, ends: Ends, files: Sequence[ExportedFile], gaps: Sequence[Gap]
) -> ExportReport:
    return ExportReport(
        log_bytes=sum(end - plan.logs[broker].start for broker, (end, _) in ends.items()),
        messages=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        run=run,
        gaps=tuple(gaps),
    )


def _refuse_absent(source: LogSource, topics: TopicChoice) -> None:
    # Called only in the first run, because an exported topic may be deleted later.
    existing = source.existing() if topics.names else None
    absent = existing.absent_topics(topics.names or ()) if existing else ()
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
            else ("does not have", "omit --include-internal-topics")
        )
        raise ExportError(
            f"{target.shown} {has} the internal topics of the brokers: {does}, or use another"
            " directory"
        )
    raise ExportError(
        f"{target.shown} has {_topics_text(former.topics)}: each run must export the same topics, "
        "or earlier messages would be missing; use another directory"
    )


def _topics_text(topics: Mapping[str, Any]) -> str:
    if topics["names"]:
        return f"the topics {', '.join(topics['names'])}"
    return f"topics like {topics['pattern']}" if topics["pattern"] else "all topics"


def _starts(
    logs: Mapping[str, ContiguousLog],
    positions: Mapping[str, ExportPosition],
    *,
    fails_on_data_loss: bool,
) -> tuple[dict[str, int], list[Gap]]:
    """Return the start offset in each log, and the ranges that were deleted before their export.

    Raises:
        ExportError: data loss is not allowed, or a log is not the exported one.
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
                f"offset {position.end_offset}: it belongs to another store, or the broker lost "
                "exported messages in a crash; use another directory"
            )
        starts[broker] = max(position.end_offset, log.start)
        if position.end_offset < log.start:
            gap = Gap(
                broker, position.end_offset, log.start, "were deleted before they were exported"
            )
            if fails_on_data_loss:
                raise ExportError(f"{gap_text(gap)}; --allow-data-loss exports the rest")
            gaps.append(gap)
    return starts, gaps


def _section_bytes(spark: SparkSession, logs: Collection[_NewLog]) -> int:
    total = sum(max(log.end - log.start, 0) for log in logs)
    share = total // (parallel_tasks(spark) * _SECTIONS_PER_CORE)
    return min(max(share, SECTION_BYTES_MIN), SECTION_BYTES_MAX)


def _ends(plan: _ExportPlan, answers: Sequence[Mapping[str, Any]]) -> Ends:
    ends: dict[str, tuple[int, LastRecord | None]] = {}
    for task, answer in zip(plan.tasks, answers, strict=True):
        broker = task.section.broker
        is_open = plan.logs[broker].is_open
        last = LastRecord(**answer["last"]) if answer["last"] else None
        end, known = ends.get(broker, (task.section.start, None))
        task_end = answer["end_offset"] if is_open else task.section.stop
        ends[broker] = max(end, task_end) if last or not is_open else end, last or known
    return ends


def _sections_below(tasks: Sequence[_Task], ends: Ends) -> list[Section]:
    """Return the exported sections, limited to the end of each log."""
    sections = [task.section for task in tasks]
    return [
        replace(section, stop=min(section.stop, ends[section.broker][0]))
        for section in sections
        if section.start < ends[section.broker][0]
    ]


def _write(
    spark: SparkSession,
    plan: _ExportPlan,
    target: ExportTarget,
    staging: str,
    stem: str,
    file_bytes: int,
) -> list[dict[str, Any]]:
    reading, tasks = plan.reading, plan.tasks
    logs = {name: each.log for name, each in plan.logs.items()}

    def write(number: int) -> dict[str, Any]:
        task = tasks[number]
        context = TaskContext.get()
        # A repeated task must not overwrite the files of the first attempt.
        attempt = context.taskAttemptId() if context else 0
        section = task.section
        writer = PartitionedWriter(
            target, section.broker, staging, f"{stem}-{number:05}-{attempt}", file_bytes
        )
        result = SectionResult(section.start)
        records = read_section(
            logs[section.broker], section, reading, result, at_record=task.at_record
        )
        try:
            for tables in gathered(records):
                writer.write(tables)
            files = writer.close()
        except OSError as error:
            raise ExportError(
                f"messages of broker {section.broker!r} cannot be written to {target.shown}: "
                f"{redacted(error)}"
            ) from error
        return {
            "files": [file.to_json() for file in files],
            "end_offset": result.end_offset,
            "last": asdict(result.last) if result.last else None,
            "gaps": [asdict(gap) for gap in result.gaps],
        }

    return run_tasks(spark, len(tasks), write)
