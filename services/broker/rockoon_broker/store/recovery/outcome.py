"""Outcome of a start: what was found in a directory, and what was done to it."""

from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.epochs import Renewal


@dataclass(frozen=True)
class Recovery:
    """What a start found and did."""

    starts: tuple[int, ...]
    """Start offsets of the CommitLog files that remain."""
    log_end: int
    """Physical offset behind the last record."""
    dispatched_end: int
    """Physical offset up to which the queues list the log: its end, unless others say what is
    committed, or a topic begins anew behind it."""
    dispatched_ms: int
    """Store time of the newest record before it; 0 if none is known."""
    store_timestamp_ms: int
    """That of the newest record; 0 if none is known."""
    lineage: bytes
    """For this run's recovery points."""
    was_clean: bool
    """Whether the last stop had been clean."""
    boundary: int
    """Where reading began."""
    reason: str
    """Why there."""
    records_scanned: int
    bytes_scanned: int
    bytes_cleared: int
    """Bytes behind the end that had to be made zero."""
    set_aside: tuple[Path, ...] = ()
    """Files in `lost` that hold what this start cut off."""
    own_records: tuple[int, ...] = ()
    """Physical offsets of what was read of the log's own topic."""
    renewals: tuple[Renewal, ...] = ()
    """Those among them behind which topics begin anew: that is still to be done."""
    records_set_aside: int = 0
    """Whole records in them: not known to have been durable, but they may have been."""
    lost_bytes: int = 0
    """What `lost` occupies, from this start and all before."""
