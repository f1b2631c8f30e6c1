"""Expiry forecast: the earliest time at which retention can delete an unread message. Pure.

A file can be deleted because of its age, or, with the disk pressure policy `delete`, because the
log fills the disk and deletes its oldest files at the rate of its growth. The forecast is the
earlier of the two. The actual deletion is later, because passes run at intervals and keep files
that no recovery point covers. It is earlier if the log grows faster than before or another program
fills the disk.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rockoon_broker.store.retention.retention import RetentionRules
from rockoon_core.disk import DiskUsage

# In every time zone, hours begin at a quarter of an hour of UTC.
QUARTER_MS = 15 * 60_000
# A change to summer time can skip an hour on one day, but not on two.
QUARTERS_SEARCHED_MAX = 3 * 24 * 4


class LossCause(Enum):
    """Why a message can be deleted at the forecast time."""

    EXPIRED_AT_HOUR = "its file expires by age, and files go in the hours set for it"
    EXPIRED = "its file expires by age, and on a disk this full files go at any hour"
    DISK_FULL = "the disk is so full that the oldest files go whatever their age"
    DISK_FILLS = "at the log's growth rate the disk is full before its file expires"


@dataclass(frozen=True, slots=True)
class MessageLoss:
    """The earliest possible deletion of a message."""

    at_ms: int
    """Epoch milliseconds; never before the time of the request."""
    cause: LossCause


NEVER = MessageLoss(1 << 53, LossCause.EXPIRED)
"""For a store whose files retention keeps: later than any real expiry."""


class LogGrowth:
    """Growth rate of the log, from samples of its end.

    The rate is the larger one of a short and a long period. So it includes a producer that has just
    started as well as one that pauses for a moment.
    """

    LONG_MS = 600_000
    SHORT_MS = 20_000
    # Minimum distance of samples, since many callers may request a forecast.
    STEP_MS = 1000

    def __init__(self) -> None:
        # (epoch milliseconds, physical offset), oldest first.
        self._samples: deque[tuple[int, int]] = deque()

    def record(self, now_ms: int, log_end: int) -> None:
        """Add a sample of the log's end."""
        if self._samples and now_ms < self._samples[-1][0]:
            if self._samples[-1][0] - now_ms < self.STEP_MS:
                # A caller that read the clock earlier but calls later.
                return
            # The clock was set back: earlier samples are not comparable.
            self._samples.clear()
        if len(self._samples) > 1 and now_ms - self._samples[-2][0] < self.STEP_MS:
            self._samples.pop()
        self._samples.append((now_ms, log_end))
        while now_ms - self._samples[0][0] > self.LONG_MS:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> float:
        """Growth rate; 0 until there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        now_ms = self._samples[-1][0]
        recent = next(each for each in self._samples if now_ms - each[0] <= self.SHORT_MS)
        return max(self._rate_since(self._samples[0]), self._rate_since(recent))

    def _rate_since(self, sample: tuple[int, int]) -> float:
        elapsed_ms = self._samples[-1][0] - sample[0]
        return (self._samples[-1][1] - sample[1]) * 1000 / elapsed_ms if elapsed_ms else 0.0


def earliest_loss(
    newest_ms: int,
    usage: DiskUsage,
    rules: RetentionRules,
    *,
    before_bytes: int = 0,
    bytes_per_second: float = 0.0,
    now_ms: int,
    local_hour: Callable[[int], int],
) -> MessageLoss:
    """Return when a CommitLog file can be deleted at the earliest.

    Args:
        newest_ms: newest store time in the file and all older ones, because an unexpired file
            keeps all later ones; for the last file `now_ms`, because it is still
            written to.
        before_bytes: bytes of the log before the file, which are deleted first.
        now_ms: epoch milliseconds.
        local_hour: hour of the day, 0 to 23, at a time in epoch milliseconds.
    """
    if rules.keeps_all:
        return NEVER
    by_age = _by_age(newest_ms, usage, rules, now_ms, local_hour)
    if not rules.deletes_unread:
        # Under pressure the broker refuses new messages and keeps unread ones.
        return by_age
    seconds = rules.seconds_to_pressure(usage, bytes_per_second)
    if seconds is None:
        return by_age
    if before_bytes:
        seconds += before_bytes / bytes_per_second if bytes_per_second else 0.0
    at_ms = now_ms + int(seconds * 1000)
    if at_ms > by_age.at_ms:
        return by_age
    is_full = usage.used_percent > rules.forced_percent
    return MessageLoss(at_ms, LossCause.DISK_FULL if is_full else LossCause.DISK_FILLS)


def _by_age(
    newest_ms: int,
    usage: DiskUsage,
    rules: RetentionRules,
    now_ms: int,
    local_hour: Callable[[int], int],
) -> MessageLoss:
    """Return when a file can be deleted because of its age."""
    percent = usage.used_percent
    expires_ms = max(newest_ms + rules.reserved_ms, now_ms)
    if percent > rules.used_percent_max:
        return MessageLoss(expires_ms, LossCause.EXPIRED)
    at_ms = expires_ms
    for _ in range(QUARTERS_SEARCHED_MAX):
        if local_hour(at_ms) in rules.delete_hours:
            break
        at_ms += QUARTER_MS - at_ms % QUARTER_MS
    return MessageLoss(at_ms, LossCause.EXPIRED_AT_HOUR)
