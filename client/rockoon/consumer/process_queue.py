"""Process queue: the messages of one queue that a consumer has pulled, handed out and finished.

Invariants:
- Messages come in offset order, and go out (`take`) in offset order, each once.
- `commit_offset` is the smallest offset that is not finished; when all are, it is where the next
  pull starts, so messages a filter left out count as finished. It never goes back.
- Nothing is taken in or handed out once the queue is retired; what was handed out before may still
  be finished.
- Nothing is finished or committed either once it is dropped: whoever owns it next starts from what
  was committed, and late results of running handlers change nothing.

Pulled batches are kept whole, with one byte per message for "finished or not", so holding a
thousand messages costs about as much as holding one. Source: ProcessQueue, for the rule of the
commit offset and for what the limits count.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from rockoon.errors import InvalidArgument
from rockoon_core.light_dataclass import light_dataclass

Batch = TypeVar("Batch")

_OPEN = b"\1"


class Limit(Enum):
    """Why no more is pulled into a queue for now."""

    COUNT = "messages_max"
    BYTES = "bytes_max"
    SPAN = "span_max"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """How much one queue may hold before pulling pauses; the defaults are RocketMQ's. A pull is
    never cut short by them: what is held can exceed each by one batch, here up to 1024 messages."""

    messages_max: int = 1000
    """Unfinished messages."""
    bytes_max: int = 100 * 2**20
    """Bytes of the batches held; a batch counts whole until its last message is finished,
    because so long it is in memory."""
    span_max: int = 2000
    """Newest offset pulled minus smallest unfinished one: how far a message that does not get
    finished can be overtaken, and how much comes again after a crash. RocketMQ counts the span of
    the messages held; so there, what overtook and was finished does not count."""

    def __post_init__(self) -> None:
        for name in ("messages_max", "bytes_max", "span_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(reason=f"{name} must be 1 or more")


@light_dataclass
class Run(Generic[Batch]):
    """Neighbouring messages of one pulled batch, handed out together."""

    batch: Batch
    start: int
    """Index in the batch of the first message, and one past the last."""
    stop: int
    offsets: Sequence[int]
    """Their queue offsets, ascending."""


@dataclass(slots=True)
class _Held(Generic[Batch]):
    """A batch and what has become of its messages."""

    batch: Batch
    offsets: Sequence[int]
    """A range where offsets have no gaps, which is nearly always."""
    size_bytes: int
    states: bytearray
    unfinished: int
    head: int = 0
    """Index of the smallest unfinished message; everything below is finished."""
    taken: int = 0
    """Index of the next message to hand out."""

    def index_of(self, offset: int) -> int | None:
        if isinstance(self.offsets, range):
            return offset - self.offsets.start if offset in self.offsets else None
        index = bisect_left(self.offsets, offset)
        found = index < len(self.offsets) and self.offsets[index] == offset
        return index if found else None


@dataclass(slots=True)
class ProcessQueue(Generic[Batch]):
    """The messages of one queue between the pull that brought them and the commit."""

    next_offset: int
    """Where the next pull starts. Written by `put` and `put_nothing`."""
    limits: FlowLimits = field(default_factory=FlowLimits)
    retired: bool = False
    """No more is taken in or handed out; true of a dropped queue, too."""
    dropped: bool = False
    unfinished: int = 0
    """Messages held and not finished, handed out or not."""
    bytes_held: int = 0
    _newest: int = 0
    """Offset of the last message taken in."""
    _held: list[_Held[Batch]] = field(default_factory=list)
    """In offset order; each has an unfinished message."""
    _firsts: list[int] = field(default_factory=list)
    """First offset of each of `_held`, for bisecting."""
    _taking: int = 0
    """Index in `_held` of the batch `take` goes on with."""

    def put(
        self, batch: Batch, offsets: Sequence[int], *, next_offset: int, size_bytes: int
    ) -> None:
        """Take in what a pull answered.

        Args:
            batch: the messages, kept as they are.
            offsets: their queue offsets, ascending, one at least.
            next_offset: where the next pull starts, beyond all of `offsets`.
            size_bytes: what holding the batch costs.

        Raises:
            ValueError: the offsets are not ascending, or overlap what was pulled before.
        """
        if self.retired:
            return
        count = len(offsets)
        if isinstance(offsets, range) and count:
            first, last = offsets.start, offsets.stop - 1
        elif count:
            # Python's own: they are compared and kept, and a column's items are dear at both.
            first, last = int(offsets[0]), int(offsets[-1])
        else:
            first = last = next_offset
        # What overlaps would be handled twice, and finishing it once would commit past the other.
        if not self.next_offset <= first <= last < next_offset:
            raise ValueError(
                f"a pull from {self.next_offset} brought {count} messages and goes on at "
                f"{next_offset}: it overlaps"
            )
        if last - first == count - 1 and not isinstance(offsets, range):
            # Finishing a message is then arithmetic and not a search, and a thousand offsets need
            # no list.
            offsets = range(first, first + count)
        held = _Held(batch, offsets, size_bytes, bytearray(_OPEN * count), count)
        self._held.append(held)
        self._firsts.append(first)
        self.unfinished += count
        self.bytes_held += size_bytes
        self._newest = last
        # Not `offsets[-1] + 1`: a filter may have left out messages behind the last one, and they
        # would be pulled for ever.
        self.next_offset = next_offset

    def put_nothing(self, next_offset: int) -> None:
        """Take in that a pull brought no message up to `next_offset`."""
        if not self.retired:
            # With nothing held this is the commit offset too: a group whose filter leaves
            # everything out still moves on, and its lag does not grow.
            self.next_offset = max(self.next_offset, next_offset)

    def take(self, messages_max: int) -> list[Run[Batch]]:
        """Hand out the next messages, at most `messages_max`; they stay held until done."""
        runs: list[Run[Batch]] = []
        while messages_max > 0 and (run := self.take_run(messages_max)) is not None:
            runs.append(run)
            messages_max -= run.stop - run.start
        return runs

    def take_run(self, messages_max: int) -> Run[Batch] | None:
        """Hand out the next messages of one batch, as `take`; None if none is waiting."""
        if self.retired or self._taking >= len(self._held):
            return None
        held = self._held[self._taking]
        start, offsets = held.taken, held.offsets
        stop = min(start + messages_max, len(offsets))
        held.taken = stop
        if stop == len(offsets):
            self._taking += 1
            if not start:
                return Run(held.batch, 0, stop, offsets)
        return Run(held.batch, start, stop, offsets[start:stop])

    def give_back(self, count: int) -> None:
        """Have messages wait again: the last `count` that were handed out, by `take_run` and just
        before, so that none of them is done."""
        if count == 0 or self.retired:
            return
        # With its last message handed out the place moved on to the next batch.
        if self._taking == len(self._held) or self._held[self._taking].taken == 0:
            self._taking -= 1
        self._held[self._taking].taken -= count

    @property
    def has_waiting(self) -> bool:
        """Whether `take` would hand out something."""
        return not self.retired and self._taking < len(self._held)

    def done(self, offsets: Collection[int]) -> int:
        """Finish messages; saying so twice, or after the queue was dropped, changes nothing.

        Returns:
            How many of them were unfinished until now.

        Raises:
            ValueError: a message that was never handed out.
        """
        # Its handler calls may still end; their queue may be another member's by now.
        if self.dropped:
            return 0
        if len(self._held) == 1:
            only, count = self._held[0], len(offsets)
            if only.unfinished == only.taken == count and only.offsets == offsets:
                # A queue whose messages come one by one holds nothing else.
                self._taking = self.unfinished = self.bytes_held = 0
                self._held.clear()
                self._firsts.clear()
                return count
        run = self._handed_out(offsets) if isinstance(offsets, range) else None
        finished = self._finish_each(offsets) if run is None else _finish_run(*run, len(offsets))
        self.unfinished -= finished
        self._forget_finished()
        return finished

    def _finish_each(self, offsets: Iterable[int]) -> int:
        finished = 0
        held: _Held[Batch] | None = None
        index: int | None = None
        for offset in offsets:
            index = None if held is None else held.index_of(offset)
            if index is None:
                at = bisect_right(self._firsts, offset) - 1
                held = self._held[at] if at >= 0 else None
                index = None if held is None else held.index_of(offset)
            if held is None or index is None:
                if offset >= self.next_offset:
                    raise ValueError(f"message {offset} was never pulled")
                continue  # its batch is finished and forgotten, or a filter left it out
            if index >= held.taken:
                raise ValueError(f"message {offset} was not handed out")
            if held.states[index]:
                held.states[index] = 0
                held.unfinished -= 1
                finished += 1
        return finished

    def _handed_out(self, offsets: range) -> tuple[_Held[Batch], int] | None:
        """Where messages lie that were handed out from one batch without gaps; None otherwise."""
        at = bisect_right(self._firsts, offsets.start) - 1 if offsets else -1
        if at < 0 or not isinstance(self._held[at].offsets, range):
            return None
        held = self._held[at]
        index = offsets.start - held.offsets[0]
        is_within = offsets.step == 1 and index + len(offsets) <= held.taken
        return (held, index) if is_within else None

    def _forget_finished(self) -> None:
        # Asked after each call: nearly always no batch has just come to its end.
        whole = [held for held in self._held if not held.unfinished]
        if whole:
            # A batch without unfinished messages was handed out whole, so it lies before _taking.
            self._taking -= len(whole)
            self.bytes_held -= sum(held.size_bytes for held in whole)
            self._held = [held for held in self._held if held.unfinished]
            self._firsts = [held.offsets[0] for held in self._held]
        if self._held:
            first = self._held[0]
            # From where it was: it only moves up, so all steps together pass each message once.
            first.head = first.states.find(_OPEN, first.head)

    @property
    def commit_offset(self) -> int:
        """The next offset to consume after a restart: everything below it is finished."""
        # Not the newest offset + 1: what a filter left out behind it is finished too.
        if not self._held:
            return self.next_offset
        held = self._held[0]
        return held.offsets[held.head]

    @property
    def span(self) -> int:
        """Newest offset pulled minus smallest unfinished one; 0 when nothing is held."""
        return self._newest - self.commit_offset if self._held else 0

    def blocked_by(self) -> Limit | None:
        """Return the limit that forbids the next pull, None when it may go."""
        if self.retired:
            return Limit.DROPPED
        if self.unfinished >= self.limits.messages_max:
            return Limit.COUNT
        if self.bytes_held >= self.limits.bytes_max:
            return Limit.BYTES
        if self.span >= self.limits.span_max:
            return Limit.SPAN
        return None

    def has_room_behind(self, offsets: Sequence[int], size_bytes: int) -> bool:
        """Whether another pull may go once these messages, one at least, are taken in."""
        limits = self.limits
        first = self.commit_offset if self._held else offsets[0]
        return not self.retired and (
            self.unfinished + len(offsets) < limits.messages_max
            and self.bytes_held + size_bytes < limits.bytes_max
            and offsets[-1] - first < limits.span_max
        )

    def retire(self) -> None:
        """Take in and hand out nothing more, before the queue is given up."""
        self.retired = True

    def drop(self) -> None:
        """Give the queue up; what it held is forgotten."""
        self.retired = self.dropped = True
        self.unfinished = self.bytes_held = self._taking = 0
        self._held.clear()
        self._firsts.clear()


def _finish_run(held: _Held[Any], index: int, count: int) -> int:
    end = index + count
    finished = held.states.count(_OPEN, index, end)
    held.states[index:end] = bytes(count)
    held.unfinished -= finished
    return finished
