"""Retention: which CommitLog files are deleted, and whether the store takes messages. Pure.

The rules are those of RocketMQ's CleanCommitLogService: oldest first, stop at the first file that
has not expired, and never the last file. But age is counted from when the file's newest message was
stored, and not from when the file was modified: a copy that was made today is not younger for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_core.disk import DiskUsage


@dataclass(frozen=True)
class LogFileAge:
    """One CommitLog file as retention sees it."""

    start: int
    """Physical offset of its first byte."""
    newest_ms: int
    """Store time of its newest message, epoch milliseconds."""


@dataclass(frozen=True)
class RetentionRules:
    """The limits of one store; see `StoreSettings` for each."""

    reserved_ms: int
    delete_hours: frozenset[int]
    used_percent_max: int
    forced_percent: int
    full_percent: int
    files_per_pass_max: int


@dataclass(frozen=True)
class RetentionDecision:
    """What a clean pass does."""

    delete: tuple[int, ...]
    """Start offsets of the files to delete, oldest first."""
    writable: bool
    """False while the disk is fuller than the last mark."""
    used_percent: int
    reason: str
    """Why files go, or why none: for the log line."""


def parse_hours(text: str) -> frozenset[int]:
    """The hours of a `deleteWhen` text such as `04` or `04;16`; ValueError if it is none."""
    hours: set[int] = set()
    for part in text.split(";"):
        if not part.strip().isdigit() or int(part) > 23:
            raise ValueError(f"{text!r} is no list of hours 00 to 23 separated by ';'")
        hours.add(int(part))
    return frozenset(hours)


def come_back(files: Sequence[LogFileAge], now_ms: int) -> list[LogFileAge]:
    """Ages without the times of a clock that was ahead: nothing was stored after what follows it.

    Args:
        files: all CommitLog files, oldest first.
        now_ms: epoch milliseconds.
    """
    latest_ms, found = now_ms, []
    for file in reversed(files):
        latest_ms = min(latest_ms, file.newest_ms)
        found.append(LogFileAge(file.start, latest_ms))
    return found[::-1]


def decide(
    files: Sequence[LogFileAge],
    usage: DiskUsage,
    rules: RetentionRules,
    *,
    now_ms: int,
    local_hour: int,
) -> RetentionDecision:
    """Decide one clean pass.

    Args:
        files: every CommitLog file, oldest first.
        usage: the partition's fill now.
        rules: the limits.
        now_ms: epoch milliseconds.
        local_hour: 0 to 23.
    """
    percent = usage.used_percent
    writable = percent <= rules.full_percent
    forced = percent > rules.forced_percent
    if forced:
        reason = f"disk {percent} % full, above {rules.forced_percent} %"
    elif percent > rules.used_percent_max:
        reason = f"disk {percent} % full, above {rules.used_percent_max} %"
    elif local_hour in rules.delete_hours:
        reason = f"hour {local_hour:02d}"
    else:
        return RetentionDecision((), writable, percent, "not due")
    delete: list[int] = []
    for file in files[:-1][: rules.files_per_pass_max]:
        if not forced and now_ms < file.newest_ms + rules.reserved_ms:
            break
        delete.append(file.start)
    return RetentionDecision(tuple(delete), writable, percent, reason)
