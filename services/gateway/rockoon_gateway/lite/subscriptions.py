"""Lite subscriptions: which lite topics each client reads, as it has said here.

A client says it again every half minute, to the gateway that it is connected to, so nothing of
this is kept. Nothing here waits, or asks anybody.
"""

import asyncio
from collections.abc import Collection, Iterator
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
            self._changed()

    def remove(self, lite_topics: Collection[str]) -> None:
        """Read these no more."""
        left = {each: None for each in self.lite_topics if each not in lite_topics}
        if len(left) < len(self.lite_topics):
            self.lite_topics = left
            self._changed()

    def replace(self, lite_topics: Collection[str], version: int) -> None:
        """Read these and no others, unless something later was said."""
        if version < self.version:
            return
        self.version = version
        if self.lite_topics.keys() != set(lite_topics):
            self.lite_topics = dict.fromkeys(lite_topics)
            self._changed()

    def _changed(self) -> None:
        now = asyncio.get_running_loop().time()
        for each in self.waiting:
            each.reschedule(now)


class LiteSubscriptions:
    """Those of all clients of a gateway."""

    def __init__(self) -> None:
        self._by_client: dict[str, LiteSubscription] = {}

    def __len__(self) -> int:
        return sum(len(each.lite_topics) for each in self._by_client.values())

    def of(self, client_id: str, group: str, parent: str) -> LiteSubscription:
        """A client's; without lite topics until it names some."""
        found = self._by_client.get(client_id)
        if found is None or (found.group, found.parent) != (group, parent):
            found = self._by_client[client_id] = LiteSubscription(client_id, group, parent)
        return found

    def has_reader(self, parent: str, lite_topic: str) -> bool:
        """Whether a client reads a lite topic."""
        return any(
            each.parent == parent and lite_topic in each.lite_topics
            for each in self._by_client.values()
        )

    def others(self, mine: LiteSubscription, lite_topic: str) -> Iterator[LiteSubscription]:
        """Of the same group, who reads a lite topic as well."""
        for each in self._by_client.values():
            if (
                each is not mine
                and (each.group, each.parent) == (mine.group, mine.parent)
                and lite_topic in each.lite_topics
            ):
                yield each

    def forget(self, client_id: str) -> None:
        """A client has gone, or reads nothing any more."""
        gone = self._by_client.pop(client_id, None)
        if gone is not None:
            gone.remove(list(gone.lite_topics))
