"""Reasons of deletions: why parts of the log were deleted before they expired.

`config/deletions.json` holds ranges of physical offsets with the reason and the time of their
deletion. Without it, messages deleted because of a full disk would be reported as expired. Only
reasons other than `expired` are written, so that most brokers do not have this file.
"""

import json
import logging
from pathlib import Path
from typing import NamedTuple

from rockoon_broker.store.retention.retention import DeletionReason
from rockoon_core.disk import Disk

log = logging.getLogger(__name__)

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

    Args:
        root: the store directory.
        disk: the file layer.
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
