"""Index of the acquisitions that reports of their holders extend. Pure.

It is made by the records of acquisitions, and so again when a journal is read. Settling a message
does not touch it: entries without an acquisition are removed when their holder is looked up, and
all together when the index has doubled. So it has at most twice as many entries as acquisitions.
"""

from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.window import Acquisition
from rockoon_offset.in_flight.windows import Windows
from rockoon_offset.progress.records import Acquired

ENTRIES_MIN = 1024


class ClientName(NamedTuple):
    """A client of a group. Its access key belongs to its name: the key of another client that uses
    the same id neither extends nor frees anything of this one."""

    group: str
    client_id: str
    key_id: str


class Holders:
    """See the module.

    Args:
        windows: have the acquisitions.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._by_client: dict[ClientName, dict[tuple[MessageQueue, int], None]] = {}
        self._entries = 0
        self._entries_max = ENTRIES_MIN

    def __len__(self) -> int:
        return self._entries

    def add(self, record: Acquired) -> None:
        """Note an acquisition."""
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
