"""Ownership of queues: who holds each, since when, and who did before the last change. Pure.

Invariants:
- The owners of one membership version are the same for everybody who asks for them, however late:
  members that share queues by them agree, as they do on the members themselves.
- Nothing here is worth keeping. After a restart every group has a new version, and since when an
  owner holds its queue is not known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Progress

# Of one group: more than that are not told with heartbeats.
OWNED_QUEUES_MAX = 4096
# Of all groups: of more than that it is not known since when they are held.
SINCE_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Lock:
    """A queue that a member holds."""

    queue: MessageQueue
    owner: str
    epoch: int
    # Wall clock, epoch milliseconds; 0: not known.
    since_ms: int
    # 0: the owner is no member any more.
    lease_left_ms: int
    # Members that wait for the queue, sorted.
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnersThen:
    """Who held what when a version of a group's membership was first asked for."""

    version: int
    # None when there were too many.
    owners: Mapping[MessageQueue, str] | None


class Owners:
    """Holders of the queues of all groups."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self._then: dict[str, OwnersThen] = {}

    def held_by(self, group: str, queue: MessageQueue, owner: str, now_ms: int) -> None:
        """A queue was resolved, by an owner that may have held it before."""
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
        """When an owner got a queue, 0 if that is not known."""
        known = self._since.get((group, queue))
        return known[1] if known is not None and known[0] == owner else 0

    def as_of(self, group: str, version: int, progress: Iterable[Progress]) -> OwnersThen:
        """Who held what in a version of the group's membership.

        Args:
            group: whose queues.
            version: the present one.
            progress: that of the group now; looked at only when the version is new.
        """
        then = self._then.get(group)
        if then is None or then.version != version:
            owners = {each.queue: each.owner for each in progress if each.owner}
            then = OwnersThen(version, owners if len(owners) <= OWNED_QUEUES_MAX else None)
            self._then[group] = then
        return then

    def forget(self, group: str) -> None:
        """The group has no members any more."""
        self._then.pop(group, None)
