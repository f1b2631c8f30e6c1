"""Process queue: messages of one queue that a consumer has pulled, and their progress.

Invariants:
- Messages are put and handed out (`hand_out`) in offset order, each once.
- `commit_offset` is the smallest unfinished offset. If all messages are finished, it is the start
  of the next pull, so messages that a filter excludes count as finished. It never decreases.
- A retired queue accepts and hands out no messages; messages handed out before can be finished.
- A dropped queue finishes and commits nothing: the next owner starts from the committed offset, and
  late results of running handlers have no effect.

A pulled batch is stored as one object, with one byte of state per message: no Python object exists
for each message. Source: ProcessQueue, for the commit offset and the counts of the limits.
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
    """Reason why a queue is not pulled now."""

    COUNT = "messages_max"
    BYTES = "bytes_max"
    SPAN = "span_max"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits of one queue, beyond which it is not pulled; the defaults are RocketMQ's. They do not
    limit a pull, so a queue can exceed each by one batch, here up to 1024 messages."""

    messages_max: int = 1000
    """Unfinished messages."""
    bytes_max: int = 100 * 2**20
    """Bytes of the batches in memory. A batch counts whole until its last message is finished."""
    span_max: int = 2000
    """Newest pulled offset minus smallest unfinished one. It limits how many later messages are
    handled while one message is unfinished, and so how many are delivered again after a crash.
    RocketMQ does not count finished messages after the unfinished one."""

    def __post_init__(self) -> None:
        for name in ("messages_max", "bytes_max", "span_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(reason=f"{name} must be 1 or more")


@light_dataclass
class MessageRun(Generic[Batch]):
    """Consecutive messages of one pulled batch, handed out together."""

    batch: Batch
    start: int
    """Index of the first message in the batch."""
    stop: int
    """Index after the last message."""
    offsets: Sequence[int]
    """Queue offsets of the messages, ascending."""


@dataclass(slots=True)
class _HeldBatch(Generic[Batch]):
    """A batch and the states of its messages."""

    batch: Batch
    offsets: Sequence[int]
    """A range if the offsets have no gaps, which is the normal case."""
    size_bytes: int
    states: bytearray
    unfinished: int
    head: int = 0
    """Index of the smallest unfinished message."""
    handed_out: int = 0
    """Index of the next message to hand out."""

    def index_of(self, offset: int) -> int | None:
        if isinstance(self.offsets, range):
            return offset - self.offsets.start if offset in self.offsets else None
        index = bisect_left(self.offsets, offset)
        found = index < len(self.offsets) and self.offsets[index] == offset
        return index if found else None


@dataclass(slots=True)
class ProcessQueue(Generic[Batch]):
    """The messages of one queue between their pull and the commit."""

    next_offset: int
    """Start of the next pull. Written by `put` and `skip_to`."""
    limits: FlowLimits = field(default_factory=FlowLimits)
    retired: bool = False
    """No message is accepted or handed out; also true of a dropped queue."""
    dropped: bool = False
    unfinished: int = 0
    """Number of unfinished messages, handed out or not."""
    bytes_held: int = 0
    _newest: int = 0
    """Offset of the last pulled message."""
    _held: list[_HeldBatch[Batch]] = field(default_factory=list)
    """In offset order; each has an unfinished message."""
    _firsts: list[int] = field(default_factory=list)
    """First offset of each entry of `_held`, for bisecting."""
    _next_batch: int = 0
    """Index in `_held` of the batch from which the next message is handed out."""

    def put(
        self, batch: Batch, offsets: Sequence[int], *, next_offset: int, size_bytes: int
    ) -> None:
        """Add the messages of a pull.

        Args:
            batch: the messages, stored unchanged.
            offsets: their queue offsets, ascending, at least one.
            next_offset: start of the next pull, larger than all `offsets`.
            size_bytes: size of the batch in memory.

        Raises:
            ValueError: the offsets are not ascending, or overlap an earlier pull.
        """
        if self.retired:
            return
        count = len(offsets)
        if isinstance(offsets, range) and count:
            first, last = offsets.start, offsets.stop - 1
        elif count:
            # Converted to int, because NumPy scalars are slow to compare and large to store.
            first, last = int(offsets[0]), int(offsets[-1])
        else:
            first = last = next_offset
        # An overlapping message would be handled twice, and finishing it once would commit past
        # the other delivery.
        if not self.next_offset <= first <= last < next_offset:
            raise ValueError(
                f"a pull from {self.next_offset} returned {count} messages and the next offset "
                f"{next_offset}: it overlaps"
            )
        if last - first == count - 1 and not isinstance(offsets, range):
            # A range needs no list in memory and no search when a message is finished.
            offsets = range(first, first + count)
        held = _HeldBatch(batch, offsets, size_bytes, bytearray(_OPEN * count), count)
        self._held.append(held)
        self._firsts.append(first)
        self.unfinished += count
        self.bytes_held += size_bytes
        self._newest = last
        # Not `offsets[-1] + 1`: messages after the last one that the filter excludes would be
        # pulled again and again.
        self.next_offset = next_offset

    def skip_to(self, next_offset: int) -> None:
        """Record that a pull returned no message before `next_offset`."""
        if not self.retired:
            # If no message is held, this is the commit offset: progress also advances if the
            # filter excludes all messages.
            self.next_offset = max(self.next_offset, next_offset)

    def hand_out(self, messages_max: int) -> list[MessageRun[Batch]]:
        """Hand out the next messages, at most `messages_max`; they are held until `done`."""
        runs: list[MessageRun[Batch]] = []
        while messages_max > 0 and (run := self.hand_out_run(messages_max)) is not None:
            runs.append(run)
            messages_max -= run.stop - run.start
        return runs

    def hand_out_run(self, messages_max: int) -> MessageRun[Batch] | None:
        """Hand out the next messages of one batch; None if none is waiting."""
        if self.retired or self._next_batch >= len(self._held):
            return None
        held = self._held[self._next_batch]
        start, offsets = held.handed_out, held.offsets
        stop = min(start + messages_max, len(offsets))
        held.handed_out = stop
        if stop == len(offsets):
            self._next_batch += 1
            if not start:
                return MessageRun(held.batch, 0, stop, offsets)
        return MessageRun(held.batch, start, stop, offsets[start:stop])

    def return_run(self, count: int) -> None:
        """Undo `hand_out_run` for its last `count` messages, which are not done. No other message
        may have been handed out since."""
        if count == 0 or self.retired:
            return
        # `_next_batch` points to the next batch if the last message of a batch was handed out.
        if self._next_batch == len(self._held) or self._held[self._next_batch].handed_out == 0:
            self._next_batch -= 1
        self._held[self._next_batch].handed_out -= count

    @property
    def has_waiting(self) -> bool:
        return not self.retired and self._next_batch < len(self._held)

    def done(self, offsets: Collection[int]) -> int:
        """Finish messages. A repeated call, or a call for a dropped queue, has no effect. Returns
        the number of messages that were unfinished. Raises ValueError: a message was not handed
        out."""
        # Handler calls may end after the queue was revoked.
        if self.dropped:
            return 0
        if len(self._held) == 1:
            only, count = self._held[0], len(offsets)
            if only.unfinished == only.handed_out == count and only.offsets == offsets:
                # Fast path: the only batch is finished, for example of a single message.
                self._next_batch = self.unfinished = self.bytes_held = 0
                self._held.clear()
                self._firsts.clear()
                return count
        run = self._find_handed_out(offsets) if isinstance(offsets, range) else None
        finished = self._finish_each(offsets) if run is None else _finish_run(*run, len(offsets))
        self.unfinished -= finished
        self._remove_finished()
        return finished

    def _finish_each(self, offsets: Iterable[int]) -> int:
        finished = 0
        held: _HeldBatch[Batch] | None = None
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
                continue  # its batch is finished and deleted, or a filter excluded it
            if index >= held.handed_out:
                raise ValueError(f"message {offset} was not handed out")
            if held.states[index]:
                held.states[index] = 0
                held.unfinished -= 1
                finished += 1
        return finished

    def _find_handed_out(self, offsets: range) -> tuple[_HeldBatch[Batch], int] | None:
        """Return batch and index of messages that were handed out from one batch without gaps; None
        otherwise."""
        at = bisect_right(self._firsts, offsets.start) - 1 if offsets else -1
        if at < 0 or not isinstance(self._held[at].offsets, range):
            return None
        held = self._held[at]
        index = offsets.start - held.offsets[0]
        is_within = offsets.step == 1 and index + len(offsets) <= held.handed_out
        return (held, index) if is_within else None

    def _remove_finished(self) -> None:
        # Called for each finished message: mostly no batch is finished.
        whole = [held for held in self._held if not held.unfinished]
        if whole:
            # All messages of a finished batch were handed out: its index is below `_next_batch`.
            self._next_batch -= len(whole)
            self.bytes_held -= sum(held.size_bytes for held in whole)
            self._held = [held for held in self._held if held.unfinished]
            self._firsts = [held.offsets[0] for held in self._held]
        if self._held:
            first = self._held[0]
            # The search starts at the last head, so all searches together visit a message once.
            first.head = first.states.find(_OPEN, first.head)

    @property
    def commit_offset(self) -> int:
        """Next offset to consume after a restart: all messages below it are finished."""
        # Not the newest offset + 1: excluded messages after it count as finished.
        if not self._held:
            return self.next_offset
        held = self._held[0]
        return held.offsets[held.head]

    @property
    def span(self) -> int:
        """Newest pulled offset minus smallest unfinished one; 0 if no message is held."""
        return self._newest - self.commit_offset if self._held else 0

    def blocked_by(self) -> Limit | None:
        """Return the limit that prevents the next pull; None if it is allowed."""
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
        """True if another pull is allowed after `put` of some messages, at least one."""
        limits = self.limits
        first = self.commit_offset if self._held else offsets[0]
        return not self.retired and (
            self.unfinished + len(offsets) < limits.messages_max
            and self.bytes_held + size_bytes < limits.bytes_max
            and offsets[-1] - first < limits.span_max
        )

    def retire(self) -> None:
        """Stop accepting and handing out messages, at the start of a revocation."""
        self.retired = True

    def drop(self) -> None:
        """Delete all messages; they are neither finished nor committed any more."""
        self.retired = self.dropped = True
        self.unfinished = self.bytes_held = self._next_batch = 0
        self._held.clear()
        self._firsts.clear()


def _finish_run(held: _HeldBatch[Any], index: int, count: int) -> int:
    end = index + count
    finished = held.states.count(_OPEN, index, end)
    held.states[index:end] = bytes(count)
    held.unfinished -= finished
    return finished
