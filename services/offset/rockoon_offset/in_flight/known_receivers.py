"""Receivers of a group: clients that gateways report, and all holders of messages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.clients import KnownClients
from rockoon_offset.in_flight.filters import ReaderFilters
from rockoon_offset.in_flight.window import Acquisition, Window
from rockoon_offset.progress.progress_store import ProgressStore


@dataclass(slots=True)
class Holding:
    """Number of messages in flight of one receiver of a group."""

    receiver: str
    # Id of the receiver's access key.
    key_id: str
    messages: int = 0
    queues: set[MessageQueue] = field(default_factory=set)
    attempt_max: int = 0
    # Epoch milliseconds; 0: nothing is invisible.
    next_visible_at_ms: int = 0

    def add(self, queue: MessageQueue, acquisition: Acquisition, now_ms: int) -> None:
        """Add the messages of an acquisition that are in flight to its receiver's number."""
        for at_ms, part in acquisition.parts.items():
            if at_ms > now_ms:
                self.messages += part.bit_count()
                self.queues.add(queue)
                self.attempt_max = max(self.attempt_max, acquisition.attempt)
                self.next_visible_at_ms = min(self.next_visible_at_ms or at_ms, at_ms)


def holdings(windows: Iterable[tuple[MessageQueue, Window]], now_ms: int) -> list[Holding]:
    """Number of messages in flight of each receiver, sorted by name."""
    found: dict[tuple[str, str], Holding] = {}
    for queue, window in windows:
        for acquisition in window:
            if acquisition.holder:
                name = acquisition.holder, acquisition.holder_key
                found.setdefault(name, Holding(*name)).add(queue, acquisition, now_ms)
    return [each for _, each in sorted(found.items()) if each.messages]


class GroupReceivers:
    """Lists and counts the receivers of each group.

    Args:
        now_ms: clock of visibility times, epoch milliseconds.
    """

    def __init__(
        self,
        store: ProgressStore,
        clients: KnownClients,
        filters: ReaderFilters,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._clients = clients
        self.filters = filters
        self._now_ms = now_ms

    def count(self, group: str) -> int:
        """Count the receivers of a group; see GroupMembers.receiver_count."""
        now_ms = self._now_ms()
        windows = self._store.ledger.windows.of_group(group)
        clients = self._clients.of_group(group, now_ms)
        names = {(each.name.client_id, each.name.key_id) for each in clients}
        names |= {(each.receiver, each.key_id) for each in holdings(windows.items(), now_ms)}
        named = {receiver for receiver, _ in names}
        # Reports of filters have no access key.
        reported = {each.receiver for each in self.filters.of_receivers(group)}
        return len(names) + len(reported - named)
