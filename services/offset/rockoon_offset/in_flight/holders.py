"""Index: holder → acquisitions that reports of the holder extend. Pure.

Records of acquisitions fill the index, also when a journal is replayed. Settling a message does not
change it: stale entries are removed when their holder is looked up, and all stale entries when the
index has doubled. So the index has at most twice as many entries as there are acquisitions.
"""

from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.window import Acquisition
from rockoon_offset.in_flight.windows import Windows
from rockoon_offset.progress.records import Acquired

ENTRIES_MIN = 1024


class ClientName(NamedTuple):
    """A client of a group. The access key is part of the name: a client with the same id and
    another key neither extends nor releases messages of this client."""

    group: str
    client_id: str
    key_id: str


class Holders:
    """See the module.

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
        """Add an acquisition."""
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
