"""Settings of the store with their bounds."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

from rockoon_broker.store.retention.retention import (
    RESERVED_HOURS_DEFAULT,
    RetentionRules,
    parse_hours,
)
from rockoon_format.batch_encoding import SIZE_MAX
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.properties import PROPERTIES_BYTES_MAX


class RecordLimits(TypedDict):
    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int


NO_LIMITS = RecordLimits(
    body_bytes_max=SIZE_MAX, properties_bytes_max=PROPERTIES_BYTES_MAX, record_bytes_max=SIZE_MAX
)
"""Only the limits of the record format."""


class Flush(StrEnum):
    """When a message counts as stored."""

    SYNC = "sync"
    """After an fsync that covers it: only then do readers see it and producers get the answer."""
    ASYNC = "async"
    """When it is written to the page cache; a power failure may lose the last
    `flush_interval_ms`."""


def physical_memory_bytes() -> int:
    """The machine's RAM in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Layout, syncing and retention of one store directory.

    Raises ValueError for a value out of bounds. Defaults are those of RocketMQ's
    MessageStoreConfig unless a field says otherwise. A field without a text is explained by the
    broker's setting of the same name (`rockoon_broker.settings`).
    """

    root: Path
    """The directory that holds commitlog/, consumequeue/, config/ and the marker files."""

    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    """Address and port that every record names as the host that stored it."""

    commit_log_file_bytes: int = 1 << 30
    """Size of every CommitLog file, bytes. Must never change for a directory with files."""

    consume_queue_file_entries: int = 300_000
    """Entries (20 bytes each) of every ConsumeQueue file. Must never change either."""

    flush: Flush = Flush.SYNC
    """`sync` (Rockoon's default; RocketMQ's is async) or `async`."""

    flush_interval_ms: int = 500

    recovery_point_interval_ms: int = 1000
    """Minimum interval at which ConsumeQueues are synced and checkpoint and recovery point are
    written. A point is written when the log did not grow for one interval."""

    recovery_point_interval_ms_max: int = 10_000
    """Maximum interval of recovery points while the log grows slowly."""

    recovery_point_bytes: int = 16 << 20
    """Growth of the log after which a recovery point is written at the minimum interval."""

    reserved_hours: float | None = None
    """Hours after the store time of its newest message at which a CommitLog file expires. None: 72,
    but a store written by RocketMQ keeps all files."""

    delete_when: str = "04"

    disk_check_delay_ms: int = 60_000
    """Delay of the first clean pass after a start."""

    disk_check_interval_ms: int = 10_000
    disk_used_percent_max: int = 75
    disk_forced_percent: int = 85
    disk_full_percent: int = 90
    disk_reserve_percent: int = 5
    disk_pressure_policy: str = "refuse"
    retention_wait_for_groups: tuple[str, ...] = ()
    retention_wait_bytes_max: int = 0

    files_per_pass_max: int = 10
    """Maximum number of CommitLog files deleted per clean pass."""

    body_bytes_max: int = 4 << 20

    properties_bytes_max: int = 32_767
    """Maximum size of a properties text, bytes; the record's length field allows no more."""

    record_checksums: bool = True
    """Whether every record gets a checksum of all its bytes (RocketMQ's enabledAppendPropCRC,
    default false). If false, only records with space reserved by the sender get one."""

    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """Delays of levels 1, 2, ...; added to the store time in queue entries of delayed messages."""

    unsynced_bytes_max: int = 256 << 20
    """Maximum number of appended, uncommitted bytes; beyond it appends are refused as busy. With
    `async`, appended bytes are committed immediately."""

    open_queue_files_max: int = 2048
    """Maximum number of open ConsumeQueue files, regardless of the number of queues."""

    tails_bytes_max: int = 16 << 20
    """Memory for the newest messages of queues, for readers at the end of a queue, bytes."""

    memory_bytes: int | None = None
    """RAM assumed by the "still in memory" estimate, bytes; None: the machine's RAM."""

    memory_percent: int = 40
    """Percentage of it that holds the newest messages (accessMessageInMemoryMaxRatio)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "flush", Flush(self.flush))
        bounds: dict[str, tuple[float, float]] = {
            # Fixed part of a record, a topic, and the eight bytes that always stay free.
            "commit_log_file_bytes": (1024, 1 << 40),
            "consume_queue_file_entries": (1, 50_000_000),
            "flush_interval_ms": (1, 60_000),
            "recovery_point_interval_ms": (1, 60_000),
            "recovery_point_interval_ms_max": (1, 600_000),
            "recovery_point_bytes": (0, 1 << 40),
            "reserved_hours": (0, 24 * 365 * 100),
            "disk_check_delay_ms": (0, 86_400_000),
            "disk_check_interval_ms": (1, 3_600_000),
            "disk_used_percent_max": (10, 95),
            "disk_forced_percent": (30, 100),
            "disk_full_percent": (35, 100),
            "disk_reserve_percent": (0, 50),
            "retention_wait_bytes_max": (0, 1 << 60),
            "files_per_pass_max": (1, 1000),
            "body_bytes_max": (1, 1 << 30),
            "properties_bytes_max": (0, 32_767),
            "unsynced_bytes_max": (4096, 1 << 40),
            "open_queue_files_max": (8, 1 << 20),
            "tails_bytes_max": (0, 1 << 40),
            "memory_percent": (0, 100),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, must be between {low} and {high}")
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise ValueError(f"memory_bytes is {self.memory_bytes}, must not be negative")
        if self.disk_forced_percent > self.disk_full_percent:
            raise ValueError(
                f"disk_forced_percent ({self.disk_forced_percent}) must not be above "
                f"disk_full_percent ({self.disk_full_percent})"
            )
        if self.disk_pressure_policy not in ("refuse", "delete"):
            raise ValueError(
                f"disk_pressure_policy is {self.disk_pressure_policy!r}, must be refuse or delete"
            )
        parse_hours(self.delete_when)

    def retention_rules(self, *, keeps_all: bool) -> RetentionRules:
        """Return the retention limits.

        Args:
            keeps_all: RocketMQ wrote the store; all files are kept unless `reserved_hours` is set.
        """
        hours = RESERVED_HOURS_DEFAULT if self.reserved_hours is None else self.reserved_hours
        return RetentionRules(
            reserved_ms=int(hours * 3_600_000),
            delete_hours=parse_hours(self.delete_when),
            used_percent_max=self.disk_used_percent_max,
            forced_percent=self.disk_forced_percent,
            full_percent=self.disk_full_percent,
            files_per_pass_max=self.files_per_pass_max,
            file_bytes=self.commit_log_file_bytes,
            reserve_percent=self.disk_reserve_percent,
            deletes_unread=self.disk_pressure_policy == "delete",
            waits_for=self.retention_wait_for_groups,
            wait_bytes_max=self.retention_wait_bytes_max,
            keeps_all=keeps_all and self.reserved_hours is None,
        )

    @property
    def record_bytes_max(self) -> int:
        """Maximum size of a whole record: RocketMQ allows 64 KiB besides the largest body."""
        return self.body_bytes_max + 65_536

    @property
    def record_limits(self) -> RecordLimits:
        """Limits that `check_batch` applies to a client's record."""
        return RecordLimits(
            body_bytes_max=self.body_bytes_max,
            properties_bytes_max=self.properties_bytes_max,
            record_bytes_max=self.record_bytes_max,
        )

    @property
    def in_memory_bytes(self) -> int:
        """Distance from the log's end within which messages are assumed to be in memory."""
        memory = physical_memory_bytes() if self.memory_bytes is None else self.memory_bytes
        return memory * self.memory_percent // 100
