"""Outline of a journal, by its frames: where epochs and files begin. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from rockoon_core.replication_rules import Boundary
from rockoon_offset.replication.frames import Kind, LogFrame, decode_epochs, joined


class Generation(NamedTuple):
    """A file of the log.

    Attributes:
        begin: position of its first frame.
        whole_at: position behind the state that it begins with; None while that is not whole.
    """

    begin: int
    whole_at: int | None


class Outline:
    """Epochs and files of one log.

    Attributes:
        epochs: (epoch, first position), in their order; the oldest may be missing.
        generations: the files that hold frames.
    """

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.generations: list[Generation] = []

    def boundaries(self, end: int) -> list[Boundary]:
        """Epochs of a log that ends there."""
        following = [*self.epochs[1:], (0, end)]
        return [
            Boundary(epoch, first, last)
            for (epoch, first), (_, last) in zip(self.epochs, following, strict=False)
        ]

    def check(self, found: Sequence[LogFrame]) -> None:
        """Whether frames may come next. Raises ValueError."""
        last, is_empty = self.epochs[-1] if self.epochs else None, not self.generations
        for frame in found:
            if frame.committed > frame.position:
                raise ValueError(f"the frame at {frame.position} says that it was committed before")
            if is_empty and not is_first(frame):
                raise ValueError(f"no file begins with the frame at {frame.position}")
            is_empty = False
            if frame.kind is not Kind.EPOCH:
                continue
            told = decode_epochs(frame.payload).known[-1]
            begins = last is None or (told[0] > last[0] and told[1] == frame.position)
            if told != last and not begins:
                raise ValueError(f"epoch {told[0]} cannot begin at {frame.position}")
            last = told

    def learn(self, frame: LogFrame) -> None:
        """Take the next frame, which was checked."""
        if frame.kind is Kind.EPOCH:
            told = decode_epochs(frame.payload)
            self.epochs = joined(self.epochs, told.known)
            if told.is_first:
                whole_at = frame.end if told.is_empty else None
                self.generations.append(Generation(frame.position, whole_at))
        elif frame.kind is Kind.STATE_END:
            newest = self.generations[-1]
            if newest.whole_at is None:
                self.generations[-1] = newest._replace(whole_at=frame.end)

    def cut(self, end: int, min_offset: int) -> None:
        """Forget what lies behind a new end."""
        # A log without records knows of no epoch, also where older ones were deleted before.
        is_empty = end == min_offset
        self.epochs = [] if is_empty else [each for each in self.epochs if each[1] < end]
        kept = [each for each in self.generations if each.begin < end]
        self.generations = [
            Generation(begin, whole_at if whole_at is not None and whole_at <= end else None)
            for begin, whole_at in kept
        ]

    def newest_whole(self, committed: int) -> int:
        """Which generation's state is whole and committed: the newest one; 0 where none is."""
        for number, each in reversed(list(enumerate(self.generations))):
            if each.whole_at is not None and each.whole_at <= committed:
                return number
        return 0


def is_first(frame: LogFrame) -> bool:
    """Whether a frame is the first one of a file."""
    return frame.kind is Kind.EPOCH and decode_epochs(frame.payload).is_first
