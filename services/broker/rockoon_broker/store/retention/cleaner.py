"""Clean passes: delete files as `retention` decides, and refuse messages while the disk is full.

`config/deletions.json` holds ranges of physical offsets with the reason and the time of their
deletion. Without it, messages deleted because of a full disk would be reported as expired. Only
reasons other than `expired` are written, so that most brokers do not have this file.
"""

import contextlib
import json
import logging
from collections import Counter, deque
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from rockoon_broker.store.clock import WallClock
from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.hold import Hold
from rockoon_broker.store.log.commit_log import CommitLog, CommitLogFile
from rockoon_broker.store.log.syncer import Syncer
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.retention.expiry import LogGrowth, MessageLoss, earliest_loss
from rockoon_broker.store.retention.retention import (
    DeletionReason,
    FileDeletion,
    FileReading,
    LogFacts,
    LogFileAge,
    RetentionDecision,
    RetentionRules,
    corrected_ages,
    decide,
    refusals,
)
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk, DiskUsage

FILE = "config/deletions.json"
# The oldest are discarded; adjacent ranges with one reason are merged.
RANGES_MAX = 256


class DeletedRange(NamedTuple):
    """A range of the log that was deleted for one reason."""

    start: int
    end: int
    reason: DeletionReason
    at_ms: int
    """Deletion time of its newest part, epoch milliseconds."""


class DeletedRanges:
    """Deleted ranges of one store.

    A damaged file is replaced at the next deletion: the reasons are only informative and must
    not prevent a store from opening.
    """

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk
        self._is_written = True
        self.ranges = _read(self._path)

    def record(self, start: int, end: int, reason: DeletionReason, at_ms: int) -> None:
        """Record why [start, end) of the log is deleted; durable unless the disk refuses."""
        if reason is DeletionReason.EXPIRED:
            return
        last = self.ranges[-1] if self.ranges else None
        if last is not None and last.end == start and last.reason is reason:
            self.ranges[-1] = DeletedRange(last.start, end, reason, at_ms)
        else:
            self.ranges.append(DeletedRange(start, end, reason, at_ms))
        del self.ranges[:-RANGES_MAX]
        self._is_written = False
        self.write_if_needed()

    def write_if_needed(self) -> None:
        """Retry a write that the disk refused."""
        if self._is_written:
            return
        text = json.dumps({"ranges": [list(each) for each in self.ranges]}, indent=1)
        try:
            self._disk.make_directory(self._path.parent)
            self._disk.replace_file(self._path, text.encode())
        except OSError as failure:
            # The deletion frees space, so it must not wait until this file can be written.
            log.warning("cannot write %s, retrying in the next pass: %s", self._path, failure)
            return
        self._is_written = True

    def reason_at(self, physical_offset: int) -> DeletionReason:
        """Return why a deleted byte of the log was deleted."""
        for each in self.ranges:
            if each.start <= physical_offset < each.end:
                return each.reason
        return DeletionReason.EXPIRED

    def reason_below(self, physical_offset: int) -> DeletionReason:
        """Return why a deleted message was deleted whose own offset is unknown.

        Returns the newest reason other than age: a message that may have been lost to a full disk
        must not be reported as expired.
        """
        for each in reversed(self.ranges):
            if each.start < physical_offset:
                return each.reason
        return DeletionReason.EXPIRED


def _read(path: Path) -> list[DeletedRange]:
    try:
        content = json.loads(path.read_bytes())
        return [
            DeletedRange(int(start), int(end), DeletionReason(reason), int(at_ms))
            for start, end, reason, at_ms in content["ranges"]
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("cannot read %s, reasons of earlier deletions are unknown: %s", path, error)
        return []


log = logging.getLogger(__name__)

# Queues whose leading files are checked per tick; a bound, so that a tick stays short.
QUEUES_SWEPT_PER_TICK_MAX = 256


class ExpiryForecast:
    """Forecast of when messages can be deleted, for one request.

    Reads the disk's fill once and each CommitLog file at most once.

    Args:
        log: the open log; it may lose files while the forecast is used.
        newest_in: returns the store time of a file's newest message, epoch milliseconds.
        clock: provides the local hour.
        now_ms: epoch milliseconds.
    """

    def __init__(
        self,
        log: CommitLog,
        newest_in: Callable[[CommitLogFile], int],
        clock: WallClock,
        usage: DiskUsage,
        rules: RetentionRules,
        bytes_per_second: float,
        now_ms: int,
    ) -> None:
        self._log = log
        self._bytes_per_second = bytes_per_second
        self._newest_in = newest_in
        self._clock = clock
        self._rules = rules
        self._now_ms = now_ms
        self._usage = usage
        self._losses: dict[int, MessageLoss] = {}
        # State of the files checked so far, which are the oldest ones.
        self._newest_ms = 0
        self._checked_end = 0

    def of(self, physical_offset: int) -> MessageLoss:
        """Return when the byte at a physical offset can be deleted. Raises OSError."""
        start = physical_offset - physical_offset % self._log.file_bytes
        if start not in self._losses:
            # Files before it were checked by an earlier call, or are deleted.
            for file in self._log.files:
                if self._checked_end <= file.start <= start:
                    self._add_file(file)
        return self._losses.get(start) or self._loss(0, self._log.min_offset)

    def _add_file(self, file: CommitLogFile) -> None:
        newest_ms = min(self._newest_in(file), self._now_ms)
        if file is self._log.files[-1]:
            # It will be written to at least once more (a blank) before it is not the last one.
            newest_ms = max(newest_ms, self._now_ms)
        self._newest_ms = max(self._newest_ms, newest_ms)
        self._checked_end = file.start + self._log.file_bytes
        self._losses[file.start] = self._loss(self._newest_ms, file.start)

    def _loss(self, newest_ms: int, start: int) -> MessageLoss:
        return earliest_loss(
            newest_ms,
            self._usage,
            self._rules,
            before_bytes=start - self._log.min_offset,
            bytes_per_second=self._bytes_per_second,
            now_ms=self._now_ms,
            local_hour=self._clock.local_hour,
        )


class Cleaner:
    """The clean passes of an open store; owned by the store's thread.

    Attributes:
        last_decision: decision of the newest pass; None before the first.
        refusal_reason: why clients' messages are refused; empty while they are accepted.
        full_reason: why all appends are refused for lack of space; empty while they are accepted.
        held_end: physical offset up to which the newest pass would have deleted if other copies did
            not need the files; 0 if they need none of them.
        readings: unread messages of consumer groups, by the end of the file, for the next pass;
            None without an offset service: in a store without a broker, and in a follower.
        growth: growth rate of the log.
        deletions: reasons why parts of the log were deleted.
        deleted_files: number of deleted files by reason, since the start.
        deleted_unread: number of deleted messages that a known group had not read.
    """

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        clock: WallClock,
        log: CommitLog,
        runs: TimeRuns,
        queues: ConsumeQueues,
        dropped: DroppedTopics,
        syncer: Syncer,
        compaction: Compaction,
        *,
        by_quorum: bool = False,
        keeps_all: bool = False,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._log = log
        self._runs = runs
        self._queues = queues
        self._dropped = dropped
        self._syncer = syncer
        self._compaction = compaction
        self._by_quorum = by_quorum
        self._to_sweep: deque[QueueKey] = deque()
        # Released files that are not in a request to the Syncer yet.
        self._swept: list[Path] = []
        self.last_decision: RetentionDecision | None = None
        self.refusal_reason = ""
        self.full_reason = ""
        self.held_end = 0
        self.readings: dict[int, FileReading] | None = None
        self.growth = LogGrowth()
        self.deletions = DeletedRanges(settings.root, disk)
        self.deleted_files: Counter[DeletionReason] = Counter()
        self.deleted_unread = 0
        self._held: Hold | None = None
        self._kept = ""
        # Whether the newest pass has deleted a file.
        self._has_deleted = False
        self._rules = settings.retention_rules(keeps_all=keeps_all)

    def use_settings(self, settings: StoreSettings, *, keeps_all: bool) -> bool:
        """Use other retention rules, from the next pass on; `keeps_all` as in the class.

        Returns:
            Whether files expire earlier than before.
        """
        before, self._settings = self._rules, settings
        self._rules = settings.retention_rules(keeps_all=keeps_all)
        if self._rules.keeps_all:
            return False
        return before.keeps_all or self._rules.reserved_ms < before.reserved_ms

    @property
    def keeps_all_files(self) -> bool:
        """Whether no file is ever deleted; see `RetentionRules.keeps_all`."""
        return self._rules.keeps_all

    def loss_forecast(self, now_ms: int) -> ExpiryForecast:
        """Return a forecast for the present state. Raises OSError."""
        usage = self._disk.usage(self._settings.root)
        self.growth.record(now_ms, self._log.end)
        rate = self.growth.bytes_per_second
        return ExpiryForecast(
            self._log, self._newest_in, self._clock, usage, self._rules, rate, now_ms
        )

    def pressure_ms(self, now_ms: int) -> int | None:
        """When the disk will be under pressure at the log's growth rate, epoch milliseconds.

        Under the policy `refuse` this is the mark above which messages are refused, under `delete`
        the mark above which the oldest files are deleted.

        Returns:
            None: not at this rate, or the log does not grow.

        Raises:
            OSError: the disk's fill cannot be read.
        """
        self.growth.record(now_ms, self._log.end)
        seconds = self._rules.seconds_to_pressure(
            self._disk.usage(self._settings.root), self.growth.bytes_per_second
        )
        return None if seconds is None else now_ms + int(seconds * 1000)

    def clean_if_possible(self, now_ms: int, proven_end: int, retain_from: int) -> None:
        """Run a pass. If the disk's fill cannot be read, refuse all appends until it can."""
        try:
            self.clean(now_ms, proven_end, retain_from)
        except OSError as failure:
            self.full_reason = (
                f"cannot read the fill of the disk of {self._settings.root}: {failure}"
            )

    def clean(self, now_ms: int, proven_end: int, retain_from: int) -> RetentionDecision:
        """Read the disk's fill, delete files, and decide whether appends are accepted.

        Args:
            now_ms: epoch milliseconds.
            proven_end: the log is durable up to here, and a recovery point is at or after it;
                files that end after it stay.
            retain_from: other copies need the log from here on; files that end after it stay.

        Raises:
            OSError: the disk's fill cannot be read.
        """
        self._syncer.retry_removals()
        self._discard_marks()
        self.deletions.write_if_needed()
        self.growth.record(now_ms, self._log.end)
        # Store times may be ahead after a clock correction, which would expire files too early.
        now_ms = min(now_ms, self._clock.now_ms())
        facts = self._facts(now_ms, retain_from)
        local_hour = self._clock.local_hour(now_ms)
        decision = decide(facts, self._rules, now_ms=now_ms, local_hour=local_hour)
        self.last_decision = decision
        hold = self._compaction.hold() if decision.deletions or not decision.writable else None
        due = [start + self._log.file_bytes for start in decision.delete]
        held = [end for end in due if retain_from < end <= proven_end]
        self.held_end = max(held, default=0)
        may_go = min(proven_end, retain_from)
        self._log_hold(hold if self._delete(decision, may_go, hold, now_ms) else None)
        self._refuse(decision, hold)
        if decision.deletions:
            self._to_sweep = deque(queue.key for queue in self._queues)
        if self.readings is not None:
            # Progress can be reset, and new groups appear: an answer is valid for one pass.
            self.readings.clear()
        return decision

    @property
    def wants_pass(self) -> bool:
        """Whether another pass is due as soon as the bytes of deleted files are free."""
        decision = self.last_decision
        if decision is None or not decision.is_pressed or self._syncer.removal_failure is not None:
            return False
        return self._has_deleted or self._is_freeing

    def may_reserve(self) -> bool:
        """Return whether the disk has room for another CommitLog file; if not, refuse messages.

        Called when the last file is half full. Otherwise a fast producer could fill the disk and
        its reserve between two passes.
        """
        try:
            usage = self._disk.usage(self._settings.root)
        except OSError:
            return True
        refusal, _ = refusals(usage, self._log.file_bytes, self._rules)
        if refusal and not self.refusal_reason:
            self.refusal_reason = f"the disk of {self._settings.root} {refusal}"
        return not refusal

    def _facts(self, now_ms: int, retain_from: int) -> LogFacts:
        rules = self._rules
        # One more than a pass deletes, because `decide` never deletes the last one.
        count = len(self._log.files) if rules.waits_for else rules.files_per_pass_max + 1
        files = [LogFileAge(file.start, self._newest_in(file)) for file in self._log.files[:count]]
        if any(file.newest_ms > now_ms for file in files):
            files = corrected_ages(self.file_ages(), now_ms)[: len(files)]
        expired = takewhile(lambda file: now_ms >= file.newest_ms + rules.reserved_ms, files[:-1])
        last_start = max((file.start for file in expired), default=-self._log.file_bytes)
        follows = self._by_quorum and self.readings is None
        usage = self._disk.usage(self._settings.root)
        # Queue files are deleted with the next recovery point, up to a second later. Count them as
        # free; otherwise more of the log than necessary would be deleted.
        freed = min(len(self._swept) * self._queues.file_bytes, usage.used_bytes)
        return LogFacts(
            files,
            DiskUsage(usage.used_bytes - freed, usage.usable_bytes + freed),
            expired_end=last_start + self._log.file_bytes,
            next_file_bytes=self._log.file_bytes if self._log.wants_file() else 0,
            readings=self.readings,
            deleted_elsewhere_end=retain_from if follows else 0,
            is_freeing=self._is_freeing,
        )

    @property
    def _is_freeing(self) -> bool:
        return self._syncer.removals_pending or bool(self._to_sweep)

    def _refuse(self, decision: RetentionDecision, hold: Hold | None) -> None:
        """Set the reasons for which appends are refused, and log why the oldest file is kept."""
        root = self._settings.root
        self.full_reason = f"the disk of {root} {decision.full}" if decision.full else ""
        if decision.wanted_ends and decision.refusal and self.refusal_reason:
            # Until the groups have answered about the oldest file, keep the former reason.
            return
        self.refusal_reason = f"the disk of {root} {decision.refusal}" if decision.refusal else ""
        if hold is not None and decision.refusal:
            self.refusal_reason += f"; {_why_held(hold)}"
        if decision.wanted_ends or decision.deletions:
            return
        kept = "" if decision.kept is None else str(decision.kept)
        if bool(kept) != bool(self._kept):
            if kept:
                log.warning(
                    "the disk of %s is %d %% full, but the oldest file of the log is kept: %s",
                    root,
                    decision.used_percent,
                    kept,
                )
            else:
                log.info("the oldest file of the log is no longer kept under disk pressure")
        self._kept = kept

    def _delete(
        self, decision: RetentionDecision, proven_end: int, hold: Hold | None, now_ms: int
    ) -> bool:
        """Delete files; return whether the hold kept one of them."""
        self._has_deleted = False
        for deletion in decision.deletions:
            file_end = deletion.start + self._log.file_bytes
            if file_end > proven_end:
                break
            if hold is not None and file_end > hold.physical_offset:
                return True
            try:
                self._compaction.overtake(file_end)
            except OSError as failure:
                log.warning("keeping CommitLog files, cannot record their deletion: %s", failure)
                break
            self.deletions.record(deletion.start, file_end, deletion.reason, now_ms)
            self._runs.remove(deletion.start)
            self._syncer.request_removal(self._log.remove_oldest())
            self._has_deleted = True
            self.deleted_files[deletion.reason] += 1
            self.deleted_unread += deletion.reading.messages
            self._log_deletion(deletion, decision.used_percent)
        return False

    def _log_deletion(self, deletion: FileDeletion, used_percent: int) -> None:
        reading, is_early = deletion.reading, deletion.reason is not DeletionReason.EXPIRED
        loses = bool(reading.messages or reading.pending or (reading.unknown_because and is_early))
        why = {
            DeletionReason.EXPIRED: "it has expired",
            DeletionReason.DISK_PRESSURE: f"disk pressure, the disk is {used_percent} % full",
            DeletionReason.WAIT_LIMIT: (
                "it has expired, and more than retention_wait_bytes_max "
                f"({self._rules.wait_bytes_max}) bytes wait for groups"
            ),
        }[deletion.reason]
        log.log(
            logging.WARNING if loses else logging.INFO,
            "CommitLog file %020d is deleted: %s; %s",
            deletion.start,
            why,
            "groups were not asked" if reading.unknown_because and not is_early else reading,
        )

    def _log_hold(self, hold: Hold | None) -> None:
        """Log once when the hold begins to keep files, keeps another message, or ends."""
        if hold == self._held:
            return
        if hold is not None:
            log.warning("keeping CommitLog files that are due for deletion: %s", _why_held(hold))
        else:
            log.info("compaction no longer keeps CommitLog files that are due for deletion")
        self._held = hold

    def file_ages(self) -> list[LogFileAge]:
        """Return the age of every CommitLog file, oldest first."""
        return [LogFileAge(file.start, self._newest_in(file)) for file in self._log.files]

    def _newest_in(self, file: CommitLogFile) -> int:
        """Return the store time of a file's newest message, or else the file's modification time.
        Raises OSError."""
        newest_ms = self._runs.newest_in(file.start)
        return self._disk.facts(file.path).modified_ms if newest_ms is None else newest_ms

    def _discard_marks(self) -> None:
        """Discard marks of deleted topics that refer only to deleted files.

        Not while a crash could undo a deletion. If a full disk refuses the write, the marks stay,
        which is harmless, and the pass goes on to free space.
        """
        if not self._syncer.removals_pending:
            with contextlib.suppress(OSError):
                self._dropped.fit_to_log(self._log.min_offset, self._log.end)

    @property
    def is_sweeping(self) -> bool:
        """Whether `sweep` or `pop_swept` has work."""
        return bool(self._to_sweep or self._swept)

    @property
    def has_swept(self) -> bool:
        """Whether files wait for `pop_swept`."""
        return bool(self._swept)

    def pop_swept(self) -> list[Path]:
        """Return and reset the released queue files, which the next recovery point deletes."""
        swept, self._swept = self._swept, []
        return swept

    def withdraw_swept(self, directory: Path) -> None:
        """Discard files below a directory that is about to be renamed with them."""
        self._swept = [path for path in self._swept if directory not in path.parents]

    def sweep(self) -> None:
        """Release leading files of some queues whose records are all deleted."""
        for _ in range(min(len(self._to_sweep), QUEUES_SWEPT_PER_TICK_MAX)):
            queue = self._queues.find(*self._to_sweep.popleft())
            if queue is not None:
                self._swept += self._queues.release_leading_files(queue, self._log.min_offset)


def _why_held(hold: Hold) -> str:
    return (
        f"the message of {hold.topic} at {hold.physical_offset} is not compacted yet, so the "
        "log is kept from there on; run a compaction, or change the topic's cleanup.policy"
    )
