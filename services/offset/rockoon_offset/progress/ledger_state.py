"""State of the ledger: effect of each record, queries, and the resets that can be undone. Pure.

Replaying the records of all operations on an empty state gives the same state, and so does
replaying the records of a snapshot. Records are not checked here: the operations checked them.
"""

from collections.abc import Iterable, Iterator

from rockoon_core.errors import ResetNotFound, RouteNotReached
from rockoon_core.message_queue import MessageQueue
from rockoon_core.reset_bounds import RESET_OFFSETS_MAX, RESETS_MAX
from rockoon_core.start_position import StoredProgress
from rockoon_offset.in_flight.window import Holders, Windows
from rockoon_offset.members.known_members import KnownMembers
from rockoon_offset.progress.progress_table import ProgressTable
from rockoon_offset.progress.readers import group_of, in_order, reader_of
from rockoon_offset.progress.records import (
    Acquired,
    Counters,
    Extended,
    GroupDeleted,
    GroupMember,
    KnownMember,
    MemberForgotten,
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
    Settled,
    WindowPut,
)


class AppliedResets:
    def __init__(self) -> None:
        # The oldest first.
        self._resets: dict[str, ResetApplied] = {}
        self._steps = 0

    def find(self, reset_id: str) -> ResetApplied:
        """Return an applied reset. Raises ResetNotFound if it was never applied, or is too old."""
        found = self.get(reset_id)
        if found is None:
            raise ResetNotFound(reset=reset_id)
        return found

    def get(self, reset_id: str) -> ResetApplied | None:
        return self._resets.get(reset_id)

    def has_any(self, group: str) -> bool:
        return any(reset.group == group for reset in self._resets.values())

    def __iter__(self) -> Iterator[ResetApplied]:
        return iter(tuple(self._resets.values()))

    def apply(self, reset: ResetApplied) -> None:
        """Add or replace a reset; beyond a bound, the oldest resets are removed."""
        before = self._resets.get(reset.reset_id)
        self._resets[reset.reset_id] = reset
        self._steps += len(reset.steps) - (len(before.steps) if before else 0)
        while len(self._resets) > 1 and (
            len(self._resets) > RESETS_MAX or self._steps > RESET_OFFSETS_MAX
        ):
            oldest = self._resets.pop(next(iter(self._resets)))
            self._steps -= len(oldest.steps)

    def drop_group(self, group: str) -> None:
        kept = {name: reset for name, reset in self._resets.items() if reset.group != group}
        self._resets = kept
        self._steps = sum(len(reset.steps) for reset in kept.values())


class LedgerState:
    """The ledger in memory: progress by reader and queue, windows, resets, members."""

    def __init__(self) -> None:
        self.table = ProgressTable()
        self.windows = Windows()
        self.held = Holders(self.windows)
        self.resets = AppliedResets()
        self._members: dict[str, MembersChanged] = {}
        self.known = KnownMembers()
        self.counters = Counters(epoch=0, starts=0, route_revision=0)

    # Queries.

    def find(self, group: str, queue: MessageQueue) -> Progress | None:
        return self.table.find(group, queue)

    def stored(self, group: str, queue: MessageQueue) -> StoredProgress | None:
        """Return a reader's progress on a queue, or the incarnation of a deleted queue of the same
        name on which it had progress.
        """
        progress = self.find(group, queue)
        if progress is not None:
            return StoredProgress(progress.offset, progress.incarnation)
        incarnation = self.table.deleted(group, queue)
        return None if incarnation is None else StoredProgress(None, incarnation)

    def require_reached(self, group: str, queue: MessageQueue, revision: int) -> None:
        """Raise RouteNotReached if progress is on a newer queue than the routes can know.

        After a restart, a nameserver that lags may answer first. Its routes may still have the
        former queue of a name that was deleted and created again.

        Args:
            revision: revision of the routes.
        """
        stored = self.stored(group, queue)
        # `route_revision` can be lower than the incarnation after a change of the etcd, whose
        # revisions start again.
        if stored and revision < min(stored.incarnation, self.counters.route_revision):
            raise RouteNotReached(wanted=stored.incarnation, revision=revision)

    def readers(self, group: str) -> list[str]:
        """Return the names of a group's readers: the group, and its known members in order."""
        return [group, *(reader_of(group, name) for name in sorted(self.known.of(group)))]

    def all_progress(self) -> list[Progress]:
        """Return the progress of all readers, in no order: a cheap copy."""
        return list(self.table)

    def each_progress(
        self, group: str = "", topic: str = "", broker: str = ""
    ) -> Iterator[Progress]:
        """Yield progress, sorted by group, member and queue. Consume it before any change.

        Args:
            group: a group with its members; empty: all groups.
            topic: empty: all topics.
            broker: empty: all brokers.
        """
        for name in self.readers(group) if group else sorted(self.table.readers(), key=in_order):
            for queue, progress in sorted(self.table.of(name).items()):
                if topic in ("", queue.topic) and broker in ("", queue.broker):
                    yield progress

    def members(self) -> Iterable[MembersChanged]:
        """Return the members of each group that has members."""
        return self._members.values()

    def members_of(self, group: str) -> tuple[GroupMember, ...]:
        found = self._members.get(group)
        return () if found is None else found.members

    # Records.

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that restore the current ledger from an empty one.

        The call copies the state, whose entries are immutable. So the iterator may run later and in
        another thread.
        """
        progress, resets = self.table.snapshot(), tuple(self.resets)
        members, counters = self._members.copy(), self.counters
        known = list(self.known)
        windows = self.windows.snapshot()

        def records() -> Iterator[Record]:
            yield from progress
            # After the progress that they belong to.
            yield from windows
            yield from resets
            yield from members.values()
            yield from known
            yield counters

        return records()

    def apply(self, record: Record) -> None:
        """Apply one record to the state, without checks."""
        match record:
            case Acquired():
                self._acquired(record)
            case Settled(group, queue, number, first, messages, stored_at_ms, receiver):
                window = self.windows.of(group, queue)
                holder = window.settle(number, first, messages).holder
                self.table.settle(group, queue, window.floor, receiver or holder, stored_at_ms)
            case Extended(group, queue, number, first, messages, visible_at_ms):
                self.windows.of(group, queue).extend(number, first, messages, visible_at_ms)
            case OffsetCommitted():
                offset = self.windows.committed(record.group, record.queue, record.offset)
                self.table.commit(*record._replace(offset=offset))
            case WindowPut(group, queue, acquired_to, since, settled, skipped):
                window = self.windows.open(group, queue, self.table.of(group)[queue].offset)
                window.put(acquired_to, since, settled, skipped)
            case ProgressPut(progress):
                before = self.table.find(progress.group, progress.queue)
                if before is None or before.epoch != progress.epoch:
                    # The reader of the new epoch reads from the offset on, and does not know of
                    # settled messages above it.
                    self.windows.drop(progress.group, progress.queue)
                self.table.put(progress)
                # Counters is not written with every epoch. Without this line, a restart could use
                # an epoch twice, and a commit of its first use would be accepted.
                self._epoch_used(progress.epoch)
            case Removed(group, queue):
                self.windows.drop(group, queue)
                self.table.remove(group, queue)
            case Reverted(progress):
                self.windows.drop(progress.group, progress.queue)
                self.table.revert(progress)
                self._epoch_used(progress.epoch)
            case QueueDeleted(group, queue, incarnation):
                self.windows.drop(group, queue)
                self.table.queue_deleted(group, queue, incarnation)
            case KnownMember():
                self.known.apply(record)
            case MemberForgotten(group, member):
                self.known.apply(record)
                self.table.remove_readers({reader_of(group, member)})
            case GroupDeleted(group):
                known = self.table.known_readers()
                self.table.remove_readers({name for name in known if group_of(name) == group})
                self.windows.drop_group(group)
                self.known.drop_group(group)
                self._members.pop(group, None)
                self.resets.drop_group(group)
            case ResetApplied():
                self.resets.apply(record)
            case MembersChanged(group, members):
                if members:
                    self._members[group] = record
                else:
                    self._members.pop(group, None)
            case MemberJoined(group, member):
                others = tuple(
                    each for each in self.members_of(group) if each.member_id != member.member_id
                )
                self._members[group] = MembersChanged(group, (*others, member))
            case Counters():
                self.counters = record

    def _acquired(self, record: Acquired) -> None:
        offset = self.table.of(record.group)[record.queue].offset
        self.windows.open(record.group, record.queue, offset).acquire(*record[2:])
        if record.number > self.counters.acquisition:
            self.counters = self.counters._replace(acquisition=record.number)
        if record.held_until_ms:
            self.held.add(record)

    def apply_all(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.apply(record)
        return records

    def _epoch_used(self, epoch: int) -> None:
        if epoch > self.counters.epoch:
            self.counters = self.counters._replace(epoch=epoch)
