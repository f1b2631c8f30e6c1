"""Outline of a journal (positions of its epochs and files), and replay of its frames. Pure.

A file starts with the state before its first frame, and changes may come between the parts of the
state. A replica that has the ledger already skips the state. A replica that starts with this file
applies the state first, and then the changes between its parts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rockoon_core.replication_rules import Boundary
from rockoon_offset.journal.frames import FrameKind, LogFrame, decode_epochs, joined, unpack
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import decode, level_of


class Replay:
    """Builds a ledger: applies frames in order.

    Attributes:
        ledger: the ledger; a new object if a state starts again.
        is_whole: the ledger contains all frames so far.
        level: feature level of the services that can read all records so far.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.is_whole = False
        self.level = 0
        self._changes: list[bytes] = []

    def apply(self, frame: LogFrame) -> None:
        """Apply one frame to the ledger. Raises ValueError, TypeError, KeyError: a record is
        invalid."""
        match frame.kind:
            case FrameKind.EPOCH:
                epochs = decode_epochs(frame.payload)
                if not self.is_whole and epochs.is_first:
                    # The former leader ended before it had written its whole state.
                    self.ledger = Ledger()
                    self._changes.clear()
                    self.is_whole = epochs.is_empty
            case FrameKind.STATE:
                if not self.is_whole:
                    self._apply(frame.payload)
            case FrameKind.DAMAGED_STATE:
                if not self.is_whole:
                    raise ValueError("a frame of the state fails its checksum")
            case FrameKind.STATE_END:
                if not self.is_whole:
                    self.is_whole = True
                    for payload in self._changes:
                        self._apply(payload)
                    self._changes.clear()
            case FrameKind.RECORDS:
                if self.is_whole:
                    self._apply(frame.payload)
                else:
                    self._changes.append(frame.payload)

    def _apply(self, payload: bytes) -> None:
        for each in unpack(payload):
            record = decode(each)
            self.level = self.level or level_of(record)
            self.ledger.apply(record)


class JournalGeneration(NamedTuple):
    """A file of the journal, which begins with the whole state of the ledger.

    Attributes:
        begin: position of its first frame.
        whole_at: end position of its initial state; None while the state is incomplete.
        is_damaged: a frame of the state is damaged, so the state never is whole.
    """

    begin: int
    whole_at: int | None
    is_damaged: bool = False


class Outline:
    """Positions of the epochs and files of one journal.

    Attributes:
        epochs: (epoch, first position), ascending; the oldest may be missing.
        generations: files with frames.
    """

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.generations: list[JournalGeneration] = []

    def boundaries(self, end: int) -> list[Boundary]:
        """Return the epochs of the log, which ends at `end`."""
        following = [*self.epochs[1:], (0, end)]
        return [
            Boundary(epoch, first, last)
            for (epoch, first), (_, last) in zip(self.epochs, following, strict=False)
        ]

    def check(self, found: Sequence[LogFrame]) -> None:
        """Raise ValueError if these frames cannot follow the known frames of the log."""
        last, is_empty = self.epochs[-1] if self.epochs else None, not self.generations
        for frame in found:
            if frame.committed > frame.position:
                raise ValueError(
                    f"the frame at {frame.position} has the committed position {frame.committed}, "
                    "which is after it"
                )
            if is_empty and not is_first(frame):
                raise ValueError(f"no file can start with the frame at {frame.position}")
            is_empty = False
            if frame.kind is not FrameKind.EPOCH:
                continue
            epoch = decode_epochs(frame.payload).known[-1]
            is_new = last is None or (epoch[0] > last[0] and epoch[1] == frame.position)
            if epoch != last and not is_new:
                raise ValueError(f"epoch {epoch[0]} cannot start at {frame.position}")
            last = epoch

    def add(self, frame: LogFrame) -> None:
        """Add the next frame of the log, which was checked."""
        if frame.kind is FrameKind.EPOCH:
            epochs = decode_epochs(frame.payload)
            self.epochs = joined(self.epochs, epochs.known)
            if epochs.is_first:
                whole_at = frame.end if epochs.is_empty else None
                self.generations.append(JournalGeneration(frame.position, whole_at))
        elif frame.kind is FrameKind.DAMAGED_STATE:
            self.generations[-1] = self.generations[-1]._replace(is_damaged=True)
        elif frame.kind is FrameKind.STATE_END:
            newest = self.generations[-1]
            if newest.whole_at is None and not newest.is_damaged:
                self.generations[-1] = newest._replace(whole_at=frame.end)

    def cut(self, end: int, min_offset: int) -> None:
        """Remove epochs and files after a new, lower end of the log."""
        # A log without frames has no epochs, even if older frames were deleted.
        is_empty = end == min_offset
        self.epochs = [] if is_empty else [each for each in self.epochs if each[1] < end]
        kept = [each for each in self.generations if each.begin < end]
        self.generations = [
            each if each.whole_at is None or each.whole_at <= end else each._replace(whole_at=None)
            for each in kept
        ]

    def newest_whole(self, committed: int) -> int:
        """Return the index of the newest file with a complete, committed state; 0 without one."""
        for number, each in reversed(list(enumerate(self.generations))):
            if each.whole_at is not None and each.whole_at <= committed:
                return number
        return 0


def is_first(frame: LogFrame) -> bool:
    """True if a frame is the first frame of a file."""
    return frame.kind is FrameKind.EPOCH and decode_epochs(frame.payload).is_first
