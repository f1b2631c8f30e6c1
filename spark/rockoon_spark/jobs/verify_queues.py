"""ConsumeQueues compared with the CommitLog: they are made once more, and have to be the same."""

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
    """What was compared."""

    log_bytes: int
    entries: int
    queues: int
    files: int


def queue_files(target: Path) -> list[Path]:
    """The queue files below a directory, as topic/queue/offset."""
    found = target.glob("*/*/*")
    return sorted(
        path
        for path in found
        if path.parent.name.isdigit() and path.name.isdigit() and len(path.name) == _NAME_DIGITS
    )


def verify_queues(
    spark: SparkSession, source: str | LogSource, target: Path
) -> tuple[VerifiedQueues, list[str]]:
    """Make the queues of a log again beside `target`, for which there has to be room, and compare.

    Args:
        source: as `rebuild_queues` takes it; nobody may write it meanwhile.
        target: a `consumequeue` directory with files of one length.

    Returns:
        What was compared, and a sentence for each difference, a hundred at most.

    Raises:
        LogBroken, QueueDisorder, StoreError: as `rebuild_queues`.
    """
    target = target.resolve()
    there = {str(path.relative_to(target)): path for path in queue_files(target)}
    entries = max(path.stat().st_size for path in there.values()) // ENTRY_BYTES
    again = target.parent / f".{target.name}.again-{uuid.uuid4().hex}"
    try:
        report = rebuild_queues(spark, source, again, file_entries=max(entries, 1))
        due = {str(path.relative_to(again)): path for path in queue_files(again)}
        problems = [
            f"{target / name} {fault}"
            for name in sorted(there.keys() | due.keys())
            if (fault := _fault(there.get(name), due.get(name)))
        ]
    finally:
        shutil.rmtree(again, ignore_errors=True)
    told = problems[:_PROBLEMS_MAX]
    if len(problems) > len(told):
        told.append(f"{len(problems) - len(told)} more files differ")
    verified = VerifiedQueues(report.log_bytes, report.entries, report.queues, report.files)
    return verified, told


def _fault(found: Path | None, due: Path | None) -> str | None:
    if found is None:
        return "is missing: the log has messages of it"
    if due is None:
        return "has no message in the log"
    return None if filecmp.cmp(found, due, shallow=False) else "is not what the log says"
