"""Updates of the routes that were told while a service was putting an earlier one into force.

Putting one into force can cost in proportion to all that there is (a broker writes its topics
down), so a thousand changes told one by one would cost a thousand times that. What waits is
therefore added up to one update, just as a nameserver adds up for a reader that comes late: what a
later one says of a name counts, and a topic that was deleted and created again is only listed as it
is now (see RouteUpdate in nameserver.proto).

Invariants:
1. Taking everything out gives the same routes as taking every update by itself.
2. Only changes counted by one etcd are added up; a snapshot stays what it is.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from rockoon_proto.v1.nameserver_pb2 import RouteUpdate

# Updates that cannot be added to one another (snapshots, another etcd's); few ever come at once.
UPDATES_MAX = 16


class AddedUp:
    """Changes after one another, as one.

    Args:
        first: no snapshot.
    """

    def __init__(self, first: RouteUpdate) -> None:
        self._last = first
        # Name → the last word on it: what it is now; None when it is gone.
        self._nodes: dict[tuple[int, str], Any] = {}
        self._topics: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._subscriptions: dict[tuple[str, str], Any] = {}
        # (topic, group) → the last deletion.
        self._deletions: dict[tuple[str, str], Any] = {}
        # One alone is handed on as it came.
        self._alone = True
        self._note(first)

    def can_take(self, update: RouteUpdate) -> bool:
        last = self._last
        same = (update.etcd_cluster_id, update.history) == (last.etcd_cluster_id, last.history)
        return same and not update.snapshot

    def add(self, update: RouteUpdate) -> None:
        self._alone = False
        self._last = update
        self._note(update)

    def update(self) -> RouteUpdate:
        """All of them together."""
        if self._alone:
            return self._last
        last = self._last
        added = RouteUpdate(
            revision=last.revision,
            nodes=present(self._nodes.values()),
            topics=present(self._topics.values()),
            groups=present(self._groups.values()),
            subscriptions=present(self._subscriptions.values()),
            removed_topics=[name for name, topic in self._topics.items() if topic is None],
            removed_groups=[name for name, group in self._groups.items() if group is None],
            etcd_reachable=last.etcd_reachable,
            cluster=last.cluster,
            etcd_cluster_id=last.etcd_cluster_id,
            cluster_id=last.cluster_id,
            deletions=self._deletions.values(),
            deletions_since=last.deletions_since,
            history=last.history,
        )
        for (kind, name), node in self._nodes.items():
            if node is None:
                added.removed_nodes.add(kind=kind, name=name)
        for (group, topic), subscription in self._subscriptions.items():
            if subscription is None:
                added.removed_subscriptions.add(group=group, topic=topic)
        return added

    def _note(self, update: RouteUpdate) -> None:
        # Put first, then removed, as an update is applied.
        self._nodes.update({(node.kind, node.name): node for node in update.nodes})
        self._nodes.update({(node.kind, node.name): None for node in update.removed_nodes})
        self._topics.update({topic.config.name: topic for topic in update.topics})
        self._topics.update(dict.fromkeys(update.removed_topics))
        self._groups.update({group.config.name: group for group in update.groups})
        self._groups.update(dict.fromkeys(update.removed_groups))
        self._deletions.update({(each.topic, each.group): each for each in update.deletions})
        self._subscriptions.update(
            {(each.group, each.topic): each for each in update.subscriptions}
        )
        self._subscriptions.update(
            {(each.group, each.topic): None for each in update.removed_subscriptions}
        )


class PendingUpdates:
    """Between the task that reads a watch and the one that puts its updates into force."""

    def __init__(self) -> None:
        self._waiting: deque[RouteUpdate | AddedUp] = deque()
        self._ended = False
        # Guards the two above and is notified when either changes.
        self._changed = asyncio.Condition()

    async def put(self, update: RouteUpdate) -> None:
        """Add what was told; waits while too much is there that cannot be added up."""
        async with self._changed:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, AddedUp) and last.can_take(update):
                last.add(update)
            else:
                await self._changed.wait_for(lambda: len(self._waiting) < UPDATES_MAX)
                self._waiting.append(update if update.snapshot else AddedUp(update))
            self._changed.notify_all()

    async def end(self) -> None:
        """No more will come."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def take(self) -> RouteUpdate | None:
        """What came first; None when nothing more will come. Waits for something."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            self._changed.notify_all()
        return first.update() if isinstance(first, AddedUp) else first


def present(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]
