"""Carries out what `retention` decides: files go, queues follow, appends stop and go on."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rockoon_broker.store.clock import WallClock
from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.hold import Hold
from rockoon_broker.store.log.commit_log import CommitLog, LogFile
from rockoon_broker.store.log.syncer import Syncer
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.retention.expiry import Loss, earliest_loss
from rockoon_broker.store.retention.retention import (
    LogFileAge,
    RetentionDecision,
    RetentionRules,
    come_back,
    decide,
    parse_hours,
)
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk, DiskUsage

log = logging.getLogger(__name__)

# Queues whose leading files are looked at in one tick, so that many queues stall nobody.
QUEUES_SWEPT_PER_TICK_MAX = 256


class ExpiryForecast:
    """When messages can be deleted, as the disk is at one moment; for one request, then void.

    The disk's fill is looked at once, and each CommitLog file at most once.

    Args:
        log: the open log; it may lose files while the forecast is asked.
        newest_in: when the newest message of a file was stored, epoch milliseconds.
        clock: tells the hour.
        usage: fill of the partition.
        rules: of retention.
        now_ms: epoch milliseconds.
    """

    def __init__(
        self,
        log: CommitLog,
        newest_in: Callable[[LogFile], int],
        clock: WallClock,
        usage: DiskUsage,
        rules: RetentionRules,
        now_ms: int,
    ) -> None:
        self._log = log
        self._newest_in = newest_in
        self._clock = clock
        self._rules = rules
        self._now_ms = now_ms
        self._usage = usage
        self._losses: dict[int, Loss] = {}
        # Of the files looked at so far, which are the oldest ones.
        self._newest_ms = 0
        self._looked_at_end = 0

    def of(self, physical_offset: int) -> Loss:
        """When the byte at a physical offset can go. Raises OSError."""
        start = physical_offset - physical_offset % self._log.file_bytes
        if start not in self._losses:
            # Files before it were looked at with an earlier question, or are gone.
            for file in self._log.files:
                if self._looked_at_end <= file.start <= start:
                    self._look_at(file)
        return self._losses.get(start) or self._loss(0)

    def _look_at(self, file: LogFile) -> None:
        newest_ms = min(self._newest_in(file), self._now_ms)
        if file is self._log.files[-1]:
            # It is written to once more, if only a blank, before another one is the last.
            newest_ms = max(newest_ms, self._now_ms)
        self._newest_ms = max(self._newest_ms, newest_ms)
        self._looked_at_end = file.start + self._log.file_bytes
        self._losses[file.start] = self._loss(self._newest_ms)

    def _loss(self, newest_ms: int) -> Loss:
        return earliest_loss(
            newest_ms,
            self._usage,
            self._rules,
            now_ms=self._now_ms,
            local_hour=self._clock.local_hour,
        )


class Cleaner:
    """The clean passes of an open store; owned by the thread that owns the store.

    Attributes:
        last_decision: of the newest pass, None before the first.
        not_writable_reason: why appends are refused for lack of space; empty while they are not.
        held_end: physical offset up to which the newest pass would have deleted, had other copies
            not needed it; 0 where they did not.
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
        self._to_sweep: deque[QueueKey] = deque()
        # Given up, and not named to the Syncer yet.
        self._swept: list[Path] = []
        self.last_decision: RetentionDecision | None = None
        self.not_writable_reason = ""
        self.held_end = 0
        self._held: Hold | None = None
        self._rules = RetentionRules(
            reserved_ms=int(settings.reserved_hours * 3_600_000),
            delete_hours=parse_hours(settings.delete_when),
            used_percent_max=settings.disk_used_percent_max,
            forced_percent=settings.disk_forced_percent,
            full_percent=settings.disk_full_percent,
            files_per_pass_max=settings.files_per_pass_max,
        )

    def loss_forecast(self, now_ms: int) -> ExpiryForecast:
        """When messages can go, as things are now. Raises OSError."""
        usage = self._disk.usage(self._settings.root)
        return ExpiryForecast(self._log, self._newest_in, self._clock, usage, self._rules, now_ms)

    def clean_if_possible(self, now_ms: int, proven_end: int, retain_from: int) -> None:
        """Clean; a disk that cannot even be looked at takes no messages until it can be again."""
        try:
            self.clean(now_ms, proven_end, retain_from)
        except OSError as failure:
            self.not_writable_reason = (
                f"the disk of {self._settings.root} cannot be looked at: {failure}"
            )

    def clean(self, now_ms: int, proven_end: int, retain_from: int) -> RetentionDecision:
        """Look at the disk, delete what has to go, and decide whether appends are accepted.

        Args:
            now_ms: epoch milliseconds.
            proven_end: the log is durable up to here and a recovery point lies here or behind;
                files that reach further stay.
            retain_from: from here on other copies need the log; likewise.

        Raises:
            OSError: the disk cannot be looked at.
        """
        self._syncer.retry_removals()
        self._forget_marks()
        # Store times may still follow a clock that was ahead, and bring every file's end early.
        now_ms = min(now_ms, self._clock.now_ms())
        # One more than may go: the last of those given is never deleted.
        files = [
            LogFileAge(file.start, self._newest_in(file))
            for file in self._log.files[: self._rules.files_per_pass_max + 1]
        ]
        if any(file.newest_ms > now_ms for file in files):
            files = come_back(self.file_ages(), now_ms)[: len(files)]
        decision = decide(
            files,
            self._disk.usage(self._settings.root),
            self._rules,
            now_ms=now_ms,
            local_hour=self._clock.local_hour(now_ms),
        )
        self.last_decision = decision
        self.not_writable_reason = ""
        if not decision.writable:
            self.not_writable_reason = (
                f"the disk of {self._settings.root} is {decision.used_percent} % full, "
                f"appends stop above {self._rules.full_percent} %"
            )
        hold = self._compaction.hold() if decision.delete or not decision.writable else None
        due = [start + self._log.file_bytes for start in decision.delete]
        held = [end for end in due if retain_from < end <= proven_end]
        self.held_end = max(held, default=0)
        may_go = min(proven_end, retain_from)
        self._tell_hold(hold if self._delete(decision, may_go, hold) else None)
        if hold is not None and not decision.writable:
            self.not_writable_reason += f"; {_why_held(hold)}"
        if decision.delete:
            self._to_sweep = deque(queue.key for queue in self._queues)
        return decision

    def _delete(self, decision: RetentionDecision, proven_end: int, hold: Hold | None) -> bool:
        """Give up the files that have to go; returns whether one stays because of the hold."""
        for _ in decision.delete:
            file_end = self._log.files[0].start + self._log.file_bytes
            if file_end > proven_end:
                break
            if hold is not None and file_end > hold.physical_offset:
                return True
            try:
                self._compaction.overtake(file_end)
            except OSError as failure:
                log.warning("files of the CommitLog stay: that they go is not noted: %s", failure)
                break
            self._runs.forget(self._log.files[0].start)
            self._syncer.request_removal(self._log.remove_oldest())
        return False

    def _tell_hold(self, hold: Hold | None) -> None:
        """Log once when files begin to stay, when it is for another message, and when they go."""
        if hold == self._held:
            return
        if hold is not None:
            log.warning("files of the CommitLog stay although they should go: %s", _why_held(hold))
        else:
            log.info("no files of the CommitLog stay for compaction any more")
        self._held = hold

    def file_ages(self) -> list[LogFileAge]:
        """Every CommitLog file as retention sees it, oldest first."""
        return [LogFileAge(file.start, self._newest_in(file)) for file in self._log.files]

    def _newest_in(self, file: LogFile) -> int:
        """When the newest message of a file was stored; where it cannot be read, when the file was
        modified. Raises OSError."""
        newest_ms = self._runs.newest_in(file.start)
        return self._disk.facts(file.path).modified_ms if newest_ms is None else newest_ms

    def _forget_marks(self) -> None:
        """Forget the marks of deleted topics that are about files long gone.

        Not those of files whose deletion a crash could still undo. A disk that takes no new file
        keeps the marks, which do no harm, and must not end the pass that makes room on it.
        """
        if not self._syncer.removals_pending:
            with contextlib.suppress(OSError):
                self._dropped.fit_to_log(self._log.min_offset, self._log.end)

    @property
    def is_sweeping(self) -> bool:
        """Whether `sweep` or `take_swept` has something to do."""
        return bool(self._to_sweep or self._swept)

    @property
    def has_swept(self) -> bool:
        """Whether files wait for `take_swept`."""
        return bool(self._swept)

    def take_swept(self) -> list[Path]:
        """Queues' files that were given up, for the next recovery point to be deleted with."""
        swept, self._swept = self._swept, []
        return swept

    def withdraw_swept(self, directory: Path) -> None:
        """Forget what is below a directory that is about to be moved: it goes with it."""
        self._swept = [path for path in self._swept if directory not in path.parents]

    def sweep(self) -> None:
        """Give up leading files of some queues whose records are gone."""
        for _ in range(min(len(self._to_sweep), QUEUES_SWEPT_PER_TICK_MAX)):
            queue = self._queues.find(*self._to_sweep.popleft())
            if queue is not None:
                self._swept += self._queues.release_leading_files(queue, self._log.min_offset)


def _why_held(hold: Hold) -> str:
    return (
        f"the message of {hold.topic} at {hold.physical_offset} is not compacted yet, and the "
        "log is kept from there on: compact, or change the topic's cleanup.policy"
    )
