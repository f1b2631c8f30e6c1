"""Result of a start: what recovery found and changed."""

from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.epochs import Renewal


@dataclass(frozen=True)
class Recovery:
    """Result of a recovery."""

    starts: tuple[int, ...]
    """Start offsets of the remaining CommitLog files."""
    log_end: int
    """Physical offset after the last record."""
    dispatched_end: int
    """Physical offset up to which the queues list the log. It is `log_end`, unless a quorum decides
    which records are committed, or a topic restarts after it."""
    dispatched_ms: int
    """Store time of the newest record before `dispatched_end`; 0 if none is known."""
    store_timestamp_ms: int
    """Store time of the newest record; 0 if none is known."""
    lineage: bytes
    """Lineage of this run's recovery points."""
    was_clean: bool
    """Whether the previous run stopped cleanly."""
    boundary: int
    """Physical offset at which the scan began."""
    reason: str
    """Why it began there."""
    records_scanned: int
    bytes_scanned: int
    bytes_cleared: int
    """Bytes after the end that were zeroed."""
    lost_files: tuple[Path, ...] = ()
    """Files in `lost` with the bytes that this start removed."""
    own_records: tuple[int, ...] = ()
    """Physical offsets of the scanned records of the log's own topic."""
    renewals: tuple[Renewal, ...] = ()
    """The scanned renewals, still to be applied."""
    records_in_lost: int = 0
    """Whole records in `lost_files`: not known to be durable, but they may have been."""
    lost_bytes: int = 0
    """Disk usage of `lost`, by this start and earlier ones."""
