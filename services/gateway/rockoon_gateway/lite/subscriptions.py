"""Lite subscriptions: which lite topics each client reads.

A client says it again every half minute, to any gateway. Gateways share it by way of the offset
service (`shared_subscriptions`). This module does no I/O.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Changes:
    """What a client has changed since the state that the offset service gave.

    Attributes:
        count: how often.
        replaces: it has named all that it reads; of the state nothing is left.
        added, removed: lite topics.
        claimed: in an exclusive group, the ones that other clients lose by this.
    """

    count: int = 0
    replaces: bool = False
    added: dict[str, None] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return self.count > 0

    def applied_to(self, lite_topics: Iterable[str]) -> dict[str, None]:
        """What a state becomes by them."""
        kept = () if self.replaces else (each for each in lite_topics if each not in self.removed)
        return {**dict.fromkeys(kept), **self.added}


@dataclass(slots=True, eq=False)
class LiteSubscription:
    """One client's.

    Attributes:
        client_id: whose.
        group, parent: the consumer group, and the topic that it is bound to.
        lite_topics: in the order in which they came.
        client_version: number of the client's last complete list; 0 if it numbers nothing.
        waiting: receivers, which end when `lite_topics` are others.
        changed: called when the client has changed something.
        is_exclusive: in its group a lite topic has one reader.
        version: of the offset service's state that `changes` are made to; 0: there was none.
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
    changes: Changes = field(default_factory=Changes)
    is_compared: bool = False

    def add(self, lite_topics: Collection[str]) -> None:
        """Read these, too. In an exclusive group other clients lose them."""
        if not self.lite_topics.keys() >= set(lite_topics):
            self.lite_topics.update(dict.fromkeys(lite_topics))
            self.changes.added.update(dict.fromkeys(lite_topics))
            self.changes.removed.difference_update(lite_topics)
            self.changes.claimed.update(lite_topics)
            self._note_change()

    def remove(self, lite_topics: Collection[str]) -> None:
        """Read these no more."""
        gone = set(lite_topics)
        left = {each: None for each in self.lite_topics if each not in gone}
        if len(left) < len(self.lite_topics):
            self.lite_topics = left
            self._note_removed(gone)
            self._note_change()

    def replace(self, lite_topics: Collection[str], client_version: int) -> None:
        """Read these and no others, unless something later was said."""
        if client_version < self.client_version:
            return
        self.client_version = client_version
        if self.lite_topics.keys() != set(lite_topics):
            self.lite_topics = dict.fromkeys(lite_topics)
            claimed = self.changes.claimed & self.lite_topics.keys()
            self.changes = Changes(
                self.changes.count, replaces=True, added=dict(self.lite_topics), claimed=claimed
            )
            self._note_change()

    def take(self, lite_topics: Iterable[str], version: int, client_version: int) -> list[str]:
        """Begin with a state of the offset service; returns the lite topics that are new."""
        self.version = version
        self.client_version = max(self.client_version, client_version)
        before, self.lite_topics = self.lite_topics, self.changes.applied_to(lite_topics)
        if self.lite_topics.keys() != before.keys():
            self.wake()
        return [each for each in self.lite_topics if each not in before]

    def made(self, count: int, version: int) -> None:
        """The offset service has stored the state that was here after `count` changes."""
        self.version = version
        if self.changes.count == count:
            self.changes = Changes()

    def wake(self) -> None:
        """Have receivers look at what there is to read."""
        now = asyncio.get_running_loop().time()
        for each in self.waiting:
            each.reschedule(now)
        # One that is expiring cannot be rescheduled; who waits again adds another.
        self.waiting.clear()

    def _note_removed(self, gone: set[str]) -> None:
        for each in gone:
            self.changes.added.pop(each, None)
        self.changes.removed |= gone
        self.changes.claimed -= gone

    def _note_change(self) -> None:
        self.changes.count += 1
        self.wake()
        self.changed()


class LiteSubscriptions:
    """Those of all clients of a gateway.

    Args:
        is_there: whether a client is known; what one that has gone says is kept for nobody.

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
        """One of each client."""
        return self._by_client.values()

    def find(self, client_id: str, group: str) -> LiteSubscription | None:
        """A client's, if it is known to read lite topics in a group."""
        found = self._by_client.get(client_id)
        return found if found is not None and found.group == group else None

    def of(self, client_id: str, group: str, parent: str) -> LiteSubscription:
        """A client's; without lite topics until it names some."""
        found = self._by_client.get(client_id)
        if found is None or (found.group, found.parent) != (group, parent):
            found = LiteSubscription(client_id, group, parent, changed=lambda: self.on_change())
            if self.is_there(client_id):
                self._by_client[client_id] = found
        return found

    def read(self) -> set[tuple[str, str]]:
        """What is read by somebody: parents and their lite topics."""
        return {
            (each.parent, lite_topic)
            for each in self._by_client.values()
            for lite_topic in each.lite_topics
        }

    def others(self, mine: LiteSubscription) -> list[LiteSubscription]:
        """Those of the same group."""
        return [
            each
            for each in self._by_client.values()
            if each is not mine and (each.group, each.parent) == (mine.group, mine.parent)
        ]

    def forget(self, client_id: str) -> None:
        """Forget a client at this gateway. Other gateways may still hear it."""
        gone = self._by_client.pop(client_id, None)
        if gone is not None:
            gone.lite_topics = {}
            gone.wake()
