"""Windows of all queues that receivers have acquired messages from, and their holders. Pure.

A window belongs to progress under one epoch. A higher epoch (after a reset, a member that pulls, or
a new start) or the removal of the progress ends the window with all its acquisitions.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.window import Acquisition, Window
from rockoon_offset.progress.records import Acquired, Record, WindowPut

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
        """Yield the records that restore all windows. The state is copied now; the iterator may run
        later.
        """
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
    """Finds the acquisitions of each receiver that reports of gateways extend.

    Records of acquisitions fill the index, also when a journal is replayed. Settling a message does
    not change it: stale entries are removed when their holder is looked up, and all stale entries
    when the index has doubled. So the index has at most twice as many entries as there are
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
        """Return the acquisitions that a client holds."""
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
