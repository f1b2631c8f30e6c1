"""Verification of ConsumeQueues: they are rebuilt from the CommitLog and compared."""

import filecmp
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from rockoon_format.consume_queue import ENTRY_BYTES
from rockoon_spark.jobs.rebuild import rebuild_queues
from rockoon_spark.source.log_source import LogSource

_NAME_DIGITS = 20
_PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True)
class VerifiedQueues:
    """Numbers of queue files and entries that a verification compared."""

    log_bytes: int
    entries: int
    queues: int
    files: int


def queue_files(target: Path) -> list[Path]:
    """Return the queue files below a directory: topic/queue/offset."""
    found = target.glob("*/*/*")
    return sorted(
        path
        for path in found
        if path.parent.name.isdigit() and path.name.isdigit() and len(path.name) == _NAME_DIGITS
    )


def verify_queues(
    spark: SparkSession, source: str | LogSource, target: Path
) -> tuple[VerifiedQueues, list[str]]:
    """Rebuild the queues of a log next to `target`, which needs free disk space, and compare.

    Args:
        source: see `rebuild_queues`; no broker may be writing to it.
        target: a `consumequeue` directory with files of one length.

    Returns:
        The numbers, and a sentence per difference, a hundred at most.

    Raises:
        LogBroken, QueueDisorder, StoreReadError: see `rebuild_queues`.
    """
    target = target.resolve()
    existing = {str(path.relative_to(target)): path for path in queue_files(target)}
    entries = max(path.stat().st_size for path in existing.values()) // ENTRY_BYTES
    rebuilt = target.parent / f".{target.name}.again-{uuid.uuid4().hex}"
    try:
        report = rebuild_queues(spark, source, rebuilt, file_entries=max(entries, 1))
        expected = {str(path.relative_to(rebuilt)): path for path in queue_files(rebuilt)}
        problems = [
            f"{target / name} {fault}"
            for name in sorted(existing.keys() | expected.keys())
            if (fault := _fault(existing.get(name), expected.get(name)))
        ]
    finally:
        shutil.rmtree(rebuilt, ignore_errors=True)
    shown = problems[:_PROBLEMS_MAX]
    if len(problems) > len(shown):
        shown.append(f"{len(problems) - len(shown)} more files differ")
    verified = VerifiedQueues(report.log_bytes, report.entries, report.queues, report.files)
    return verified, shown


def _fault(found: Path | None, expected: Path | None) -> str | None:
    if found is None:
        return "is missing, although the log has messages for it"
    if expected is None:
        return "has no message in the log"
    return None if filecmp.cmp(found, expected, shallow=False) else "differs from the log"
