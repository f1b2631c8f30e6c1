"""Removal of old backups, and of files that no backup needs.

Later backups refer to parts of logs that earlier ones have copied. So a part is removed only if no
remaining backup has it, also no interrupted one, whose parts the next backup uses.

A backup that is being made may use the parts of all backups that were complete at its beginning. A
directory is locked by it. In an object store, it stores `interrupted.json` before it looks for
other backups. The removal deletes manifests, then looks for new backups, and deletes parts only if
it finds no new backup. In each order of these steps, no backup refers to a deleted part.

A backup that is removed as interrupted may still run. The removal stores `removed`, then looks
whether the backup is complete. The backup stores its manifest, then looks for `removed` and for its
files, and fails if it has been removed.
"""

import calendar
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rockoon.backup.destination import BackupError, Destination
from rockoon.backup.manifest import INTERRUPTED, LOGS, MANIFEST, REMOVED, Backups
from rockoon_core.clock import wall_clock_ms

DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Pruning:
    """Backups to remove, and the result.

    Attributes:
        kept, removed: names of backups, the oldest first.
        interrupted: names of interrupted backups that are removed too.
        files, bytes: that only these backups, or no backup, have.
        left: names of backups that began, or became complete, during the removal. If there are
            some, all files of removed backups but their manifests are left to the next removal.
    """

    kept: Sequence[str]
    removed: Sequence[str]
    interrupted: Sequence[str]
    files: int
    bytes: int
    left: Sequence[str] = ()


def begun_ms(backup: str) -> int:
    """Return when a backup began, epoch milliseconds, from its name."""
    seconds = calendar.timegm(time.strptime(backup[:15], "%Y%m%dT%H%M%S"))
    return seconds * 1000 + int(backup[15:18])


def chosen(complete: Sequence[str], keep: int, keep_days: float, now_ms: int) -> list[str]:
    """Return the backups to keep: the newest ones, and those of the last days; at least one.
    `complete`: names of backups, the oldest first."""
    newest = complete[-max(1, keep) :]
    oldest_ms = now_ms - keep_days * DAY_MS
    return [each for each in complete if each in newest or begun_ms(each) >= oldest_ms]


def prune(
    destination: Destination,
    *,
    keep: int = 0,
    keep_days: float = 0.0,
    with_interrupted: bool = False,
    plan: bool = False,
) -> Pruning:
    """Remove old backups.

    Args:
        keep: number of the newest backups to keep.
        keep_days: backups that began within these days are kept too.
        with_interrupted: remove interrupted backups too. They must not be running any more.
        plan: remove nothing.

    Raises:
        BackupError: a manifest that remains is damaged; another backup is or may be running; the
            destination refuses a call.
    """
    with destination.locked() as is_alone:
        pruner = Pruner(destination, is_alone=is_alone, with_interrupted=with_interrupted)
        found = pruner.plan(keep, keep_days)
        return found if plan else pruner.remove(found)


class Pruner:
    """Removes old backups; see `prune`."""

    def __init__(self, destination: Destination, *, is_alone: bool, with_interrupted: bool) -> None:
        self._destination = destination
        self._is_alone = is_alone
        self._with_interrupted = with_interrupted
        self._known: set[str] = set()
        self._useless: dict[str, int] = {}

    def plan(self, keep: int, keep_days: float) -> Pruning:
        """Choose the backups, and find the files that no other backup needs."""
        files = self._destination.names()
        backups = Backups(self._destination, files)
        self._known = {*backups.complete, *backups.interrupted}
        kept = chosen(backups.complete, keep, keep_days, wall_clock_ms())
        unfinished = [each for each in backups.interrupted if f"{each}/{INTERRUPTED}" in files]
        if unfinished and not self._is_alone and not self._with_interrupted:
            raise BackupError(
                f"backup {unfinished[0]} in {self._destination.shown} is running or was "
                "interrupted: wait until it is complete. If it has ended, remove it too: "
                "--interrupted"
            )
        continued = [] if self._with_interrupted else unfinished
        used: set[str] = set()
        for each in kept:
            used.update(file.name for file in backups.manifest(each).files())
        for each in continued:
            for parts in backups.interrupted_parts(each).values():
                used.update(part.file.name for part in parts)
        gone = self._known.difference(kept, continued)
        self._useless = {
            name: size
            for name, size in files.items()
            if name not in used and name.partition("/")[0] in (LOGS, *gone)
        }
        return Pruning(
            kept,
            removed=[each for each in backups.complete if each in gone],
            interrupted=[each for each in backups.interrupted if each in gone],
            files=len(self._useless),
            bytes=sum(self._useless.values()),
        )

    def remove(self, found: Pruning) -> Pruning:
        """Remove what `plan` has found. If it is interrupted, the next removal continues."""
        for backup in found.removed:
            self._destination.remove(f"{backup}/{MANIFEST}")
        marks = [] if self._is_alone else [f"{each}/{REMOVED}" for each in found.interrupted]
        for mark in marks:
            self._destination.write(mark, b"")
        for backup in found.interrupted:
            self._destination.remove(f"{backup}/{INTERRUPTED}")
        if not self._is_alone:
            backups = Backups(self._destination, self._destination.names())
            new = {*backups.complete, *backups.interrupted} - self._known
            completed = set(backups.complete).intersection(found.interrupted)
            for each in completed:
                self._destination.remove(f"{each}/{REMOVED}")
            if new or completed:
                removed = [each for each in found.interrupted if each not in completed]
                left = sorted(new | completed)
                return replace(found, interrupted=removed, files=0, bytes=0, left=left)
        for name in (*self._useless, *marks):
            self._destination.remove(name)
        return found
