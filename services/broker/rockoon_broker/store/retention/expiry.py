"""Expiry forecast: when retention can delete a message, at the earliest. Pure.

A prediction, and so a bound: retention looks at the disk now and then, deletes some files in a
pass, and keeps what no recovery point covers. All of that only makes it later. A disk that fills up
makes it sooner; a prediction holds as long as the disk stays below the marks it is below now.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rockoon_broker.store.retention.retention import RetentionRules
from rockoon_core.disk import DiskUsage

# Every time zone's hours begin at a whole quarter of an hour of UTC.
QUARTER_MS = 15 * 60_000
# A change of the clocks can leave out an hour of one day, but not of two.
QUARTERS_SEARCHED_MAX = 3 * 24 * 4


class LossCause(Enum):
    """Why a message can go, and so when."""

    EXPIRED_AT_HOUR = "its file expires by age, and files go in the hours set for it"
    EXPIRED = "its file expires by age, and on a disk this full files go at any hour"
    DISK_FULL = "the disk is so full that the oldest files go whatever their age"


@dataclass(frozen=True, slots=True)
class Loss:
    """The earliest loss of a message."""

    at_ms: int
    """Epoch milliseconds; never before the time the question was asked."""
    cause: LossCause


def earliest_loss(
    newest_ms: int,
    usage: DiskUsage,
    rules: RetentionRules,
    *,
    now_ms: int,
    local_hour: Callable[[int], int],
) -> Loss:
    """When a CommitLog file can be deleted.

    Args:
        newest_ms: of the newest message of the file and all older ones, for a file that has not
            expired keeps those behind it; for the last file `now_ms`, as it is written to before
            another one is the last.
        usage: the partition's fill now.
        rules: the limits.
        now_ms: epoch milliseconds.
        local_hour: hour of the day, 0 to 23, at a time in epoch milliseconds.
    """
    percent = usage.used_percent
    if percent > rules.forced_percent:
        return Loss(now_ms, LossCause.DISK_FULL)
    expires_ms = max(newest_ms + rules.reserved_ms, now_ms)
    if percent > rules.used_percent_max:
        return Loss(expires_ms, LossCause.EXPIRED)
    at_ms = expires_ms
    for _ in range(QUARTERS_SEARCHED_MAX):
        if local_hour(at_ms) in rules.delete_hours:
            break
        at_ms += QUARTER_MS - at_ms % QUARTER_MS
    return Loss(at_ms, LossCause.EXPIRED_AT_HOUR)
