"""Watchers of groups: streams to members. Each has at most one pending event, even if its client
reads slowly.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.errors import Busy
from rockoon_core.message_queue import MessageQueue


class GroupChange(NamedTuple):
    """Changes of a group since a watcher's last event; the servicer adds the members to it."""

    reset_queues: frozenset[MessageQueue]
    released_queues: frozenset[MessageQueue]
    routes_changed: bool
    deleted: bool


@dataclass(slots=True, eq=False)
class GroupWatcher:
    """A watcher's stream, and the changes to send, merged and never queued."""

    # Empty for a watcher that is no member.
    member_id: str
    # Incarnation of the member's group; 0: unknown.
    group_incarnation: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    reset_queues: set[MessageQueue] = field(default_factory=set)
    released_queues: set[MessageQueue] = field(default_factory=set)
    routes_changed: bool = False
    deleted: bool = False


class GroupWatch:
    """Watchers of all groups, at most `watchers_max`: notifies members of changes."""

    def __init__(self, watchers_max: int) -> None:
        self._watchers_max = watchers_max
        self._count = 0
        self._closed = False
        self._groups: dict[str, set[GroupWatcher]] = {}

    async def events(
        self, group: str, member_id: str = "", group_incarnation: int = 0
    ) -> AsyncIterator[GroupChange]:
        """Yield an event immediately and after every change of the group, until the group is
        deleted or `close`.

        Args:
            member_id: the watching member; empty for a watcher that is no member.
            group_incarnation: incarnation of the group that the member joined; 0: unknown.

        Raises:
            Busy: there are too many streams.
        """
        if self._count >= self._watchers_max:
            raise Busy(reason=f"{self._watchers_max} WatchGroup streams are open, the maximum")
        watcher = GroupWatcher(member_id, group_incarnation)
        self._groups.setdefault(group, set()).add(watcher)
        self._count += 1
        try:
            watcher.wake.set()
            while not self._closed:
                await watcher.wake.wait()
                if self._closed:
                    return
                watcher.wake.clear()
                event = GroupChange(
                    frozenset(watcher.reset_queues),
                    frozenset(watcher.released_queues),
                    watcher.routes_changed,
                    watcher.deleted,
                )
                watcher.reset_queues.clear()
                watcher.released_queues.clear()
                watcher.routes_changed = False
                yield event
                if event.deleted:
                    return
        finally:
            self._count -= 1
            watchers = self._groups[group]
            watchers.discard(watcher)
            if not watchers:
                del self._groups[group]

    def members_changed(self, group: str) -> None:
        for watcher in self._groups.get(group, ()):
            watcher.wake.set()

    def progress_reset(self, group: str, queues: Iterable[MessageQueue], member: str = "") -> None:
        """Notify the readers of progress that was reset, and watchers that are no members.

        Args:
            queues: the reset queues.
            member: member whose own progress was reset; empty: the group's progress.
        """
        changed = frozenset(queues)
        for watcher in self._groups.get(group, ()):
            if not member or watcher.member_id in ("", member):
                watcher.reset_queues |= changed
                watcher.wake.set()

    def queue_released(self, group: str, queue: MessageQueue, waiting: frozenset[str]) -> None:
        """Notify the members that wait for a released queue, and watchers that are no members."""
        for watcher in self._groups.get(group, ()):
            if not watcher.member_id or watcher.member_id in waiting:
                watcher.released_queues.add(queue)
                watcher.wake.set()

    def routes_changed(self, groups: Iterable[str]) -> None:
        for group in groups:
            for watcher in self._groups.get(group, ()):
                watcher.routes_changed = True
                watcher.wake.set()

    def group_deleted(self, group: str, stays: Callable[[int], bool]) -> None:
        """Notify the watchers of a deleted group, but not those of a later group of the name.

        Args:
            stays: whether an incarnation belongs to a later group of the same name.
        """
        for watcher in self._groups.get(group, ()):
            if not stays(watcher.group_incarnation):
                watcher.deleted = True
                watcher.wake.set()

    def close(self) -> None:
        """End all watchers' streams, so that the server can drain."""
        self._closed = True
        for watchers in self._groups.values():
            for watcher in watchers:
                watcher.wake.set()
