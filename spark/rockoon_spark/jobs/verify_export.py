"""Verification of an export: comparison with its manifests and with the logs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from rockoon_spark.export.comparison import Comparison, file_problem
from rockoon_spark.export.rows import gathered
from rockoon_spark.export.sections import (
    SectionReading,
    SectionResult,
    TopicChoice,
    read_section,
)
from rockoon_spark.export.target import (
    ExportedFile,
    ExportManifest,
    ExportTarget,
    Section,
    locked,
    manifests,
    recover,
)
from rockoon_spark.jobs.numbered_tasks import run_tasks
from rockoon_spark.source.log_source import ContiguousLog, LogSource

_FILES_PER_TASK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class VerifiedExport:
    """Numbers of files and messages that a verification compared."""

    runs: int
    files: int
    bytes: int
    messages: int
    """Number of exported messages."""
    compared: int
    """Number of exported messages that are equal to a message of the log."""


def verify_export(
    spark: SparkSession, target: str, source: LogSource | None = None
) -> tuple[VerifiedExport, list[str]]:
    """Compare every file with its manifest, and every message that a log still has with the log.

    Args:
        target: the directory of an export.
        source: the logs; None to verify only the files.

    Returns:
        The numbers, and a sentence per difference.

    Raises:
        ExportTargetError: a manifest is missing or cannot be read, or an export is running.
        ExportError: a log is damaged.
        BrokerAway, LogBroken, LogUnreadable, RockoonError, StoreReadError: a log cannot be read.
    """
    into = ExportTarget.of(target)
    with locked(into) as check:
        recover(into, check=check)
        runs = manifests(into)
        files = [file for run in runs for file in run.files]
        problems = _wrong_files(spark, into, files)
        known = {file.path for file in files}
        problems += [
            f"{into.shown}/{path} is in no manifest, but readers of the directory see its messages"
            for path in into.parquet_paths()
            if path not in known
        ]
        compared = 0
        if source is not None and not problems:
            compared, problems = _compare(spark, into, runs, source)
    report = VerifiedExport(
        runs=len(runs),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        messages=sum(file.rows for file in files),
        compared=compared,
    )
    return report, problems


def _wrong_files(
    spark: SparkSession, target: ExportTarget, files: Sequence[ExportedFile]
) -> list[str]:
    chunks: list[list[ExportedFile]] = [[]]
    for file in files:
        if sum(each.bytes for each in chunks[-1]) + file.bytes > _FILES_PER_TASK_BYTES:
            chunks.append([])
        chunks[-1].append(file)

    def check(number: int) -> dict[str, Any]:
        found = (file_problem(target, file) for file in chunks[number])
        return {"problems": [problem for problem in found if problem]}

    answers = run_tasks(spark, len(chunks), check) if files else []
    return [problem for answer in answers for problem in answer["problems"]]


def _compare(
    spark: SparkSession,
    target: ExportTarget,
    runs: Sequence[ExportManifest],
    source: LogSource,
) -> tuple[int, list[str]]:
    logs = {log.broker: log for log in source.logs()}
    problems = []
    for broker, position in (runs[-1].positions if runs else {}).items():
        log = logs.get(broker)
        if log and position.last and log.knows(position.last) is False:
            problems.append(f"the log of broker {broker!r} differs from the exported log")
            del logs[broker]
    work = [
        (run, section)
        for run in runs
        for section in run.sections
        if section.broker in logs and section.stop > logs[section.broker].start
    ]
    if not work:
        return 0, problems

    def compare(number: int) -> dict[str, Any]:
        run, section = work[number]
        return _compare_section(target, run, section, logs[section.broker])

    answers = run_tasks(spark, len(work), compare)
    problems += [problem for answer in answers for problem in answer["problems"]]
    return sum(answer["compared"] for answer in answers), problems


def _compare_section(
    target: ExportTarget, run: ExportManifest, section: Section, log: ContiguousLog
) -> dict[str, Any]:
    files = [
        file
        for file in run.files
        if file.broker == section.broker and section.start <= file.first_offset < section.stop
    ]
    # Records that were skipped as damaged during the export are not in the files.
    reading = SectionReading(
        TopicChoice.from_json(run.topics),
        fails_on_data_loss=True,
        skips_damage=bool(run.gaps),
        is_final=True,
    )
    start = max(section.start, log.start)
    rest = replace(section, start=start)
    records = read_section(log, rest, reading, SectionResult(start), at_record=start == log.start)
    comparison = Comparison(target, files)
    problems = list(comparison.problems(gathered(records)))
    return {"problems": problems, "compared": comparison.compared}
