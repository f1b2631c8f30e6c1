"""State of the ledger: what its records make, and what can be looked up in it. Pure.

Replaying the records of all operations over an empty state gives the same state, and so does
replaying a snapshot's. No rule is looked at here: a record was checked when it was made.
"""

from collections.abc import Iterable, Iterator, Mapping

from rockoon_core.errors import RouteNotReached
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Stored
from rockoon_offset.in_flight.holders import Holders
from rockoon_offset.in_flight.windows import Windows
from rockoon_offset.members.known_members import KnownMembers
from rockoon_offset.progress.applied_resets import AppliedResets
from rockoon_offset.progress.progress_table import ProgressTable
from rockoon_offset.progress.readers import group_of, in_order, reader_of
from rockoon_offset.progress.records import (
    Acquired,
    Committed,
    Counters,
    Extended,
    GroupDeleted,
    KnownMember,
    Member,
    MemberForgotten,
    MemberJoined,
    MembersChanged,
    Progress,
    Put,
    QueueDeleted,
    Record,
    Removed,
    ResetApplied,
    Reverted,
    Settled,
    WindowPut,
)


class LedgerState:
    """Progress per group and queue, applied resets, and the members a restart has to remember."""

    def __init__(self) -> None:
        self.table = ProgressTable()
        self.windows = Windows()
        self.held = Holders(self.windows)
        self.resets = AppliedResets()
        self._members: dict[str, MembersChanged] = {}
        self.known = KnownMembers()
        self.counters = Counters(epoch=0, starts=0, route_revision=0)

    # Looking.

    def find(self, group: str, queue: MessageQueue) -> Progress | None:
        return self.table.find(group, queue)

    def holder(self, group: str, queue: MessageQueue) -> Progress | None:
        """Whose owner holds a queue: progress, or what it was before it was taken back."""
        return self.table.holder(group, queue)

    def holders(self, group: str) -> Mapping[MessageQueue, Progress]:
        """As `holder`, of all queues."""
        return self.table.holders(group)

    def stored(self, group: str, queue: MessageQueue) -> Stored | None:
        """Progress, or the memory of progress on a deleted queue of the same name."""
        progress = self.find(group, queue)
        if progress is not None:
            return Stored(progress.offset, progress.incarnation)
        incarnation = self.table.gone(group, queue)
        return None if incarnation is None else Stored(None, incarnation)

    def require_reached(self, group: str, queue: MessageQueue, revision: int) -> None:
        """Whether routes are recent enough to say what became of a queue that a group has read.

        A nameserver that lags may be the first to answer after a restart: its routes then still
        have the predecessor of a queue that was deleted and created again.

        Args:
            group: whose progress.
            queue: which.
            revision: of the routes.

        Raises:
            RouteNotReached: progress is on a later queue of the name than the routes can know.
        """
        stored = self.stored(group, queue)
        # The routes of an etcd that was accepted instead of another count again.
        if stored and revision < min(stored.incarnation, self.counters.route_revision):
            raise RouteNotReached(wanted=stored.incarnation, revision=revision)

    def progress_of(self, group: str) -> Mapping[MessageQueue, Progress]:
        return self.table.of(group)

    def groups(self) -> Iterable[str]:
        return self.table.readers()

    def readers(self, group: str) -> list[str]:
        """A group and its members with progress of their own, in order."""
        return [group, *(reader_of(group, name) for name in sorted(self.known.of(group)))]

    def all_progress(self) -> list[Progress]:
        """Progress of all groups and members, in no order: a copy that costs little."""
        return list(self.table)

    def list_progress(self, group: str = "", topic: str = "", broker: str = "") -> list[Progress]:
        """Progress of one group or all; sorted by group and queue. See `each_progress`."""
        return list(self.each_progress(group, topic, broker))

    def each_progress(
        self, group: str = "", topic: str = "", broker: str = ""
    ) -> Iterator[Progress]:
        """Progress in the order of groups, members and queues; to be gone through before anything
        changes.

        Args:
            group: with its members; empty means all.
            topic: empty means all.
            broker: empty means all.
        """
        for name in self.readers(group) if group else sorted(self.groups(), key=in_order):
            for queue, progress in sorted(self.progress_of(name).items()):
                if topic in ("", queue.topic) and broker in ("", queue.broker):
                    yield progress

    def reset(self, reset_id: str) -> ResetApplied:
        """Raises ResetNotFound."""
        return self.resets.find(reset_id)

    def members(self) -> Iterable[MembersChanged]:
        """Of each group that has any."""
        return self._members.values()

    def members_of(self, group: str) -> tuple[Member, ...]:
        found = self._members.get(group)
        return () if found is None else found.members

    # Records.

    def snapshot(self) -> Iterator[Record]:
        """Records that make this ledger out of an empty one, from one moment.

        The copy is taken when the method is called; going through it may happen later and in
        another thread, as what it holds never changes.
        """
        places, resets = self.table.snapshot(), tuple(self.resets)
        members, counters = self._members.copy(), self.counters
        known = list(self.known)
        windows = self.windows.snapshot()

        def records() -> Iterator[Record]:
            yield from places
            # Behind the progress that they belong to.
            yield from windows
            yield from resets
            yield from members.values()
            yield from known
            yield counters

        return records()

    def apply(self, record: Record) -> None:
        """Make a record's change; it was checked when it was made."""
        match record:
            case Acquired():
                self._acquired(record)
            case Settled(group, queue, number, first, messages, stored_at_ms, receiver):
                window = self.windows.of(group, queue)
                holder = window.settle(number, first, messages).holder
                self.table.settle(group, queue, window.floor, receiver or holder, stored_at_ms)
            case Extended(group, queue, number, first, messages, visible_at_ms):
                self.windows.of(group, queue).extend(number, first, messages, visible_at_ms)
            case Committed():
                offset = self.windows.committed(record.group, record.queue, record.offset)
                self.table.commit(*record._replace(offset=offset))
            case WindowPut(group, queue, acquired_to, since, settled, skipped):
                window = self.windows.open(group, queue, self.table.of(group)[queue].offset)
                window.put(acquired_to, since, settled, skipped)
            case Put(progress):
                before = self.table.find(progress.group, progress.queue)
                if before is None or before.epoch != progress.epoch:
                    # Whoever has the epoch reads from the offset on, and what is settled above is
                    # not told to it.
                    self.windows.drop(progress.group, progress.queue)
                self.table.put(progress)
                # Not left to Counters, which is not written with every epoch: after a restart the
                # same number would be given out once more, and a commit of before pass.
                self._epoch_given(progress.epoch)
            case Removed(group, queue):
                self.windows.drop(group, queue)
                self.table.remove(group, queue)
            case Reverted(progress):
                self.windows.drop(progress.group, progress.queue)
                self.table.vacate(progress)
                self._epoch_given(progress.epoch)
            case QueueDeleted(group, queue, incarnation):
                self.windows.drop(group, queue)
                self.table.queue_gone(group, queue, incarnation)
            case KnownMember():
                self.known.apply(record)
            case MemberForgotten(group, member):
                self.known.apply(record)
                self.table.forget({reader_of(group, member)})
            case GroupDeleted(group):
                remembered = self.table.remembered()
                self.table.forget({name for name in remembered if group_of(name) == group})
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

    def _epoch_given(self, epoch: int) -> None:
        if epoch > self.counters.epoch:
            self.counters = self.counters._replace(epoch=epoch)
