"""Verification of an export: comparison with its manifests and with the logs.

The messages of the log are converted to rows again and compared one by one with the exported rows.
Messages that the log no longer contains are skipped: retention deletes the beginning of the log,
and the messages of a deleted topic are deleted with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from rockoon_spark.export.reading import file_problem, section_rows
from rockoon_spark.export.rows import (
    Partition,
    SectionReading,
    SectionResult,
    TopicChoice,
    gathered,
    read_section,
)
from rockoon_spark.export.target import (
    ExportedFile,
    ExportManifest,
    ExportTarget,
    Section,
    exported_files,
    kept_paths,
    locked,
    manifests,
    recover,
)
from rockoon_spark.session import run_tasks
from rockoon_spark.source.log_source import ContiguousLog, LogSource


class Comparison:
    """Compares the exported files of a section of a log with its rows.

    Args:
        target: the export.
        files: all files with messages of the section.
        section: the range of the log.
    """

    def __init__(
        self, target: ExportTarget, files: Sequence[ExportedFile], section: Section
    ) -> None:
        by_directory: dict[str, list[ExportedFile]] = defaultdict(list)
        for file in files:
            # The path in today's escaping: earlier versions escaped fewer characters.
            by_directory[Partition.of(file.path).path].append(file)
        self._rows = {
            directory: _Rows(section_rows(target, found, section))
            for directory, found in by_directory.items()
        }
        self._shown = target.shown
        self.compared = 0
        """Number of equal rows."""

    def problems(self, expected: Iterable[Mapping[Partition, pa.Table]]) -> Iterator[str]:
        """Compare the exported rows with the expected ones, in the order of the log; yield a
        sentence per difference.

        Only the first difference of each topic and date is reported.
        """
        wrong: set[str] = set()
        for tables in expected:
            for partition, table in tables.items():
                if partition.path in wrong:
                    continue
                problem = self._problem(partition, table)
                if problem:
                    wrong.add(partition.path)
                    yield f"{self._shown}/{partition.path}: {problem}"
        for directory, rows in self._rows.items():
            # If no row was expected (not is_started), the topic may have been deleted.
            if (
                directory not in wrong
                and rows.is_started
                and (offset := rows.next_offset()) is not None
            ):
                yield f"{self._shown}/{directory}: {_message_at(offset)} is not in the log"

    def _problem(self, partition: Partition, table: pa.Table) -> str | None:
        rows = self._rows.get(partition.path)
        offsets = table["physical_offset"]
        if rows is None:
            return f"{_message_at(offsets[0].as_py())} is in no file"
        if not rows.is_started:
            rows.skip_below(offsets[0].as_py())
        found = rows.next_rows(table.num_rows)
        if found is not None and found.equals(table):
            self.compared += table.num_rows
            return None
        return _difference(found, table)


class _Rows:
    """Iterates over rows.

    Args:
        tables: the rows, by physical offset.
    """

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._batches = tables
        self._rest: pa.Table | None = None
        self.is_started = False

    def _fill(self) -> pa.Table | None:
        if self._rest is None or not self._rest.num_rows:
            self._rest = next(self._batches, None)
        return self._rest

    def next_offset(self) -> int | None:
        """Return the physical offset of the next row; None after the last row."""
        rest = self._fill()
        return rest["physical_offset"][0].as_py() if rest is not None else None

    def skip_below(self, offset: int) -> None:
        self.is_started = True
        while (rest := self._fill()) is not None:
            offsets = rest["physical_offset"].to_numpy()
            below = int(offsets.searchsorted(offset))
            self._rest = rest.slice(below)
            if below < len(offsets):
                return

    def next_rows(self, count: int) -> pa.Table | None:
        """Return the next `count` rows; fewer at the end, None after the last row."""
        found = []
        while count and (rest := self._fill()) is not None:
            found.append(rest.slice(0, count))
            self._rest = rest.slice(count)
            count -= found[-1].num_rows
        return pa.concat_tables(found) if found else None


def _difference(found: pa.Table | None, expected: pa.Table) -> str:
    """Return a description of the first difference between exported and expected rows."""
    offsets = expected["physical_offset"].to_pylist()
    exported = found["physical_offset"].to_pylist() if found is not None else []
    for number, offset in enumerate(offsets):
        if number >= len(exported) or exported[number] > offset:
            return f"{_message_at(offset)} is in no file"
        if exported[number] < offset:
            return f"{_message_at(exported[number])} is not in the log"
        assert found is not None
        for name in expected.column_names:
            if found[name][number] != expected[name][number]:
                return f"{_message_at(offset)} has another {name} than in the log"
    raise AssertionError("equal rows")


def _message_at(offset: int) -> str:
    return f"the message at physical offset {offset}"


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
        files = exported_files(runs)
        problems = _wrong_files(spark, into, files)
        known = {file.path for file in files}.union(kept_paths(into))
        problems += [
            f"{into.shown}/{path} is in no manifest, but readers of the directory see its messages"
            for path in into.parquet_paths()
            if path not in known
        ]
        compared = 0
        if source is not None and not problems:
            compared, problems = _compare(spark, into, runs, files, source)
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
    files: Sequence[ExportedFile],
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
        (replace(run, files=[file for file in files if file.range_in(section)]), section)
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
    """Compare the rows of a section with the log.

    Args:
        run: manifest of the run that exported the section, with all files that can have its rows.
    """
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
    comparison = Comparison(target, run.files, section)
    problems = list(comparison.problems(gathered(records)))
    return {"problems": problems, "compared": comparison.compared}
