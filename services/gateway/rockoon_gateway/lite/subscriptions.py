"""Lite subscriptions: which lite topics each client reads, as it has said here.

A client says it again every half minute, to the gateway that it is connected to, so nothing of
this is kept. Nothing here waits, or asks anybody.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class LiteSubscription:
    """One client's.

    Attributes:
        client_id: whose.
        group, parent: the consumer group, and the topic that it is bound to.
        lite_topics: in the order in which they came.
        version: of what the client said last of all of them; 0 when it numbers nothing.
        waiting: receivers, which end when `lite_topics` are others.
    """

    client_id: str
    group: str
    parent: str
    lite_topics: dict[str, None] = field(default_factory=dict)
    version: int = 0
    waiting: set[asyncio.Timeout] = field(default_factory=set)

    def add(self, lite_topics: Collection[str]) -> None:
        """Read these, too."""
        if not self.lite_topics.keys() >= set(lite_topics):
            self.lite_topics.update(dict.fromkeys(lite_topics))
            self.wake()

    def remove(self, lite_topics: Collection[str]) -> None:
        """Read these no more."""
        gone = set(lite_topics)
        left = {each: None for each in self.lite_topics if each not in gone}
        if len(left) < len(self.lite_topics):
            self.lite_topics = left
            self.wake()

    def replace(self, lite_topics: Collection[str], version: int) -> None:
        """Read these and no others, unless something later was said."""
        if version < self.version:
            return
        self.version = version
        if self.lite_topics.keys() != set(lite_topics):
            self.lite_topics = dict.fromkeys(lite_topics)
            self.wake()

    def wake(self) -> None:
        """Have receivers look at what there is to read."""
        now = asyncio.get_running_loop().time()
        for each in self.waiting:
            each.reschedule(now)
        # One that is expiring cannot be rescheduled; who waits again adds another.
        self.waiting.clear()


class LiteSubscriptions:
    """Those of all clients of a gateway.

    Args:
        is_there: whether a client is known; what one that has gone says is kept for nobody.
    """

    def __init__(self, is_there: Callable[[str], bool] = lambda _: True) -> None:
        self.is_there = is_there
        self._by_client: dict[str, LiteSubscription] = {}

    def __len__(self) -> int:
        return sum(len(each.lite_topics) for each in self._by_client.values())

    def of(self, client_id: str, group: str, parent: str) -> LiteSubscription:
        """A client's; without lite topics until it names some."""
        found = self._by_client.get(client_id)
        if found is None or (found.group, found.parent) != (group, parent):
            found = LiteSubscription(client_id, group, parent)
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
        """A client has gone, or reads nothing any more."""
        gone = self._by_client.pop(client_id, None)
        if gone is not None:
            gone.remove(list(gone.lite_topics))
