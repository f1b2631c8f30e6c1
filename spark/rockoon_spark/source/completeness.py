"""Completeness of what tasks have read: nothing of a log is missing between two records.

What a job makes out of a log (an index, queues) is wrong if a single record is passed over, and
no task can tell alone: a partition that begins at a cut begins with the first record behind it,
whatever was damaged before that. So each says where its records begin and end, and the driver
compares.
"""

from collections.abc import Sequence

from rockoon_spark.records.record_run import LogBroken, no_record
from rockoon_spark.source.log_source import ContiguousLog, LogSource
from rockoon_spark.source.store_directory import StoreDirectory

Extent = tuple[int, int] | None
"""Physical offsets where a partition's first record starts and its last one ends, if any."""


def contiguous_log(log: str | LogSource) -> ContiguousLog:
    """The log that a job is to take in, as it is now.

    Args:
        log: a source, or a store directory, as a path of this machine or a URI.

    Raises:
        LogBroken, RockoonError, StoreError: see `LogSource.log`.
    """
    return (StoreDirectory(log) if isinstance(log, str) else log).log()


def check_complete(log: ContiguousLog, start: int, stop: int, extents: Sequence[Extent]) -> int:
    """See that the records of partitions, one after the other, are all that a log has.

    Args:
        start, stop: physical offsets between which the partitions lie, in order, without a gap.
        extents: of each partition.

    Returns:
        Where the log goes on behind the last record: `stop`, or where what is written ends.

    Raises:
        LogBroken: bytes are missing between two of them, or before the end.
    """
    at = start
    for extent in extents:
        if extent is None:
            continue
        first, behind = extent
        if first != at:
            at = log.following(at)
        if first != at:
            raise LogBroken(no_record(log.name_at(at), at, first))
        at = behind
    if at != stop:
        at = log.following(at)
    if at != stop and not (stop == log.end and log.is_end(at)):
        raise LogBroken(no_record(log.name_at(at), at, stop))
    return at
