"""Hand-over of queues: members that wait for a queue another one holds. Pure: time is an argument.

A member that is to give a queue up needs a moment: its handlers finish, its last offset is
committed. So another member's wish is put off until the owner has released the queue, has left or
fell silent; but for a bounded time at most: an owner that hangs must not stop the queue for good.

Invariants
- The time counts from a member's first question to the present owner; asking again does not restart
  it, nor does a reset.
- It does not begin before the owner can know: after a restart of the service, not before the owner
  has found it again. The owner's lease bounds that.
- Nothing here is worth keeping: after a restart of the service everybody waits again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Progress

# A member that has not asked for so long no longer waits. Longer than any pause between questions:
# the rebalance of RocketMQ's clients runs every 20 seconds.
SILENT_NS_MAX = 30 * 10**9
WAITS_MAX = 100_000


@dataclass(slots=True)
class Wait:
    """One member's wait for one queue; times are monotonic."""

    owner: str
    since_ns: int
    asked_ns: int


class Handovers:
    """The waits of all groups.

    Args:
        bound_ns: the longest that an owner may keep a queue somebody else asks for; 0 lets nobody
            wait.
    """

    def __init__(self, bound_ns: int) -> None:
        self._bound_ns = bound_ns
        # By group and queue, then by who waits.
        self._waits: dict[tuple[str, MessageQueue], dict[str, Wait]] = {}
        self._count = 0

    def must_wait(
        self, progress: Progress, member_id: str, now_ns: int, *, is_heard: bool = True
    ) -> bool:
        """Note that a member asks for a queue whose owner is alive; whether that owner keeps it.

        Args:
            progress: of the queue; its owner is somebody else.
            member_id: who asks.
            now_ns: monotonic.
            is_heard: the owner has called since the service started.
        """
        key = (progress.group, progress.queue)
        # Silence is never shorter than the bound: a member that asks less often than that would
        # begin its wait anew each time, and an owner that hangs keep the queue for good.
        wait = self._waits.get(key, {}).get(member_id)
        if (
            wait is None
            or wait.owner != progress.owner
            or now_ns - wait.asked_ns > max(SILENT_NS_MAX, self._bound_ns)
        ):
            if wait is None:
                self._make_room()
                self._count += 1
            # Anew where the owner is another one: each owner has the whole time to finish its
            # handlers.
            wait = Wait(progress.owner, now_ns, now_ns)
            self._waits.setdefault(key, {})[member_id] = wait
        wait.asked_ns = now_ns
        # Known from before a restart, and not told of the wish yet.
        if not is_heard:
            wait.since_ns = now_ns
        return now_ns - wait.since_ns < self._bound_ns

    def waiting(self, group: str, queue: MessageQueue) -> tuple[str, ...]:
        """Who waits for a queue, sorted."""
        return tuple(sorted(self._waits.get((group, queue), ())))

    def released(self, group: str, queue: MessageQueue) -> frozenset[str]:
        """The queue was released or taken: nobody waits for it any more. Returns who did."""
        waits = self._waits.pop((group, queue), {})
        self._count -= len(waits)
        return frozenset(waits)

    def expire_silent(self, now_ns: int) -> None:
        """Drop the waits of members that no longer ask."""
        silent_ns_max = max(SILENT_NS_MAX, self._bound_ns)
        for key in list(self._waits):
            self._keep(key, lambda _, wait: now_ns - wait.asked_ns <= silent_ns_max)

    def members_changed(self, group: str, member_ids: Collection[str]) -> None:
        """Drop the waits of members that are gone: who comes back under the old id waits again."""
        for key in [key for key in self._waits if key[0] == group]:
            self._keep(key, lambda who, _: who in member_ids)

    def _keep(self, key: tuple[str, MessageQueue], wanted: Callable[[str, Wait], bool]) -> None:
        waits = self._waits[key]
        kept = {who: wait for who, wait in waits.items() if wanted(who, wait)}
        self._count -= len(waits) - len(kept)
        if kept:
            self._waits[key] = kept
        else:
            del self._waits[key]

    def _make_room(self) -> None:
        # Who is forgotten waits once more; that many waiting members is no cluster in order.
        while self._count >= WAITS_MAX:
            self._count -= len(self._waits.pop(next(iter(self._waits))))

    def __len__(self) -> int:
        return self._count
