"""Every number the store can be told, with its bounds."""

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
    """What no record of a batch may exceed."""

    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int


NO_LIMITS = RecordLimits(
    body_bytes_max=SIZE_MAX, properties_bytes_max=PROPERTIES_BYTES_MAX, record_bytes_max=SIZE_MAX
)
"""Only what the form of a record allows."""


class Flush(StrEnum):
    """When a message counts as stored."""

    SYNC = "sync"
    """After an fsync that covers it: readers see it and producers are told only then."""
    ASYNC = "async"
    """At once; a power cut may lose the last `flush_interval_ms`."""


def physical_memory_bytes() -> int:
    """The machine's RAM in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """How one store directory is laid out, synced and cleaned.

    Raises ValueError for a value out of bounds. Defaults are those of RocketMQ's
    MessageStoreConfig unless a field says otherwise.
    """

    root: Path
    """The directory that holds commitlog/, consumequeue/, config/ and the marker files."""

    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    """Address and port written into every record as the host that stored it."""

    commit_log_file_bytes: int = 1 << 30
    """Size of every CommitLog file. Must never change for a directory that has files."""

    consume_queue_file_entries: int = 300_000
    """Entries of 20 bytes in every ConsumeQueue file. Must never change either."""

    flush: Flush = Flush.SYNC
    """`sync` (ours; RocketMQ's default is async) or `async`."""

    flush_interval_ms: int = 500
    """With `async`: how often the CommitLog is synced."""

    recovery_point_interval_ms: int = 1000
    """How often ConsumeQueues are synced and checkpoint and recovery point written."""

    reserved_hours: float | None = None
    """A CommitLog file whose newest message was stored longer ago than this has expired. None: 72,
    but a store that RocketMQ wrote keeps all files."""

    delete_when: str = "04"
    """Local hours (00 to 23, separated by `;`) in which expired files are deleted."""

    disk_check_delay_ms: int = 60_000
    """How long after the start the first clean pass runs."""

    disk_check_interval_ms: int = 10_000
    """How often the disk is looked at and a clean pass considered."""

    disk_used_percent_max: int = 75
    """Above this, expired files go at any hour."""

    disk_forced_percent: int = 85
    """Above this, the oldest files are deleted before they expire, as far as the policy allows."""

    disk_full_percent: int = 90
    """Above this, clients' messages are refused until the disk is emptier."""

    disk_reserve_percent: int = 5
    """Share of the disk above `disk_full_percent` that the broker's own records may use."""

    disk_pressure_policy: str = "refuse"
    """refuse: under pressure only files that every known group has read are deleted; delete: the
    oldest files are deleted, read or not."""

    retention_wait_for_groups: tuple[str, ...] = ()
    """Groups for which expired files are kept; `*` means every known group."""

    retention_wait_bytes_max: int = 0
    """Expired bytes of the log that are kept for them, at most."""

    files_per_pass_max: int = 10
    """CommitLog files deleted in one clean pass, at most."""

    body_bytes_max: int = 4 << 20
    """Largest message body."""

    properties_bytes_max: int = 32_767
    """Largest properties text; the record's length field cannot hold more."""

    record_checksums: bool = True
    """Whether every record gets a checksum of all its bytes (RocketMQ's enabledAppendPropCRC, where
    the default is false). Without, only those get one whose sender left room for it."""

    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """Delays of levels 1, 2, ...: with the store time they give delayed messages' queue entries."""

    unsynced_bytes_max: int = 256 << 20
    """With `sync`: bytes that may wait for a sync before appends are refused as busy."""

    open_queue_files_max: int = 2048
    """ConsumeQueue files kept open at once, however many queues there are."""

    tails_bytes_max: int = 16 << 20
    """The newest messages of queues, kept in memory for those who follow them."""

    memory_bytes: int | None = None
    """RAM that the "still in memory" estimate assumes; None means the machine's."""

    memory_percent: int = 40
    """Share of it in which the newest messages are taken to be (accessMessageInMemoryMaxRatio)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "flush", Flush(self.flush))
        bounds: dict[str, tuple[float, float]] = {
            # Fixed part of a record, a topic and the eight bytes that always stay free.
            "commit_log_file_bytes": (1024, 1 << 40),
            "consume_queue_file_entries": (1, 50_000_000),
            "flush_interval_ms": (1, 60_000),
            "recovery_point_interval_ms": (1, 60_000),
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
        """The limits that retention decides by.

        Args:
            keeps_all: RocketMQ wrote the store; its files are kept unless `reserved_hours` is set.
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
        """Largest whole record: RocketMQ allows 64 KiB around the largest body."""
        return self.body_bytes_max + 65_536

    @property
    def record_limits(self) -> RecordLimits:
        """What `check_batch` allows of a client's record."""
        return RecordLimits(
            body_bytes_max=self.body_bytes_max,
            properties_bytes_max=self.properties_bytes_max,
            record_bytes_max=self.record_bytes_max,
        )

    @property
    def consume_queue_file_bytes(self) -> int:
        """Size of every ConsumeQueue file."""
        return self.consume_queue_file_entries * 20

    @property
    def in_memory_bytes(self) -> int:
        """Distance from the log's end within which a message is taken to be in memory."""
        memory = physical_memory_bytes() if self.memory_bytes is None else self.memory_bytes
        return memory * self.memory_percent // 100
