"""The witness's own account of progress, derived only from the written records."""

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offset.simulated.service import LEASE_SECONDS
from offset.simulated.world import SECOND_NS

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.progress.ledger import OffsetCommit
from rockoon_offset.progress.records import (
    Counters,
    GroupDeleted,
    MemberJoined,
    MembersChanged,
    OffsetCommitted,
    Progress,
    ProgressPut,
    QueueDeleted,
    Record,
    Removed,
    ResetApplied,
    Reverted,
)

LEASE_NS = round(LEASE_SECONDS * SECOND_NS)


class Entry(NamedTuple):
    """Fields of progress that must not change by themselves."""

    offset: int
    epoch: int
    incarnation: int
    group_incarnation: int
    owner: str


def entry_of(progress: Progress) -> Entry:
    return Entry(
        progress.offset,
        progress.epoch,
        progress.incarnation,
        progress.group_incarnation,
        progress.owner,
    )


@dataclass(slots=True)
class Holding:
    """A queue that a member believes to own."""

    epoch: int
    # Next offset to read.
    offset: int
    # By the routes of the member, and by those of the service.
    create_revision: int
    incarnation: int
    group_incarnation: int
    # Lost correctly, and the member does not know it yet.
    is_overtaken: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group, as its own process sees it."""

    group: str
    member_id: str
    instance: str
    topics: tuple[str, ...]
    # Incarnation of its group when it joined: a deletion of the group removes its members.
    group_incarnation: int
    running: bool = True
    # It has left, and never wakes.
    left: bool = False
    # It runs, and does not release queues of other members.
    stuck: bool = False
    # Time of the last heartbeat that arrived; 0: none.
    heard_ns: int = 0
    topics_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Revision of the routes that it knows.
    revision: int = 0
    owns: dict[MessageQueue, Holding] = field(default_factory=dict)
    asking: set[MessageQueue] = field(default_factory=set)
    # Released, and without a reply so far: it may not be requested again before.
    leaving: set[MessageQueue] = field(default_factory=set)

    def in_lease(self, now_ns: int) -> bool:
        return self.running and self.heard_ns > 0 and now_ns < self.heard_ns + LEASE_NS


@dataclass(slots=True, eq=False)
class Call:
    """A running request: the reason for which records are written."""

    kind: str
    group: str
    member_id: str = ""
    coroutine: Coroutine[Any, Any, Any] | None = None
    on_done: Any = None
    commits: dict[MessageQueue, OffsetCommit] = field(default_factory=dict)
    releases: frozenset[MessageQueue] = frozenset()
    # Replies of brokers during it, and the offset that was stored at that moment.
    told: dict[MessageQueue, list[tuple[QueueState, int | None]]] = field(default_factory=dict)
    # Queues whose offset it has moved.
    moved: set[MessageQueue] = field(default_factory=set)


@dataclass(slots=True)
class Account:
    """Progress after some records."""

    progress: dict[tuple[str, MessageQueue], Entry] = field(default_factory=dict)
    # Progress before the undo of a reset; its owner may still read.
    reverted: dict[tuple[str, MessageQueue], Entry] = field(default_factory=dict)
    # The last epoch of progress that was dropped or undone.
    ended: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    # Reset id → (group, undone).
    resets: dict[str, tuple[str, bool]] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counters: Counters = field(default_factory=lambda: Counters(0, 0, 0))

    def copy(self) -> "Account":
        return Account(
            self.progress.copy(),
            self.reverted.copy(),
            self.ended.copy(),
            self.resets.copy(),
            self.members.copy(),
            self.counters,
        )

    def holder(self, group: str, queue: MessageQueue) -> Entry | None:
        """Return the entry whose owner holds a queue."""
        return self.progress.get((group, queue)) or self.reverted.get((group, queue))

    def has_ended(self, group: str, queue: MessageQueue, epoch: int) -> bool:
        """Return whether progress of an epoch was dropped or undone, and there is none now."""
        key = (group, queue)
        return key not in self.progress and self.ended.get(key, 0) >= epoch

    def _end(self, key: tuple[str, MessageQueue]) -> None:
        if (entry := self.progress.pop(key, None)) is not None:
            self.ended[key] = entry.epoch

    def apply(self, records: Iterable[Record]) -> None:
        for record in records:
            match record:
                case OffsetCommitted(group, queue, offset):
                    key = (group, queue)
                    self.progress[key] = self.progress[key]._replace(offset=offset)
                case ProgressPut(progress):
                    self.progress[progress.group, progress.queue] = entry_of(progress)
                    self.reverted.pop((progress.group, progress.queue), None)
                    if progress.epoch > self.counters.epoch:
                        self.counters = self.counters._replace(epoch=progress.epoch)
                case Removed(group, queue) | QueueDeleted(group, queue, _):
                    self._end((group, queue))
                    self.reverted.pop((group, queue), None)
                case Reverted(progress):
                    self._end((progress.group, progress.queue))
                    self.reverted[progress.group, progress.queue] = entry_of(progress)
                    if progress.epoch > self.counters.epoch:
                        self.counters = self.counters._replace(epoch=progress.epoch)
                case GroupDeleted(group):
                    for key in [key for key in self.progress if key[0] == group]:
                        self._end(key)
                    for key in [key for key in self.reverted if key[0] == group]:
                        del self.reverted[key]
                    for name in [name for name, of in self.resets.items() if of[0] == group]:
                        del self.resets[name]
                    self.members.pop(group, None)
                case ResetApplied():
                    self.resets[record.reset_id] = (record.group, record.undone)
                case MembersChanged(group, members):
                    self.members[group] = tuple(member.member_id for member in members)
                    if not members:
                        del self.members[group]
                case MemberJoined(group, member):
                    known = (who for who in self.members.get(group, ()) if who != member.member_id)
                    self.members[group] = (*known, member.member_id)
                case Counters():
                    self.counters = record
