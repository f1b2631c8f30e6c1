"""Group watchers: one pending event for each, however slow it reads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.errors import Busy
from rockoon_core.message_queue import MessageQueue


class Event(NamedTuple):
    """What changed since a watcher last looked; the members are to be looked up now."""

    reset_queues: frozenset[MessageQueue]
    released_queues: frozenset[MessageQueue]
    routes_changed: bool
    deleted: bool


@dataclass(slots=True, eq=False)
class Watcher:
    """What one stream has not been told yet. Changes add up; they never queue."""

    # Empty for an onlooker.
    member_id: str
    # Of the group that it is a member of; 0: not known.
    group_incarnation: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    reset_queues: set[MessageQueue] = field(default_factory=set)
    released_queues: set[MessageQueue] = field(default_factory=set)
    routes_changed: bool = False
    deleted: bool = False


class GroupWatch:
    """The streams of all groups.

    Args:
        watchers_max: streams at once.
    """

    def __init__(self, watchers_max: int) -> None:
        self._watchers_max = watchers_max
        self._count = 0
        self._closed = False
        self._groups: dict[str, set[Watcher]] = {}

    async def events(
        self, group: str, member_id: str = "", group_incarnation: int = 0
    ) -> AsyncIterator[Event]:
        """One event at once, then one after every change; ends with the group, or at `close`.

        Args:
            group: whose changes.
            member_id: who looks; empty for an onlooker.
            group_incarnation: of the group that it joined; 0: not known.

        Raises:
            Busy: there are too many streams.
        """
        if self._count >= self._watchers_max:
            raise Busy(reason=f"{self._watchers_max} streams watch groups")
        watcher = Watcher(member_id, group_incarnation)
        self._groups.setdefault(group, set()).add(watcher)
        self._count += 1
        try:
            watcher.wake.set()
            while not self._closed:
                await watcher.wake.wait()
                if self._closed:
                    return
                watcher.wake.clear()
                event = Event(
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
        """Tell whoever reads by it, and onlookers.

        Args:
            group: whose progress was reset.
            queues: on these.
            member: that of this member only.
        """
        changed = frozenset(queues)
        for watcher in self._groups.get(group, ()):
            if not member or watcher.member_id in ("", member):
                watcher.reset_queues |= changed
                watcher.wake.set()

    def queue_released(self, group: str, queue: MessageQueue, waiting: frozenset[str]) -> None:
        """Tell those who wait for a queue, and onlookers, that it is free."""
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
        """Tell those who watch it, but not those of a later group of the name.

        Args:
            group: its name.
            stays: says of an incarnation whether it is a later one.
        """
        for watcher in self._groups.get(group, ()):
            if not stays(watcher.group_incarnation):
                watcher.deleted = True
                watcher.wake.set()

    def close(self) -> None:
        """End all streams, so that the server can drain."""
        self._closed = True
        for watchers in self._groups.values():
            for watcher in watchers:
                watcher.wake.set()
