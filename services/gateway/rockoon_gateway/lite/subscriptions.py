"""Lite subscriptions: the lite topics that each client reads.

A client repeats them every half minute, at any gateway. Gateways share them through the offset
service (`SharedSubscriptions`). This module does no I/O.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LiteChanges:
    """Changes of a client's lite subscription that the offset service has not stored yet.

    Attributes:
        count: number of changes.
        replaces: the client has sent a complete list; the state is discarded.
        added, removed: lite topics.
        claimed: in an exclusive group, lite topics that other clients lose by this.
    """

    count: int = 0
    replaces: bool = False
    added: dict[str, None] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return self.count > 0

    def applied_to(self, lite_topics: Iterable[str]) -> dict[str, None]:
        """Return lite topics after these changes."""
        kept = () if self.replaces else (each for each in lite_topics if each not in self.removed)
        return {**dict.fromkeys(kept), **self.added}


@dataclass(slots=True, eq=False)
class LiteSubscription:
    """Lite subscription of one client: the lite topics that it reads.

    Attributes:
        group, parent: the consumer group, and the topic that it is bound to.
        lite_topics: in order of subscription.
        client_version: number of the client's last complete list; 0 if it has no numbers.
        waiting: timeouts of receivers, which end when `lite_topics` change.
        changed: called after a change by the client.
        is_exclusive: in its group a lite topic has one reader.
        version: version of the offset service's state on which `changes` are based; 0: no state.
        is_compared: the offset service was asked for its state.
    """

    client_id: str
    group: str
    parent: str
    lite_topics: dict[str, None] = field(default_factory=dict)
    client_version: int = 0
    waiting: set[asyncio.Timeout] = field(default_factory=set)
    changed: Callable[[], None] = lambda: None
    is_exclusive: bool = False
    version: int = 0
    changes: LiteChanges = field(default_factory=LiteChanges)
    is_compared: bool = False

    def add(self, lite_topics: Collection[str]) -> None:
        """Subscribe the client to lite topics. In an exclusive group, other clients lose them."""
        if not self.lite_topics.keys() >= set(lite_topics):
            self.lite_topics.update(dict.fromkeys(lite_topics))
            self.changes.added.update(dict.fromkeys(lite_topics))
            self.changes.removed.difference_update(lite_topics)
            self.changes.claimed.update(lite_topics)
            self._record_change()

    def remove(self, lite_topics: Collection[str]) -> None:
        """Unsubscribe the client from lite topics."""
        gone = set(lite_topics)
        left = {each: None for each in self.lite_topics if each not in gone}
        if len(left) < len(self.lite_topics):
            self.lite_topics = left
            self._record_removed(gone)
            self._record_change()

    def replace(self, lite_topics: Collection[str], client_version: int) -> None:
        """Replace the client's lite topics by a complete list, unless a later list was applied."""
        if client_version < self.client_version:
            return
        self.client_version = client_version
        if self.lite_topics.keys() != set(lite_topics):
            self.lite_topics = dict.fromkeys(lite_topics)
            claimed = self.changes.claimed & self.lite_topics.keys()
            self.changes = LiteChanges(
                self.changes.count, replaces=True, added=dict(self.lite_topics), claimed=claimed
            )
            self._record_change()

    def apply_state(
        self, lite_topics: Iterable[str], version: int, client_version: int
    ) -> list[str]:
        """Apply the offset service's state of the subscription; return the new lite topics."""
        self.version = version
        self.client_version = max(self.client_version, client_version)
        before, self.lite_topics = self.lite_topics, self.changes.applied_to(lite_topics)
        if self.lite_topics.keys() != before.keys():
            self.wake()
        return [each for each in self.lite_topics if each not in before]

    def changes_stored(self, count: int, version: int) -> None:
        """Record that the offset service has stored the subscription after `count` changes."""
        self.version = version
        if self.changes.count == count:
            self.changes = LiteChanges()

    def wake(self) -> None:
        """End the waits of the client's receivers, so that they use the present lite topics."""
        now = asyncio.get_running_loop().time()
        for each in self.waiting:
            each.reschedule(now)
        # An expiring timeout cannot be rescheduled; the next wait adds another.
        self.waiting.clear()

    def _record_removed(self, gone: set[str]) -> None:
        for each in gone:
            self.changes.added.pop(each, None)
        self.changes.removed |= gone
        self.changes.claimed -= gone

    def _record_change(self) -> None:
        self.changes.count += 1
        self.wake()
        self.changed()


class LiteSubscriptions:
    """Lite subscriptions of all clients of a gateway.

    Args:
        is_there: whether a client is known; subscriptions of unknown clients are not kept.

    Attributes:
        on_change: called when a client has changed its lite topics.
    """

    def __init__(self, is_there: Callable[[str], bool] = lambda _: True) -> None:
        self.is_there = is_there
        self.on_change: Callable[[], None] = lambda: None
        self._by_client: dict[str, LiteSubscription] = {}

    def __len__(self) -> int:
        return sum(len(each.lite_topics) for each in self._by_client.values())

    @property
    def clients(self) -> Collection[LiteSubscription]:
        """Lite subscriptions, one per client."""
        return self._by_client.values()

    def find(self, client_id: str, group: str) -> LiteSubscription | None:
        """Return a client's lite subscription; None if it reads no lite topics in this group."""
        found = self._by_client.get(client_id)
        return found if found is not None and found.group == group else None

    def of(self, client_id: str, group: str, parent: str) -> LiteSubscription:
        """Return a client's lite subscription; a new one has no lite topics."""
        found = self._by_client.get(client_id)
        if found is None or (found.group, found.parent) != (group, parent):
            found = LiteSubscription(client_id, group, parent, changed=lambda: self.on_change())
            if self.is_there(client_id):
                self._by_client[client_id] = found
        return found

    def read(self) -> set[tuple[str, str]]:
        """Parent topics and lite topics that clients read."""
        return {
            (each.parent, lite_topic)
            for each in self._by_client.values()
            for lite_topic in each.lite_topics
        }

    def others(self, mine: LiteSubscription) -> list[LiteSubscription]:
        """Return the lite subscriptions of the other clients of a client's group."""
        return [
            each
            for each in self._by_client.values()
            if each is not mine and (each.group, each.parent) == (mine.group, mine.parent)
        ]

    def remove(self, client_id: str) -> None:
        """Remove a client's subscriptions here; other gateways may still receive its calls."""
        gone = self._by_client.pop(client_id, None)
        if gone is not None:
            gone.lite_topics = {}
            gone.wake()
