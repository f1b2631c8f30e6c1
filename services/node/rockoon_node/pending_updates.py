"""Route updates that wait while a service applies a former update.

Applying an update can cost time in proportion to the whole state (a broker writes all its topics),
so a thousand single updates would be slow. Waiting updates are therefore merged into one, as a
nameserver does for a late reader: for each name the last update counts, and a topic that was
deleted and created again is listed only as it is now (see RouteUpdate in nameserver.proto).

Invariants:
1. The merged updates give the same routes as the single updates.
2. Only changes of one etcd are merged; snapshots are never merged.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from rockoon_proto.v1.nameserver_pb2 import RouteUpdate

# Bound on waiting updates that cannot be merged (snapshots, another etcd); few arrive together.
UPDATES_MAX = 16


class MergedUpdates:
    """Consecutive changes of the routes, merged into one update.

    Args:
        first: the first change, not a snapshot.
    """

    def __init__(self, first: RouteUpdate) -> None:
        self._last = first
        # Name → current value; None: removed.
        self._nodes: dict[tuple[int, str], Any] = {}
        self._topics: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._subscriptions: dict[tuple[str, str], Any] = {}
        # (topic, group) → last deletion.
        self._deletions: dict[tuple[str, str], Any] = {}
        # A single update is returned unchanged.
        self._is_single = True
        self._merge(first)

    def can_add(self, update: RouteUpdate) -> bool:
        last = self._last
        same = (update.etcd_cluster_id, update.history) == (last.etcd_cluster_id, last.history)
        return same and not update.snapshot

    def add(self, update: RouteUpdate) -> None:
        self._is_single = False
        self._last = update
        self._merge(update)

    def update(self) -> RouteUpdate:
        """Return the merged update of the routes."""
        if self._is_single:
            return self._last
        last = self._last
        merged = RouteUpdate(
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
                merged.removed_nodes.add(kind=kind, name=name)
        for (group, topic), subscription in self._subscriptions.items():
            if subscription is None:
                merged.removed_subscriptions.add(group=group, topic=topic)
        return merged

    def _merge(self, update: RouteUpdate) -> None:
        # Additions first, then removals: the order in which an update is applied.
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
    """Queue between the task that reads a watch and the task that applies its updates."""

    def __init__(self) -> None:
        self._waiting: deque[RouteUpdate | MergedUpdates] = deque()
        self._ended = False
        # Guards the two attributes above; notified when one changes.
        self._changed = asyncio.Condition()

    async def put(self, update: RouteUpdate) -> None:
        """Add an update to the queue. Waits while `UPDATES_MAX` updates wait that cannot be
        merged.
        """
        async with self._changed:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, MergedUpdates) and last.can_add(update):
                last.add(update)
            else:
                await self._changed.wait_for(lambda: len(self._waiting) < UPDATES_MAX)
                self._waiting.append(update if update.snapshot else MergedUpdates(update))
            self._changed.notify_all()

    async def end(self) -> None:
        """End the queue: no more updates follow."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def get(self) -> RouteUpdate | None:
        """Wait for the first waiting update and remove it; None after the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            self._changed.notify_all()
        return first.update() if isinstance(first, MergedUpdates) else first


def present(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]
