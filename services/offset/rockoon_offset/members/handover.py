"""Handover of queues: members that wait for a queue of another member. Pure: time is an argument.

A member that gives a queue to another member needs time: its handlers finish, and it commits its
last offset. So a request of another member must wait until the owner has released the queue, has
left or is silent, but only for a bounded time: an owner that hangs must not block the queue for
ever.

Invariants
- The wait starts with a member's first request to the current owner. Neither further requests nor a
  reset restart it.
- The wait does not start before the owner can know of the request: after a restart of the service,
  not before the owner's first heartbeat. The owner's lease bounds that time.
- Waits are not stored: after a restart of the service all members wait again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Progress

# A member without a request for this time no longer waits. Longer than any client's interval of
# requests: the rebalance of RocketMQ's clients runs every 20 seconds.
SILENT_NS_MAX = 30 * 10**9
WAITS_MAX = 100_000


@dataclass(slots=True)
class Wait:
    """One member's wait for one queue; times are monotonic."""

    owner: str
    since_ns: int
    asked_ns: int


class Handovers:
    """Members that wait for queues of other members, for all groups.

    Args:
        bound_ns: how long an owner may keep a queue that another member requests; 0: no wait.
    """

    def __init__(self, bound_ns: int) -> None:
        self._bound_ns = bound_ns
        # (group, queue) → waiting member → wait.
        self._waits: dict[tuple[str, MessageQueue], dict[str, Wait]] = {}
        self._count = 0

    def must_wait(
        self, progress: Progress, member_id: str, now_ns: int, *, is_heard: bool = True
    ) -> bool:
        """Record a member's request for a queue; True if its live owner keeps the queue.

        Args:
            progress: its owner is another member.
            now_ns: monotonic.
            is_heard: the owner has sent a heartbeat since the service started.
        """
        key = (progress.group, progress.queue)
        # Not less than the bound: otherwise a member with a longer request interval would restart
        # its wait each time, and an owner that hangs would keep the queue for ever.
        wait = self._waits.get(key, {}).get(member_id)
        if (
            wait is None
            or wait.owner != progress.owner
            or now_ns - wait.asked_ns > max(SILENT_NS_MAX, self._bound_ns)
        ):
            if wait is None:
                self._make_room()
                self._count += 1
            # Restarted for another owner: each owner has the whole time to finish its handlers.
            wait = Wait(progress.owner, now_ns, now_ns)
            self._waits.setdefault(key, {})[member_id] = wait
        wait.asked_ns = now_ns
        # The owner was restored after a restart and does not know of the request yet.
        if not is_heard:
            wait.since_ns = now_ns
        return now_ns - wait.since_ns < self._bound_ns

    def waiting(self, group: str, queue: MessageQueue) -> tuple[str, ...]:
        """Return the members that wait for a queue, sorted."""
        return tuple(sorted(self._waits.get((group, queue), ())))

    def released(self, group: str, queue: MessageQueue) -> frozenset[str]:
        """End the waits for a queue that was released or has a new owner. Returns the members."""
        waits = self._waits.pop((group, queue), {})
        self._count -= len(waits)
        return frozenset(waits)

    def expire_silent(self, now_ns: int) -> None:
        """Remove the waits of members that have not repeated their request recently."""
        silent_ns_max = max(SILENT_NS_MAX, self._bound_ns)
        for key in list(self._waits):
            self._keep(key, lambda _, wait: now_ns - wait.asked_ns <= silent_ns_max)

    def members_changed(self, group: str, member_ids: Collection[str]) -> None:
        """Remove the waits of former members. A member that joins again with its id waits again."""
        for key in [key for key in self._waits if key[0] == group]:
            self._keep(key, lambda member_id, _: member_id in member_ids)

    def _keep(self, key: tuple[str, MessageQueue], wanted: Callable[[str, Wait], bool]) -> None:
        waits = self._waits[key]
        kept = {member_id: wait for member_id, wait in waits.items() if wanted(member_id, wait)}
        self._count -= len(waits) - len(kept)
        if kept:
            self._waits[key] = kept
        else:
            del self._waits[key]

    def _make_room(self) -> None:
        # Members whose waits are dropped wait again. A healthy cluster never has this many waits.
        while self._count >= WAITS_MAX:
            self._count -= len(self._waits.pop(next(iter(self._waits))))

    def __len__(self) -> int:
        return self._count
