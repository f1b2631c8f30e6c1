"""Ownership of queues: since when each owner has its queue, and owners by membership version. Pure.

Invariants:
- All members get the same owners for one membership version, however late they ask. So members
  that allocate queues by these owners agree, as they agree on the members.
- Nothing here is stored. After a restart every group has a new version, and it is unknown since
  when owners have their queues.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Progress

# Of one group: with more owned queues, replies to heartbeats have no owners.
OWNED_QUEUES_MAX = 4096
# Of all groups: beyond it, the start of the oldest ownerships is dropped.
SINCE_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Lock:
    """A queue that a member owns."""

    queue: MessageQueue
    owner: str
    epoch: int
    # Wall clock, epoch milliseconds; 0: unknown.
    since_ms: int
    # 0: the owner is no longer a member.
    lease_left_ms: int
    # Members that wait for the queue, sorted.
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnersThen:
    """Owners of a group's queues when a version of its membership was first requested."""

    version: int
    # None: too many.
    owners: Mapping[MessageQueue, str] | None


class Owners:
    """Owners of the queues of all groups."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self._then: dict[str, OwnersThen] = {}

    def held_by(self, group: str, queue: MessageQueue, owner: str, now_ms: int) -> None:
        """Record that a member owns a queue from now on, unless it already did."""
        key = (group, queue)
        known = self._since.get(key)
        if known is not None and known[0] == owner:
            return
        while len(self._since) >= SINCE_MAX:
            del self._since[next(iter(self._since))]
        self._since[key] = (owner, now_ms)

    def released(self, group: str, queue: MessageQueue) -> None:
        self._since.pop((group, queue), None)

    def since_ms(self, group: str, queue: MessageQueue, owner: str) -> int:
        """Return the time at which an owner became the owner of a queue, epoch milliseconds; 0:
        unknown.
        """
        known = self._since.get((group, queue))
        return known[1] if known is not None and known[0] == owner else 0

    def as_of(self, group: str, version: int, progress: Iterable[Progress]) -> OwnersThen:
        """Return the owners of a group's queues for the present version of its membership.

        Args:
            version: current version.
            progress: current progress of the group; only read if the version is new.
        """
        then = self._then.get(group)
        if then is None or then.version != version:
            owners = {each.queue: each.owner for each in progress if each.owner}
            then = OwnersThen(version, owners if len(owners) <= OWNED_QUEUES_MAX else None)
            self._then[group] = then
        return then

    def remove(self, group: str) -> None:
        """Discard the stored owners of a group without members."""
        self._then.pop(group, None)
