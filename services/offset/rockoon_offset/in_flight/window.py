"""Window of a queue: what a group's receivers have of it, message by message. Pure.

    floor                    acquired_to
      |  settled, acquired,       |
      |  or skipped               |  never acquired

Invariants
- Below `floor` everything is settled, and `floor` itself is not.
- From `floor` to `acquired_to` each offset is settled, skipped, or of exactly one acquisition.
- Only FIFO groups skip: a message whose message group is in flight stays behind others.
- In a FIFO group (`message_order`), a grant has of each message group the first unsettled messages
  in order, without a hole: a message that failed comes again before those behind it.
- If a message of a message group is delivered again, all messages behind it that were settled above
  the floor are delivered again: an acknowledgement is final once all earlier messages are settled.
  A message that becomes a dead letter does not undo the acknowledgements behind it.
- While a message of a message group is in flight, the message group gives nothing. Only the same
  attempt id gets the same messages again.
- A delivery counts as an attempt if its message is the first unsettled one of its message group
  when it is delivered again. Messages behind it fail with it, and not by themselves.
- A message whose attempts are used up is granted alone: those behind it wait until it is settled.
- No time is kept but that at which messages are visible again; who looks says what time it is.

A set of offsets is an int: bit i stands for a first offset plus i. So an acquisition of many
messages costs as much as one of a single message.

Its methods make changes that were checked; `deliveries` decides them.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Messages of a queue that a group's receivers may have at once.
IN_FLIGHT_MAX = 1 << 16
# How far acquired messages may lie above the floor.
WINDOW_OFFSETS_MAX = 1 << 20


class Acquisition(NamedTuple):
    """Messages that were delivered together."""

    number: int
    # Offset of bit 0 of its sets.
    first: int
    # Of this delivery, from 1; 0 where the first one was not counted.
    attempt: int
    attempt_id: str
    # When they are visible again, epoch milliseconds → which. Never changed: snapshots share it.
    parts: dict[int, int]
    # Why the last delivery failed whose receiver gave a reason; empty: none did.
    reason: str = ""
    # As of a record `Acquired`.
    holder: str = ""
    holder_key: str = ""
    held_until_ms: int = 0
    call_id: str = ""

    @property
    def messages(self) -> int:
        """Those that are left of it."""
        found = 0
        for part in self.parts.values():
            found |= part
        return found


class Grant(NamedTuple):
    """Messages that may be acquired."""

    # Whose messages they were; 0: nobody's.
    former: int
    first: int
    messages: int
    attempt: int
    # As of an Acquisition.
    reason: str = ""


class Counts(NamedTuple):
    """How many messages are where."""

    in_flight: int
    visible_again: int
    settled_above: int
    attempt_max: int
    # Epoch milliseconds; 0 for never.
    next_visible_at_ms: int


class WindowCopy(NamedTuple):
    """A window as it was at one moment, for looking at it later."""

    floor: int
    # Bit 0 is `floor`.
    settled: int
    acquisitions: Sequence[Acquisition]
    # Epoch milliseconds: acquired messages that are visible later were in flight.
    now_ms: int

    def kept_below(self, offset: int) -> int:
        """Count the messages below an offset that are settled or in flight."""
        count = (self.settled & mask(offset - self.floor, self.settled)).bit_count()
        for acquisition in self.acquisitions:
            for visible_at_ms, part in acquisition.parts.items():
                if visible_at_ms > self.now_ms:
                    count += (part & mask(offset - acquisition.first, part)).bit_count()
        return count


class Window:
    """See the module.

    Args:
        floor: the committed offset.
    """

    __slots__ = (
        "_acquisitions",
        "_due",
        "_due_max",
        "acquired_to",
        "floor",
        "settled",
        "since",
        "skipped",
    )

    def __init__(self, floor: int) -> None:
        self.floor = self.acquired_to = floor
        # Bit 0 is `floor`.
        self.settled = self.skipped = 0
        # Number of its first acquisition; 0: there was none yet. Older ones are of another window.
        self.since = 0
        self._acquisitions: dict[int, Acquisition] = {}
        # A heap of when parts are visible and whose they are. What is not true any more is left
        # out when it comes up, or when there is too much of it.
        self._due: list[tuple[int, int]] = []
        self._due_max = 64

    # Looking.

    def __iter__(self) -> Iterator[Acquisition]:
        return iter(self._acquisitions.values())

    def find(self, number: int) -> Acquisition | None:
        return self._acquisitions.get(number)

    @property
    def unsettled(self) -> int:
        """Messages that acquisitions have."""
        inside = self.acquired_to - self.floor
        return inside - self.settled.bit_count() - self.skipped.bit_count()

    @property
    def room(self) -> int:
        """How many more messages may be acquired."""
        return max(0, IN_FLIGHT_MAX - self.unsettled)

    def next_visible_at_ms(self) -> int | None:
        """When something acquired becomes visible, or became; None: nothing is acquired."""
        first = self._first_due()
        return None if first is None else first[0]

    def next_visible_after(self, now_ms: int) -> int | None:
        """The earliest time after now at which something becomes visible; None: there is none."""
        times = (at_ms for each in self for at_ms in each.parts if at_ms > now_ms)
        return min(times, default=None)

    def next_grant(self, count: int, end: int, now_ms: int) -> Grant | None:
        """What may be acquired next: what is visible again, then what nobody had.

        Args:
            count: messages at most, 1 or more.
            end: of the queue.
            now_ms: what time it is.
        """
        due = self._first_due()
        if due is not None and due[0] <= now_ms:
            acquisition = self._acquisitions[due[1]]
            messages = lowest(acquisition.parts[due[0]], count)
            attempt = acquisition.attempt + 1
            return Grant(
                acquisition.number, acquisition.first, messages, attempt, acquisition.reason
            )
        count = min(count, self.room)
        if count and self.skipped:
            return Grant(0, self.floor, lowest(self.skipped, count), 1)
        count = min(
            count, end - self.acquired_to, self.floor + WINDOW_OFFSETS_MAX - self.acquired_to
        )
        return Grant(0, self.acquired_to, (1 << count) - 1, 1) if count > 0 else None

    def settled_of(self, first: int, messages: int) -> int:
        """Which of some offsets are settled; bits as in `messages`."""
        if self.floor - first >= messages.bit_length():
            # The first offset is its caller's word: to shift by any distance could take all memory.
            return messages
        below = (1 << max(0, self.floor - first)) - 1
        return messages & (below | shifted(self.settled, self.floor - first))

    def counts(self, now_ms: int) -> Counts:
        in_flight = visible_again = attempt_max = next_visible_at_ms = 0
        for acquisition in self._acquisitions.values():
            attempt_max = max(attempt_max, acquisition.attempt)
            for visible_at_ms, part in acquisition.parts.items():
                if visible_at_ms > now_ms:
                    in_flight += part.bit_count()
                    next_visible_at_ms = min(next_visible_at_ms or visible_at_ms, visible_at_ms)
                else:
                    visible_again += part.bit_count()
        settled_above = self.settled.bit_count()
        return Counts(in_flight, visible_again, settled_above, attempt_max, next_visible_at_ms)

    def copy(self, now_ms: int) -> WindowCopy:
        return WindowCopy(self.floor, self.settled, list(self), now_ms)

    def first_ready(self, now_ms: int) -> int:
        """The smallest offset that a receiver may get."""
        ready = self.acquired_to
        if self.skipped:
            ready = min(ready, self.floor + first_bit(self.skipped))
        for acquisition in self._acquisitions.values():
            for visible_at_ms, part in acquisition.parts.items():
                if visible_at_ms <= now_ms:
                    ready = min(ready, acquisition.first + first_bit(part))
        return ready

    # Changing.

    def put(self, acquired_to: int, since: int, settled: int, skipped: int) -> None:
        """Be as a snapshot says; acquisitions follow."""
        self.acquired_to, self.since = acquired_to, since
        self.settled, self.skipped = settled, skipped

    def acquire(
        self,
        number: int,
        former: int,
        first: int,
        messages: int,
        attempt: int,
        visible_at_ms: int,
        attempt_id: str,
        reason: str = "",
        holder: str = "",
        holder_key: str = "",
        held_until_ms: int = 0,
        call_id: str = "",
    ) -> None:
        """Messages are a new acquisition's; of an acquisition before, or nobody's (0)."""
        self.since = self.since or number
        if former:
            self._take(former, first, messages)
        else:
            self._reach(first, messages)
        acquisition = self._acquisitions.get(number)
        if acquisition is None:
            held = holder, holder_key, held_until_ms, call_id
            acquisition = Acquisition(number, first, attempt, attempt_id, {}, reason, *held)
        self._add(acquisition, first, messages, visible_at_ms)

    def extend(self, number: int, first: int, messages: int, visible_at_ms: int) -> None:
        """Messages of an acquisition are visible at another time."""
        acquisition = self._take(number, first, messages)
        self._add(acquisition, first, messages, visible_at_ms)

    def settle(self, number: int, first: int, messages: int) -> Acquisition:
        """Settle messages of an acquisition; returns the acquisition with the messages left."""
        acquisition = self._take(number, first, messages)
        self.settled |= shifted(messages, first - self.floor)
        self._raise_floor()
        return acquisition

    def commit(self, offset: int) -> None:
        """Everything below an offset is done; it is `floor` or more."""
        cut = offset - self.floor
        self.settled >>= cut
        self.skipped >>= cut
        self.floor = offset
        self.acquired_to = max(self.acquired_to, offset)
        for acquisition in list(self._acquisitions.values()):
            if acquisition.first < offset:
                below = (1 << (offset - acquisition.first)) - 1
                self._keep(acquisition, ~below)
        self._raise_floor()

    def _reach(self, first: int, messages: int) -> None:
        """Messages are acquired that nobody had; what lies between stays behind."""
        end = first + messages.bit_length()
        if first != self.acquired_to or messages & (messages + 1):
            taken = shifted(messages, first - self.floor)
            between = max(0, end - self.acquired_to)
            self.skipped |= ((1 << between) - 1) << (self.acquired_to - self.floor)
            self.skipped &= ~taken
        self.acquired_to = max(self.acquired_to, end)

    def _raise_floor(self) -> None:
        if self.settled & 1:
            done = first_bit(~self.settled)
            self.settled >>= done
            self.skipped >>= done
            self.floor += done

    def _add(self, acquisition: Acquisition, first: int, messages: int, visible_at_ms: int) -> None:
        part = shifted(messages, first - acquisition.first)
        part |= acquisition.parts.get(visible_at_ms, 0)
        parts = {**acquisition.parts, visible_at_ms: part}
        self._acquisitions[acquisition.number] = acquisition._replace(parts=parts)
        heapq.heappush(self._due, (visible_at_ms, acquisition.number))
        if len(self._due) > self._due_max:
            self._due = [(at, each.number) for each in self for at in each.parts]
            heapq.heapify(self._due)
            self._due_max = 2 * len(self._due) + 64

    def _take(self, number: int, first: int, messages: int) -> Acquisition:
        """Take messages out of an acquisition; returns what is left, maybe without any."""
        acquisition = self._acquisitions[number]
        return self._keep(acquisition, ~shifted(messages, first - acquisition.first))

    def _keep(self, acquisition: Acquisition, kept: int) -> Acquisition:
        parts = {at: left for at, part in acquisition.parts.items() if (left := part & kept)}
        acquisition = acquisition._replace(parts=parts)
        if parts:
            self._acquisitions[acquisition.number] = acquisition
        else:
            del self._acquisitions[acquisition.number]
        return acquisition

    def _first_due(self) -> tuple[int, int] | None:
        while self._due:
            visible_at_ms, number = self._due[0]
            acquisition = self._acquisitions.get(number)
            if acquisition is not None and visible_at_ms in acquisition.parts:
                return self._due[0]
            heapq.heappop(self._due)
        return None


def shifted(messages: int, by: int) -> int:
    """A set whose first offset was, and now is `by` less; what would lie before it is left out."""
    return messages << by if by >= 0 else messages >> -by


def mask(count: int, messages: int) -> int:
    """Return a mask of the first offsets of a set.

    Args:
        count: of offsets; 0 or less gives an empty mask.
        messages: the set, whose length bounds that of the mask.
    """
    return (1 << min(max(0, count), messages.bit_length())) - 1


def first_bit(messages: int) -> int:
    """Which is the lowest; there is one."""
    return (messages & -messages).bit_length() - 1


def lowest(messages: int, count: int) -> int:
    """The first so many of a set."""
    if messages.bit_count() <= count:
        return messages
    left = messages
    for _ in range(count):
        left &= left - 1
    return messages ^ left
