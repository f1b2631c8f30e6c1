"""Rules that must always be true; checked at every record that the service writes and every reply.

The witness keeps its own account of progress, derived only from the records. It knows the reason of
each record (`Call`) and the true state (`World`, `Member`). It never asks the ledger.

- Progress decreases only by a reset, an undo or a forced commit, or when the queue has lost the
read
  messages: another incarnation, a log without its tail.
- A commit changes progress only under the current epoch, and a refused one changes nothing.
- Every epoch is higher than all before it.
- A member with a valid lease loses a queue only after another one has requested it for the whole
  hand-over time; at no time a second member believes to own a queue.
- A queue that is created after the subscription is read from its oldest message (rule EXACT).
- No progress begins under an incarnation of its group that is known to be over.
- All replies are durable, and a restart finds exactly the durable state.
- No progress is removed unless a topic or a group was deleted.
"""

from offset.simulated.account import Account, Call, Entry, Holding, Member, entry_of
from offset.simulated.service import HANDOVER_SECONDS
from offset.simulated.world import SECOND_NS, View, World

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import NewQueueRule, QueueState, StartReason, StartRule
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import (
    Counters,
    GroupDeleted,
    OffsetCommitted,
    Progress,
    ProgressPut,
    QueueDeleted,
    Record,
    Removed,
    Reverted,
)

HANDOVER_NS = round(HANDOVER_SECONDS * SECOND_NS)


class Witness:
    """Sees every record and every reply.

    Args:
        world: the true state.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.members: dict[tuple[str, str], Member] = {}
        self.written = Account()
        self.durable = Account()
        # Reason of the records that are written now.
        self.cause: Call | None = None
        # The last routes that the service received.
        self.told_view: View = world.view
        # (group, queue, requesting member) → the owner, and the time of the request.
        self._asked: dict[tuple[str, MessageQueue, str], tuple[str, int]] = {}
        # Queues whose holder forced a commit back under its epoch.
        self._forced: dict[tuple[str, MessageQueue], int] = {}

    # Records.

    def on_written(self, records: list[Record]) -> None:
        # Records of a recreated group stay when the progress of the old one is removed.
        kept: dict[str, dict[MessageQueue, Entry]] = {}
        for index, record in enumerate(records):
            if isinstance(record, GroupDeleted):
                entries = self._progress_of(record.group)
                self._check_group_gone(record.group, entries, records[index + 1 :])
                kept[record.group] = entries
            elif isinstance(record, Reverted) and record.progress.group in kept:
                pass
            elif isinstance(record, ProgressPut) and record.progress.group in kept:
                entry = kept[record.progress.group][record.progress.queue]
                assert entry_of(record.progress) == entry, f"{entry} was not kept: {record}"
            else:
                self._check(record)
            self.written.apply([record])

    def _progress_of(self, group: str) -> dict[MessageQueue, Entry]:
        progress = self.written.progress
        return {queue: progress[name, queue] for name, queue in progress if name == group}

    def on_durable(self, records: list[Record]) -> None:
        self.durable.apply(records)

    def _check(self, record: Record) -> None:
        cause = self.cause
        match record:
            case OffsetCommitted():
                assert cause is not None, f"a commit that nobody made: {record}"
                self._check_committed(cause, record)
            case ProgressPut(progress):
                assert cause is not None, f"progress that nobody asked for: {record}"
                self._check_put(cause, progress)
            case Reverted(progress):
                assert cause is not None, record
                assert cause.kind == "undo", record
                before = self.written.progress[progress.group, progress.queue]
                assert progress.epoch > self.written.counters.epoch, record
                assert entry_of(progress) == before._replace(epoch=progress.epoch), record
            case Removed(group, queue):
                assert (group, queue) not in self.written.progress, record
                reverted = self.written.reverted[group, queue]
                if queue.topic in self.told_view.topics:
                    assert cause is not None, record
                    assert queue in cause.releases, f"released, and nobody wanted it: {record}"
                    assert reverted.owner == cause.member_id, f"{cause} releases {reverted}"
                    self._settled(group, queue)
            case QueueDeleted(group, queue, incarnation):
                create_revision = self.told_view.create_revision(queue)
                assert create_revision != incarnation, f"{group} forgets {queue}, which exists"
            case Counters():
                before = self.written.counters
                assert record.epoch >= before.epoch, record
                assert record.starts >= before.starts, record
                assert record.route_revision >= before.route_revision, record
            case _:
                pass

    def _check_group_gone(
        self, group: str, entries: dict[MessageQueue, Entry], behind: list[Record]
    ) -> None:
        known = self.told_view.groups.get(group)
        kept = {
            record.progress.queue
            for record in behind
            if isinstance(record, ProgressPut) and record.progress.group == group
        }
        for queue, entry in entries.items():
            is_later = entry.group_incarnation > self.told_view.revision
            exists = known is not None and known.incarnation == entry.group_incarnation
            if exists or is_later:
                assert queue in kept, f"group {group} exists, and its place on {queue} is dropped"

    def _check_committed(self, call: Call, record: OffsetCommitted) -> None:
        key = (record.group, record.queue)
        before = self.written.progress[key]
        commit = call.commits[record.queue]
        call.moved.add(record.queue)
        assert commit.offset == record.offset, f"{commit} stored as {record}"
        assert commit.epoch == before.epoch, f"{commit} under epoch {before.epoch}"
        if commit.force:
            self._forced[key] = before.epoch
        else:
            assert record.offset >= before.offset, f"progress went back: {before} to {record}"
        log = self._world.logs.get((record.queue, before.incarnation))
        away = self._world.away.get(record.queue.broker, False)
        if log is not None and not away and record.queue in call.told:
            assert record.offset <= max(log.highest, before.offset), f"beyond the end: {record}"

    def _check_put(self, call: Call, after: Progress) -> None:
        key = (after.group, after.queue)
        before = self.written.progress.get(key)
        if before is None or after.epoch != before.epoch:
            known = self.written.counters.epoch
            assert after.epoch > known, f"epoch {after.epoch} given out before {known}: {after}"
        match call.kind:
            case "commit":
                assert before is not None, after
                assert after.queue in call.releases, f"released, and nobody wanted it: {after}"
                assert before.owner == call.member_id, f"released by another: {before}, {call}"
                assert entry_of(after) == before._replace(owner=""), f"{before} to {after}"
                self._settled(after.group, after.queue)
            case "reset" | "undo":
                held = self.written.holder(after.group, after.queue)
                owner = "" if held is None else held.owner
                assert after.owner == owner, f"{held} to {after}"
                assert before is None or after.epoch > before.epoch, f"no new epoch: {after}"
                is_known = before is None or after.incarnation >= before.incarnation
                assert is_known, f"back to a deleted queue: {before} to {after}"
            case "resolve":
                self._check_started(call, before, after)
            case _:
                raise AssertionError(f"{call.kind} moves progress: {after}")

    def _check_started(self, call: Call, before: Entry | None, after: Progress) -> None:
        key = (after.group, after.queue)
        self._check_of_a_group_that_exists(before, after)
        if call.member_id:
            assert after.owner == call.member_id, f"{after.owner} owns what {call} asked for"
        if before is None:
            self._check_first_start(call, after)
            before = self.written.reverted.get(key)
            if before is not None and before.owner not in ("", after.owner):
                self._check_taken(before, after)
        else:
            is_other = after.incarnation != before.incarnation
            if is_other:
                newer = after.incarnation > before.incarnation
                assert newer, f"back to a deleted queue: {before} to {after}"
            elif after.offset != before.offset:
                out_of_range = any(
                    stored == before.offset and not state.min_offset <= stored <= state.max_offset
                    for state, stored in call.told[after.queue]
                )
                assert out_of_range, f"moved without need: {before} to {after}, {call.told}"
            if before.owner not in ("", after.owner) and not is_other:
                self._check_taken(before, after)
        self._forced.pop(key, None)
        if before is not None and before.owner != after.owner:
            self._settled(*key)

    def _check_of_a_group_that_exists(self, before: Entry | None, after: Progress) -> None:
        """A record for a group that is known to be over would count for its successor."""
        if before is not None and before.group_incarnation == after.group_incarnation:
            return
        told = self.told_view
        known = told.groups.get(after.group)
        exists = known is not None and known.incarnation == after.group_incarnation
        assert exists or after.group_incarnation > told.revision, (
            f"progress of a group that is over, where {known} is known: {after}"
        )

    def _check_taken(self, before: Entry, after: Progress) -> None:
        owner = self.members.get((after.group, before.owner))
        if owner is None or before.group_incarnation != after.group_incarnation:
            return
        held = owner.owns.get(after.queue)
        if held is None:
            return
        if self._is_member(owner) and after.queue.topic in owner.topics:
            never = ("nobody", self._world.now_ns)
            asked, since_ns = self._asked.get((after.group, after.queue, after.owner), never)
            waited_ns = self._world.now_ns - since_ns
            assert asked == before.owner, f"{after.owner} never asked {before.owner}: {after}"
            assert waited_ns >= HANDOVER_NS, (
                f"{after.queue} of {after.group} was taken from {before.owner}, whose lease runs, "
                f"by {after.owner} after {waited_ns / SECOND_NS} s"
            )
        held.is_overtaken = True

    def _check_first_start(self, call: Call, after: Progress) -> None:
        view = self._world.view
        group = view.groups.get(after.group)
        subscribed = view.subscriptions.get((after.group, after.queue.topic))
        log = self._world.logs.get((after.queue, after.incarnation))
        told = [state for state, _ in call.told[after.queue]]
        if (
            group is None
            or subscribed is None
            or log is None
            or group.incarnation != after.group_incarnation
            or after.start_reason is StartReason.OTHER_INCARNATION
        ):
            return
        if NewQueueRule(group.config.new_queue_rule) is NewQueueRule.CLASSIC:
            return
        policy = group.config.start_policy
        consume_from = StartRule(int(policy.consume_from))
        first = {state.min_offset for state in told}
        if after.queue.is_retry:
            expected, why = first, "is a retry topic's"
        elif after.incarnation > subscribed:
            expected, why = first, "is new to the group"
            assert after.start_reason is StartReason.NEW_QUEUE, after
        elif consume_from is StartRule.FIRST:
            expected, why = first, "is read from the first"
        elif consume_from is StartRule.TIMESTAMP:
            found = log.offset_at(policy.timestamp_ms)
            expected = {min(max(found, state.min_offset), state.max_offset) for state in told}
            # The search may have used a slightly older state of the log.
            expected |= {state.max_offset for state in told if found >= state.max_offset} | first
            why = "is read from a time"
        else:
            expected, why = {state.max_offset for state in told}, "is read from the last"
        assert after.offset in expected, f"{after.queue} {why}: {expected}, not {after.offset}"

    def told(self, queue: MessageQueue, state: QueueState) -> None:
        """A broker reports a queue's ends; the service uses them later."""
        if self.cause is not None:
            entry = self.written.progress.get((self.cause.group, queue))
            stored = None if entry is None else entry.offset
            self.cause.told.setdefault(queue, []).append((state, stored))

    def group_deleted(self, group: str) -> None:
        """The members of the deleted group are removed, and learn it when they call."""
        known = self.told_view.groups.get(group)
        for member in self.members.values():
            is_later = member.group_incarnation > self.told_view.revision
            is_of_this = known is not None and known.incarnation == member.group_incarnation
            if member.group == group and not is_later and not is_of_this:
                member.heard_ns = 0

    # Members that wait for queues.

    def _is_member(self, member: Member) -> bool:
        group = self._world.view.groups.get(member.group)
        return (
            member.in_lease(self._world.now_ns)
            and group is not None
            and group.incarnation == member.group_incarnation
        )

    def asks(self, group: str, queue: MessageQueue, member_id: str) -> None:
        """A member requests a queue; its wait begins now at the earliest."""
        entry = self.written.holder(group, queue)
        owner = "" if entry is None else entry.owner
        if owner in ("", member_id):
            return
        known = self._asked.get((group, queue, member_id))
        if known is None or known[0] != owner:
            self._asked[group, queue, member_id] = (owner, self._world.now_ns)

    def _settled(self, group: str, queue: MessageQueue) -> None:
        for key in [key for key in self._asked if key[:2] == (group, queue)]:
            del self._asked[key]

    # Replies.

    def started(self, group: str, queue: MessageQueue, epoch: int) -> None:
        """A member got its start: this is durable."""
        key = (group, queue)
        if key in self.written.progress and not self.durable.has_ended(group, queue, epoch):
            kept = self.durable.progress.get(key)
            assert kept is not None, f"{group} was told of a start on {queue} that may be lost"
            assert kept.epoch >= epoch, f"{group} on {queue}: epoch {epoch} may be lost: {kept}"

    def owns(self, member: Member, queue: MessageQueue, holding: Holding) -> None:
        """A member believes from now on that a queue is its own."""
        for other in self.members.values():
            held = other.owns.get(queue) if other.group == member.group else None
            if (
                held is not None
                and other is not member
                and not held.is_overtaken
                and self._is_member(other)
                and (held.incarnation, held.group_incarnation)
                == (holding.incarnation, holding.group_incarnation)
            ):
                raise AssertionError(
                    f"{queue} of {member.group} is read by {other.member_id} ({held}) and "
                    f"{member.member_id} ({holding})"
                )

    def committed(self, call: Call, queue: MessageQueue, offset: int) -> None:
        """A member got the acknowledgement of its commit."""
        key = (call.group, queue)
        commit = call.commits[queue]
        if key in self.written.progress and not self.durable.has_ended(*key, commit.epoch):
            kept = self.durable.progress.get(key)
            assert kept is not None, f"an acknowledged commit may be lost: {commit}"
            is_forced = self._forced.get(key) == commit.epoch
            assert kept.epoch > commit.epoch or is_forced or kept.offset >= offset, (
                f"an acknowledged commit may be lost: {commit}, on disk {kept}"
            )

    def refused(self, call: Call, queue: MessageQueue) -> None:
        assert queue not in call.moved, f"refused, and progress moved: {call.commits[queue]}"

    # Restarts.

    def crashed(self) -> None:
        self.written = self.durable.copy()
        self._asked.clear()
        self._forced.clear()

    def recovered(self, ledger: Ledger) -> None:
        """The service has read its journal: this is exactly the durable state."""
        found = {
            (entry.group, entry.queue): entry_of(entry) for entry in list(ledger.each_progress())
        }
        assert found == self.durable.progress, "a restart changed progress"
        held = {
            key: entry_of(entry) for key in found if (entry := ledger.table.owning_progress(*key))
        }
        assert held == found, "a queue is held by two"
        for key, entry in self.durable.reverted.items():
            kept = ledger.table.owning_progress(*key)
            assert kept is not None, f"a restart forgot who holds {key}"
            assert entry_of(kept) == entry, f"a restart changed who holds {key}"
        assert ledger.counters == self.durable.counters, "a restart changed the counters"
        for reset_id, (_, undone) in self.durable.resets.items():
            assert ledger.resets.find(reset_id).undone == undone, (
                f"a restart changed reset {reset_id}"
            )
        members = {
            group: tuple(member.member_id for member in members)
            for group, members in ledger.members()
        }
        assert members == self.durable.members, "a restart changed the members it remembers"
