"""Retention: which CommitLog files are deleted and why, and which messages are accepted. Pure.

The rules are those of RocketMQ's CleanCommitLogService, with three changes:

1. The age of a file counts from the store time of its newest message, not from the time at which
   the file was modified: a copy of a store is not younger than the original.
2. Under disk pressure files are deleted one at a time, and with `deletes_unread` off only files
   that every known consumer group has read (docs/adr/0079-refuse-before-deleting-unread.md).
3. An expired file can wait for named consumer groups, up to a number of bytes.

Files are deleted oldest first. The last file is never deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rockoon_core.disk import DiskUsage

RESERVED_HOURS_DEFAULT = 72.0


class DeletionReason(StrEnum):
    """Why a CommitLog file was deleted; the values are kept on disk."""

    EXPIRED = "expired"
    DISK_PRESSURE = "disk pressure"
    WAIT_LIMIT = "wait limit"
    """Expired and unread by a group that retention waits for, but the byte limit was reached."""


@dataclass(frozen=True)
class LogFileAge:
    start: int
    """Physical offset of its first byte."""
    newest_ms: int
    """Store time of its newest message, epoch milliseconds."""


@dataclass(frozen=True)
class UnreadBy:
    """Messages that one reader has not read."""

    group: str
    """The consumer group; "group@member" for a member that has separate progress."""
    queue: str
    messages: int


@dataclass(frozen=True)
class FileReading:
    """Messages of a CommitLog file, and of older ones, that are still needed."""

    unread: tuple[UnreadBy, ...] = ()
    """The readers with the most unread messages; bounded."""
    messages: int = 0
    """Total number of unread messages, counted once per reader."""
    is_waited_for: bool = False
    """Whether a group that retention waits for is among the readers."""
    pending: int = 0
    """Delayed and half messages that are not delivered yet."""
    unknown_because: str = ""
    """Why the groups' progress is unknown; then the file counts as unread."""

    @property
    def is_read(self) -> bool:
        """Whether deleting the file loses no message of a known group."""
        return not (self.messages or self.pending or self.unknown_because)

    def __str__(self) -> str:
        if self.unknown_because:
            return f"unread messages are unknown: {self.unknown_because}"
        parts = [f"{each.group} {each.messages} of {each.queue}" for each in self.unread]
        if hidden := self.messages - sum(each.messages for each in self.unread):
            parts.append(f"{hidden} more")
        text = f"unread by groups: {', '.join(parts)}" if parts else "read by every known group"
        return f"{text}; {self.pending} delayed or half messages" if self.pending else text


NOT_ASKED = FileReading(is_waited_for=True, unknown_because="no offset service was asked")


@dataclass(frozen=True)
class RetentionRules:
    """The limits of one store; see `StoreSettings` for each."""

    reserved_ms: int
    delete_hours: frozenset[int]
    used_percent_max: int
    forced_percent: int
    full_percent: int
    files_per_pass_max: int
    file_bytes: int
    reserve_percent: int = 5
    deletes_unread: bool = False
    waits_for: tuple[str, ...] = ()
    wait_bytes_max: int = 0
    keeps_all: bool = False
    """RocketMQ wrote the store, and no operator has set a retention time."""

    def seconds_to_pressure(self, usage: DiskUsage, bytes_per_second: float) -> float | None:
        """Return the time until the log's growth fills the disk to the mark of the policy.

        The mark is `full_percent` under `refuse`, `forced_percent` under `delete`.

        Returns:
            0 if the disk is above the mark; None if the log does not grow.
        """
        mark_percent = self.forced_percent if self.deletes_unread else self.full_percent
        total = usage.used_bytes + usage.usable_bytes
        free_bytes = max(total * mark_percent // 100 - usage.used_bytes, 0)
        if usage.used_percent > mark_percent:
            return 0.0
        return free_bytes / bytes_per_second if bytes_per_second > 0 else None


@dataclass(frozen=True)
class LogFacts:
    """State of the log and of the disk for one clean pass.

    Attributes:
        files: the oldest CommitLog files, oldest first; the last one is never deleted.
        usage: fill of the partition.
        expired_end: physical offset after the expired files; used if retention waits for groups.
        next_file_bytes: size of a file that has to be created next; 0 while the log has one.
        readings: unread messages of files, by the end offset of a file; None without an offset
            service.
        deleted_elsewhere_end: physical offset up to which the leader has deleted the log.
        is_freeing: previously deleted files still use disk space.
    """

    files: Sequence[LogFileAge]
    usage: DiskUsage
    expired_end: int = 0
    next_file_bytes: int = 0
    readings: Mapping[int, FileReading] | None = None
    deleted_elsewhere_end: int = 0
    is_freeing: bool = False

    def reading(self, end: int) -> FileReading | None:
        """Return the unread messages of the file that ends at an offset; None: ask the groups."""
        if end <= self.deleted_elsewhere_end:
            return FileReading()
        return NOT_ASKED if self.readings is None else self.readings.get(end)


@dataclass(frozen=True)
class FileDeletion:
    """One CommitLog file that is deleted."""

    start: int
    reason: DeletionReason
    reading: FileReading


@dataclass(frozen=True)
class RetentionDecision:
    """Result of one clean pass."""

    deletions: tuple[FileDeletion, ...]
    """Oldest first."""
    wanted_ends: tuple[int, ...]
    """Ends of files about which the groups must be asked before a deletion."""
    refusal: str
    """Why messages of clients are refused; empty while they are accepted."""
    full: str
    """Why all appends are refused, including those from the reserve; empty while accepted."""
    used_percent: int
    is_pressed: bool = False
    """Whether the disk is above the forced mark, or has no room for the next file."""
    kept: FileReading | None = None
    """Reason why the oldest file is kept although the disk is under pressure."""

    @property
    def delete(self) -> tuple[int, ...]:
        """Start offsets of the files to delete, oldest first."""
        return tuple(each.start for each in self.deletions)

    @property
    def writable(self) -> bool:
        """Whether messages of clients are accepted."""
        return not self.refusal


def parse_hours(text: str) -> frozenset[int]:
    """Parse a `deleteWhen` text such as `04` or `04;16` into hours; ValueError if invalid."""
    hours: set[int] = set()
    for part in text.split(";"):
        if not part.strip().isdigit() or int(part) > 23:
            raise ValueError(f"{text!r} is not a list of hours 00 to 23 separated by ';'")
        hours.add(int(part))
    return frozenset(hours)


def corrected_ages(files: Sequence[LogFileAge], now_ms: int) -> list[LogFileAge]:
    """Return ages corrected for a clock that was ahead: no file is newer than a later one.

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
    facts: LogFacts, rules: RetentionRules, *, now_ms: int, local_hour: int
) -> RetentionDecision:
    """Decide one clean pass; `local_hour` is 0 to 23."""
    percent = facts.usage.used_percent
    refusal, full = refusals(facts.usage, facts.next_file_bytes, rules)
    is_pressed = percent > rules.forced_percent or bool(refusal)
    if rules.keeps_all:
        return RetentionDecision((), (), refusal, full, percent, is_pressed)
    deletions: list[FileDeletion] = []
    wanted: list[int] = []
    if is_pressed or percent > rules.used_percent_max or local_hour in rules.delete_hours:
        deletions.extend(_expired(facts, rules, now_ms, wanted))
    kept = None
    if is_pressed and not (deletions or wanted or facts.is_freeing) and len(facts.files) > 1:
        # One at a time: the disk's fill is read again once the file's space is free.
        oldest = facts.files[0]
        reading = facts.reading(oldest.start + rules.file_bytes)
        if reading is None:
            wanted.append(oldest.start + rules.file_bytes)
        elif reading.is_read or rules.deletes_unread:
            deletions.append(FileDeletion(oldest.start, DeletionReason.DISK_PRESSURE, reading))
        else:
            kept = reading
    if refusal and kept is not None:
        refusal = f"{refusal}; the oldest file of the log is {kept} (disk_pressure_policy = refuse)"
    return RetentionDecision(
        tuple(deletions), tuple(wanted), refusal, full, percent, is_pressed, kept
    )


def _expired(
    facts: LogFacts, rules: RetentionRules, now_ms: int, wanted: list[int]
) -> Iterator[FileDeletion]:
    """Yield expired files to delete, oldest first; add those to ask about to `wanted`."""
    for file in facts.files[:-1][: rules.files_per_pass_max]:
        if now_ms < file.newest_ms + rules.reserved_ms:
            return
        end = file.start + rules.file_bytes
        reading = facts.reading(end)
        if reading is None:
            wanted.append(end)
        elif not wanted:
            reason = DeletionReason.EXPIRED
            if rules.waits_for and reading.is_waited_for:
                if facts.expired_end - file.start <= rules.wait_bytes_max:
                    return
                reason = DeletionReason.WAIT_LIMIT
            yield FileDeletion(file.start, reason, reading)


def refusals(usage: DiskUsage, next_file_bytes: int, rules: RetentionRules) -> tuple[str, str]:
    """Return why clients' appends are refused and why all are; empty texts: accepted.

    Args:
        next_file_bytes: size of a CommitLog file that has to be created next, 0 for none.
    """
    percent = usage.used_percent
    last_percent = min(rules.full_percent + rules.reserve_percent, 100)
    full = ""
    if percent > last_percent:
        full = f"is {percent} % full, appends stop above {last_percent} %"
    if percent > rules.full_percent:
        return f"is {percent} % full, messages are refused above {rules.full_percent} %", full
    total = usage.used_bytes + usage.usable_bytes
    if (usage.used_bytes + next_file_bytes) * 100 > rules.full_percent * total:
        return (
            f"is {percent} % full and has no room for the next CommitLog file of "
            f"{next_file_bytes} bytes below {rules.full_percent} %"
        ), full
    return "", full
