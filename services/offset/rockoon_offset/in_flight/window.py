"""Window of a queue: state of each message that a group's receivers have acquired. Pure.

    floor                    acquired_to
      |  settled, acquired,       |
      |  or skipped               |  never acquired

Invariants
- All offsets below `floor` are settled; `floor` itself is not.
- Each offset from `floor` to `acquired_to` is settled, skipped, or in exactly one acquisition.
- Only FIFO groups skip: a message is skipped while its message group is in flight.
- In a FIFO group, a grant contains the first unsettled messages of each message
  group in order, without a gap: a failed message is delivered again before later ones.
- If a message of a message group is delivered again, all later messages of the message group that
  were settled above the floor are delivered again: an acknowledgement is final once all earlier
  messages are settled. A message that becomes a dead letter does not undo acknowledgements of
  later messages.
- While a message of a message group is in flight, no message of that message group is granted. Only
  the same attempt id gets the same messages again.
- A delivery counts as an attempt if its message is the first unsettled one of its message group
  at the redelivery. Later messages are redelivered with it and do not count an attempt.
- A message without attempts left is granted alone: later messages of its message group wait until
  it is settled.
- The only stored times are visibility times; the current time is an argument.

A set of offsets is an int: bit i represents the first offset plus i. So an acquisition of many
messages costs as much as an acquisition of one message.

The methods apply changes without checks; `deliveries` decides them.

`Windows` has the windows of all queues, and their holders. A window belongs to progress under one
epoch. A higher epoch (after a reset, a member that pulls, or a new start) or the removal of the
progress ends the window with all its acquisitions.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Acquired, Record, WindowPut

# Bound on the messages of a queue that a group's receivers have in flight.
IN_FLIGHT_MAX = 1 << 16
# Maximum distance of acquired messages from the floor, in offsets.
WINDOW_OFFSETS_MAX = 1 << 20


class Acquisition(NamedTuple):
    """Messages that were delivered together."""

    number: int
    # Offset of bit 0 of the sets in `parts`.
    first: int
    # Number of this delivery, from 1; 0 if the first delivery was not counted.
    attempt: int
    attempt_id: str
    # Visibility time, epoch milliseconds → set of messages. Never mutated: snapshots share it.
    parts: dict[int, int]
    # Last reason that a receiver gave for a failed delivery; empty: none.
    reason: str = ""
    # See the record `Acquired`.
    holder: str = ""
    holder_key: str = ""
    held_until_ms: int = 0
    call_id: str = ""

    @property
    def messages(self) -> int:
        """Set of the messages that the acquisition still has."""
        found = 0
        for part in self.parts.values():
            found |= part
        return found


class Grant(NamedTuple):
    """Messages of a queue that a receiver may acquire together."""

    # Number of the acquisition that has the messages now; 0: none.
    former: int
    first: int
    messages: int
    attempt: int
    # See `Acquisition`.
    reason: str = ""


class WindowCounts(NamedTuple):
    """Number of messages of a window in each state."""

    in_flight: int
    visible_again: int
    settled_above: int
    attempt_max: int
    # Epoch milliseconds; 0 for never.
    next_visible_at_ms: int


class WindowCopy(NamedTuple):
    """Copy of a window at one time; `lag` counts messages in it later."""

    floor: int
    # Bit 0 is `floor`.
    settled: int
    acquisitions: Sequence[Acquisition]
    # Time of the copy, epoch milliseconds. Acquired messages that become visible later were in
    # flight then.
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
    """State of each message of one queue for one group: settled, acquired or visible.

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
        # Number of the first acquisition; 0: there was none yet. Lower numbers belong to former
        # windows of the queue.
        self.since = 0
        self._acquisitions: dict[int, Acquisition] = {}
        # Heap of (visibility time, acquisition number). Stale entries are removed when they reach
        # the top, or when the heap has grown too large.
        self._due: list[tuple[int, int]] = []
        self._due_max = 64

    # Reads.

    def __iter__(self) -> Iterator[Acquisition]:
        return iter(self._acquisitions.values())

    def find(self, number: int) -> Acquisition | None:
        return self._acquisitions.get(number)

    @property
    def unsettled(self) -> int:
        """Number of messages that receivers have acquired and not settled."""
        inside = self.acquired_to - self.floor
        return inside - self.settled.bit_count() - self.skipped.bit_count()

    @property
    def room(self) -> int:
        """Number of new messages that may still be acquired."""
        return max(0, IN_FLIGHT_MAX - self.unsettled)

    def next_visible_at_ms(self) -> int | None:
        """Earliest visibility time of an acquired message, past or future; None: none acquired."""
        first = self._first_due()
        return None if first is None else first[0]

    def next_visible_after(self, now_ms: int) -> int | None:
        """Earliest visibility time after `now_ms`; None: there is none."""
        times = (at_ms for each in self for at_ms in each.parts if at_ms > now_ms)
        return min(times, default=None)

    def next_grant(self, count: int, end: int, now_ms: int) -> Grant | None:
        """Return the next messages to acquire: those that are visible again, then new ones.

        Args:
            count: maximum number of messages, 1 or more.
            end: end offset of the queue.
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
        """Return the subset of `messages` that is settled; bit 0 is `first`."""
        if self.floor - first >= messages.bit_length():
            # `first` comes from the request: a shift by an unchecked distance could use all memory.
            return messages
        below = (1 << max(0, self.floor - first)) - 1
        return messages & (below | shifted(self.settled, self.floor - first))

    def counts(self, now_ms: int) -> WindowCounts:
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
        return WindowCounts(
            in_flight, visible_again, settled_above, attempt_max, next_visible_at_ms
        )

    def copy(self, now_ms: int) -> WindowCopy:
        return WindowCopy(self.floor, self.settled, list(self), now_ms)

    def first_ready(self, now_ms: int) -> int:
        """Smallest offset that a receiver may acquire."""
        ready = self.acquired_to
        if self.skipped:
            ready = min(ready, self.floor + first_bit(self.skipped))
        for acquisition in self._acquisitions.values():
            for visible_at_ms, part in acquisition.parts.items():
                if visible_at_ms <= now_ms:
                    ready = min(ready, acquisition.first + first_bit(part))
        return ready

    # Changes.

    def put(self, acquired_to: int, since: int, settled: int, skipped: int) -> None:
        """Restore the state from a snapshot, without acquisitions: their records follow."""
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
        """Move messages to a new acquisition, from the acquisition `former` or from none (0)."""
        self.since = self.since or number
        if former:
            self._remove(former, first, messages)
        else:
            self._add_new(first, messages)
        acquisition = self._acquisitions.get(number)
        if acquisition is None:
            acquisition = Acquisition(
                number,
                first,
                attempt,
                attempt_id,
                {},
                reason,
                holder,
                holder_key,
                held_until_ms,
                call_id,
            )
        self._add(acquisition, first, messages, visible_at_ms)

    def extend(self, number: int, first: int, messages: int, visible_at_ms: int) -> None:
        """Change the visibility time of messages of an acquisition."""
        acquisition = self._remove(number, first, messages)
        self._add(acquisition, first, messages, visible_at_ms)

    def settle(self, number: int, first: int, messages: int) -> Acquisition:
        """Settle messages of an acquisition. Returns the acquisition without them."""
        acquisition = self._remove(number, first, messages)
        self.settled |= shifted(messages, first - self.floor)
        self._raise_floor()
        return acquisition

    def commit(self, offset: int) -> None:
        """Settle all messages below an offset; it is not below `floor`."""
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

    def _add_new(self, first: int, messages: int) -> None:
        """Acquire new messages; new messages between the acquired ones become skipped."""
        end = first + messages.bit_length()
        if first != self.acquired_to or messages & (messages + 1):
            acquired = shifted(messages, first - self.floor)
            between = max(0, end - self.acquired_to)
            self.skipped |= ((1 << between) - 1) << (self.acquired_to - self.floor)
            self.skipped &= ~acquired
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

    def _remove(self, number: int, first: int, messages: int) -> Acquisition:
        """Remove messages from an acquisition. Returns the rest, which may be empty."""
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
    """Return the same offsets as a set whose first offset is `by` less; offsets before it are
    dropped.
    """
    return messages << by if by >= 0 else messages >> -by


def mask(count: int, messages: int) -> int:
    """Return a bit mask of a set's first `count` offsets; empty for 0 or less."""
    return (1 << min(max(0, count), messages.bit_length())) - 1


def first_bit(messages: int) -> int:
    """Return the index of the lowest bit of a set that is not empty."""
    return (messages & -messages).bit_length() - 1


def lowest(messages: int, count: int) -> int:
    """Return the `count` lowest elements of a set."""
    if messages.bit_count() <= count:
        return messages
    left = messages
    for _ in range(count):
        left &= left - 1
    return messages ^ left


ENTRIES_MIN = 1024


NONE: Mapping[MessageQueue, Window] = {}


class Windows:
    """Windows of all groups and queues."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, Window]] = {}

    def __iter__(self) -> Iterator[tuple[str, MessageQueue, Window]]:
        for group, windows in self._groups.items():
            for queue, window in windows.items():
                yield group, queue, window

    def find(self, group: str, queue: MessageQueue) -> Window | None:
        return self._groups.get(group, NONE).get(queue)

    def of(self, group: str, queue: MessageQueue) -> Window:
        """Return the window of a queue. Raises KeyError if there is none."""
        return self._groups[group][queue]

    def of_group(self, group: str) -> Mapping[MessageQueue, Window]:
        return self._groups.get(group, NONE)

    def open(self, group: str, queue: MessageQueue, offset: int) -> Window:
        """Return the window of a queue; a new one starts at the committed offset."""
        windows = self._groups.setdefault(group, {})
        if (found := windows.get(queue)) is None:
            found = windows[queue] = Window(offset)
        return found

    def committed(self, group: str, queue: MessageQueue, offset: int) -> int:
        """Apply a commit to the window. Returns the first unsettled offset from `offset` on."""
        window = self.find(group, queue)
        if window is None:
            return offset
        if offset < window.floor:
            # A forced commit: all messages from the offset on are delivered again.
            self.drop(group, queue)
            return offset
        window.commit(offset)
        return window.floor

    def drop(self, group: str, queue: MessageQueue) -> None:
        windows = self._groups.get(group)
        if windows is not None and windows.pop(queue, None) is not None and not windows:
            del self._groups[group]

    def drop_group(self, group: str) -> None:
        self._groups.pop(group, None)

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that restore all windows, from a copy of the state made now."""
        copied = [
            (
                WindowPut(
                    group,
                    queue,
                    window.acquired_to,
                    window.since,
                    window.settled,
                    window.skipped,
                ),
                list(window),
            )
            for group, windows in self._groups.items()
            for queue, window in windows.items()
            if window.since
        ]

        def records() -> Iterator[Record]:
            for put, acquisitions in copied:
                yield put
                for each in acquisitions:
                    for at_ms, messages in each.parts.items():
                        yield Acquired(
                            put.group,
                            put.queue,
                            each.number,
                            0,
                            each.first,
                            messages,
                            each.attempt,
                            at_ms,
                            each.attempt_id,
                            *each[5:],
                        )

        return records()


class ClientName(NamedTuple):
    """Name of a gateway's client. It contains the access key: a client with the same id and another
    key neither extends nor releases messages of this client.
    """

    group: str
    client_id: str
    key_id: str


class Holders:
    """Index of acquisitions by holder, for holders whose messages gateways extend by their reports.

    Records of acquisitions fill the index, also when a journal is replayed. A settled message does
    not change the index. A look-up of a holder removes its stale entries; all stale entries are
    removed when the index has doubled. So the index has at most twice as many entries as there are
    acquisitions.

    Args:
        windows: hold the acquisitions.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._by_client: dict[ClientName, dict[tuple[MessageQueue, int], None]] = {}
        self._entries = 0
        self._entries_max = ENTRIES_MIN

    def __len__(self) -> int:
        return self._entries

    def add(self, record: Acquired) -> None:
        """Add an acquisition of a receiver."""
        name = ClientName(record.group, record.holder, record.holder_key)
        entries = self._by_client.setdefault(name, {})
        before = len(entries)
        entries[record.queue, record.number] = None
        self._entries += len(entries) - before
        if self._entries > self._entries_max:
            for each in list(self._by_client):
                self.of(each)
            self._entries_max = max(2 * self._entries, ENTRIES_MIN)

    def of(self, name: ClientName) -> list[tuple[MessageQueue, Acquisition]]:
        found = []
        entries = self._by_client.get(name, {})
        for queue, number in list(entries):
            window = self._windows.find(name.group, queue)
            acquisition = None if window is None else window.find(number)
            if acquisition is None:
                del entries[queue, number]
                self._entries -= 1
            else:
                found.append((queue, acquisition))
        if not entries:
            self._by_client.pop(name, None)
        return found
