"""Check that tasks have read a log completely, without missing bytes between two records.

The output of a job (an index, queues) is wrong if a single record is skipped. A task alone cannot
detect that: a partition that begins at a cut begins with the first record after the cut, even if
damage precedes the record. So each task reports the extent of its records, and the driver compares
the extents.
"""

from collections.abc import Sequence

from rockoon_spark.records.record_run import LogBroken, no_record
from rockoon_spark.source.log_source import ContiguousLog, LogSource
from rockoon_spark.source.store_directory import StoreDirectory

Extent = tuple[int, int] | None
"""Physical offsets at which a partition's first record starts and its last record ends; None
without records.
"""


def contiguous_log(log: str | LogSource) -> ContiguousLog:
    """Return the current state of the log that a job reads.

    Args:
        log: a source, or a store directory (local path or URI).

    Raises:
        LogBroken, RockoonError, StoreReadError: see `LogSource.log`.
    """
    return (StoreDirectory(log) if isinstance(log, str) else log).log()


def check_complete(log: ContiguousLog, start: int, stop: int, extents: Sequence[Extent]) -> int:
    """Check that the records of all partitions cover the log from `start` to `stop`.

    Args:
        start, stop: physical offsets; the partitions are in order and have no gap.
        extents: of each partition.

    Returns:
        Physical offset at which the next record will start: `stop`, or the end of the log.

    Raises:
        LogBroken: bytes between two records, or before `stop`, belong to no record.
    """
    at = start
    for extent in extents:
        if extent is None:
            continue
        first, end = extent
        if first != at:
            at = log.following(at)
        if first != at:
            raise LogBroken(no_record(log.name_at(at), at, first))
        at = end
    if at != stop:
        at = log.following(at)
    if at != stop and not (stop == log.end and log.is_end(at)):
        raise LogBroken(no_record(log.name_at(at), at, stop))
    return at
