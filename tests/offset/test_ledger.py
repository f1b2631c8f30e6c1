"""The ledger's rules, and a replay of its records that restores it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rockoon_core.errors import (
    CommitBehind,
    Fenced,
    InvalidArgument,
    InvalidOffset,
    OffsetBeyondEnd,
    PlanStale,
    ResetNotFound,
    RockoonError,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, QueueState, StartReason
from rockoon_offset.progress import progress_table
from rockoon_offset.progress.ledger import OFFSET_MAX, Ledger, OffsetCommit
from rockoon_offset.progress.ledger_state import RESETS_MAX
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.progress.records import (
    GroupMember,
    MembersChanged,
    Progress,
    Record,
    decode,
    encode,
)
from rockoon_offset.progress.resets import Target, TargetKind, step
from support.seeds import examples

QUEUE = MessageQueue("orders", "broker-a", 0)
COMMITTED = Decision(0, StartReason.COMMITTED, "as stored")


def last(offset: int, gap: int = 0) -> Decision:
    return Decision(offset, StartReason.LAST, "because", gap)


def started(
    ledger: Ledger, member: str = "m1", offset: int = 10, queue: MessageQueue = QUEUE
) -> Progress:
    ledger.start("g", 5, queue, 7, last(offset), member, 1000)
    return found(ledger, queue)


def found(ledger: Ledger, queue: MessageQueue = QUEUE) -> Progress:
    progress = ledger.find("g", queue)
    assert progress is not None
    return progress


def commit(
    ledger: Ledger, offset: int, epoch: int, end: int | None = None, **more: Any
) -> list[Record]:
    wish = OffsetCommit(
        "g", QUEUE, offset, epoch, "m1", more.get("metadata", ""), more.get("force", False)
    )
    return ledger.commit(wish, more.get("incarnation", 7), end, 2000)


def state(ledger: Ledger) -> list[Record]:
    return sorted(ledger.snapshot(), key=repr)


def replayed(records: list[Record]) -> Ledger:
    ledger = Ledger()
    for record in records:
        ledger.apply(decode(encode(record)))
    return ledger


def test_a_start_is_stored_with_its_reason() -> None:
    ledger = Ledger()
    progress = started(ledger)
    assert (progress.offset, progress.epoch, progress.owner) == (10, 1, "m1")
    assert (progress.start_offset, progress.start_reason) == (10, StartReason.LAST)
    assert progress.started_at_ms == 1000


def test_the_same_owner_keeps_its_epoch_and_another_takes_a_higher_one() -> None:
    ledger = Ledger()
    first = started(ledger)
    assert ledger.start("g", 5, QUEUE, 7, COMMITTED, "m1", 1001) == []
    ledger.start("g", 5, QUEUE, 7, COMMITTED, "m2", 1002)
    assert found(ledger).owner == "m2"
    assert found(ledger).epoch > first.epoch
    assert found(ledger).start_reason is StartReason.LAST


def test_a_reader_outside_membership_shares_the_owner_s_epoch() -> None:
    ledger = Ledger()
    started(ledger)
    assert ledger.start("g", 5, QUEUE, 7, COMMITTED, "", 1001) == []
    assert found(ledger).owner == "m1"


def test_the_former_owner_s_commit_is_refused_not_merged() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    ledger.start("g", 5, QUEUE, 7, COMMITTED, "m2", 1002)
    for force in (False, True):
        with pytest.raises(Fenced):
            commit(ledger, 50, epoch, force=force)
    assert found(ledger).offset == 10


def test_commits_go_forward_only_unless_forced() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    commit(ledger, 20, epoch)
    with pytest.raises(CommitBehind):
        commit(ledger, 19, epoch)
    commit(ledger, 19, epoch, force=True)
    assert found(ledger).offset == 19


def test_committing_what_is_stored_is_a_success_that_writes_nothing() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    assert commit(ledger, 10, epoch) == []
    assert len(commit(ledger, 10, epoch, metadata="other")) == 1
    assert found(ledger).metadata == "other"


@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1, -(1 << 63)])
def test_a_number_that_is_no_offset_is_refused(offset: int) -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    with pytest.raises(InvalidOffset):
        commit(ledger, offset, epoch, force=True)


def test_a_commit_beyond_the_queue_s_end_is_refused() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    with pytest.raises(OffsetBeyondEnd):
        commit(ledger, 31, epoch, end=30)
    commit(ledger, 30, epoch, end=30)
    # The log has lost its tail since; a repeated report is no step beyond.
    assert commit(ledger, 30, epoch, end=25) == []


def test_a_commit_without_a_start_says_what_to_do() -> None:
    with pytest.raises(Fenced, match="resolve it first"):
        commit(Ledger(), 1, 0)


def test_a_commit_for_a_deleted_queue_s_successor_is_refused() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    with pytest.raises(Fenced, match="created again"):
        commit(ledger, 11, epoch, incarnation=9)


def test_oversized_metadata_is_refused() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    with pytest.raises(InvalidArgument):
        commit(ledger, 11, epoch, metadata="ü" * 2049)


def test_gaps_add_up_over_decisions() -> None:
    ledger = Ledger()
    ledger.start("g", 5, QUEUE, 7, last(10, gap=3), "m1", 1)
    ledger.start("g", 5, QUEUE, 7, Decision(50, StartReason.BELOW_MIN, "x", 40), "m1", 2)
    assert found(ledger).gap_total == 43


def test_moving_progress_takes_a_new_epoch_also_for_the_same_owner() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    ledger.start("g", 5, QUEUE, 9, Decision(0, StartReason.OTHER_INCARNATION, "x"), "m1", 2)
    assert found(ledger).incarnation == 9
    with pytest.raises(Fenced):
        commit(ledger, 11, epoch, incarnation=9)


def test_an_epoch_from_before_a_deletion_never_fits_the_successor() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    Reconciliation(ledger).delete_group("g", 100)
    assert ledger.find("g", QUEUE) is None
    assert started(ledger).epoch > epoch
    again = replayed(list(ledger.snapshot()))
    Reconciliation(ledger).delete_group("g", 100)
    Reconciliation(again).delete_group("g", 100)
    assert started(again).epoch == started(ledger).epoch


def test_a_deleted_topic_leaves_no_offset_but_the_fact_that_it_was_read() -> None:
    ledger = Ledger()
    started(ledger)
    Reconciliation(ledger).delete_topics(["orders"])
    assert ledger.find("g", QUEUE) is None
    assert list(ledger.each_progress()) == []
    stored = ledger.stored("g", QUEUE)
    assert stored is not None
    assert (stored.offset, stored.incarnation) == (None, 7)
    # Once the recreated queue is decided, this is over.
    ledger.start("g", 5, QUEUE, 9, Decision(0, StartReason.OTHER_INCARNATION, "x"), "m1", 2)
    stored = ledger.stored("g", QUEUE)
    assert stored is not None
    assert (stored.offset, stored.incarnation) == (0, 9)


def test_deletions_that_were_missed_are_made_good_at_the_next_snapshot_of_the_routes() -> None:
    ledger = Ledger()
    started(ledger)
    ledger.start("gone", 6, QUEUE, 7, last(1), "", 1)
    ledger.start("again", 6, QUEUE, 7, last(1), "", 1)
    other = MessageQueue("dropped", "broker-a", 0)
    ledger.start("g", 5, other, 8, last(1), "", 1)
    Reconciliation(ledger).compare_with_routes(100, frozenset({"orders"}), {"g": 5, "again": 99})
    assert [(entry.group, entry.queue) for entry in list(ledger.each_progress())] == [("g", QUEUE)]


def test_routes_older_than_those_seen_before_cost_nobody_its_place() -> None:
    ledger = Ledger()
    started(ledger)
    Reconciliation(ledger).compare_with_routes(100, frozenset({"orders"}), {"g": 5})
    assert Reconciliation(ledger).compare_with_routes(99, frozenset(), {}) == []
    assert found(ledger).offset == 10
    Reconciliation(ledger).compare_with_routes(101, frozenset(), {})
    assert list(ledger.each_progress()) == []


def test_a_late_word_of_a_deletion_does_not_touch_the_group_s_successor() -> None:
    ledger = Ledger()
    ledger.start("g", 12, QUEUE, 7, last(10), "m1", 1000)
    assert Reconciliation(ledger).delete_group("g", 10) == []
    assert Reconciliation(ledger).compare_with_routes(11, frozenset({"orders"}), {}) != []
    assert found(ledger).offset == 10
    Reconciliation(ledger).delete_group("g", 12)
    assert ledger.find("g", QUEUE) is None


def plan(ledger: Ledger, to: int) -> Any:
    target = Target(TargetKind.OFFSET, to)
    return step(QUEUE, target, ledger.find("g", QUEUE), 7, QueueState(0, 100), None)


def test_a_reset_fences_commits_in_flight_and_can_be_undone() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    ledger.apply_reset("r1", "g", 5, "orders", [plan(ledger, 3)], "ops", 5)
    assert (found(ledger).offset, found(ledger).start_reason) == (3, StartReason.RESET)
    with pytest.raises(Fenced):
        commit(ledger, 50, epoch)
    commit(ledger, 4, found(ledger).epoch)
    after_reset = found(ledger).epoch
    ledger.undo_reset("r1", 5, "ops", 6)
    assert found(ledger).offset == 10
    with pytest.raises(Fenced):
        commit(ledger, 50, after_reset)
    assert ledger.resets.find("r1").undone
    assert ledger.undo_reset("r1", 5, "ops", 7) == []


def test_a_reset_is_refused_when_progress_moved_since_the_plan() -> None:
    ledger = Ledger()
    epoch = started(ledger).epoch
    planned = plan(ledger, 3)
    commit(ledger, 11, epoch)
    with pytest.raises(PlanStale):
        ledger.apply_reset("r1", "g", 5, "orders", [planned], "ops", 5)
    planned = plan(ledger, 3)
    ledger.start("g", 5, QUEUE, 7, COMMITTED, "m2", 6)
    with pytest.raises(PlanStale):
        ledger.apply_reset("r1", "g", 5, "orders", [planned], "ops", 5)
    assert found(ledger).offset == 11


def test_undoing_a_reset_of_a_queue_without_progress_removes_it_again() -> None:
    ledger = Ledger()
    ledger.apply_reset("r1", "g", 5, "orders", [plan(ledger, 3)], "ops", 5)
    assert found(ledger).offset == 3
    ledger.undo_reset("r1", 5, "ops", 6)
    assert ledger.find("g", QUEUE) is None


def test_undoing_a_reset_takes_no_queue_from_its_owner() -> None:
    ledger = Ledger()
    ledger.apply_reset("r1", "g", 5, "orders", [plan(ledger, 3)], "ops", 5)
    records = ledger.start("g", 5, QUEUE, 7, COMMITTED, "m1", 6)
    epoch = found(ledger).epoch
    ledger.undo_reset("r1", 5, "ops", 7)
    assert ledger.find("g", QUEUE) is None
    assert ledger.stored("g", QUEUE) is None
    with pytest.raises(Fenced):
        commit(ledger, 4, epoch)
    held = ledger.table.owning_progress("g", QUEUE)
    assert held is not None
    assert (held.owner, held.epoch > epoch) == ("m1", True)
    again = Ledger()
    for record in ledger.snapshot():
        again.apply(decode(encode(record)))
    assert again.table.owning_progress("g", QUEUE) == held
    assert again.counters == ledger.counters
    # Readers outside membership take it from no member, and a reset does not either.
    again.start("g", 5, QUEUE, 7, COMMITTED, "", 8)
    assert (found(again).owner, found(again).epoch > held.epoch) == ("m1", True)
    assert records
    ledger.apply_reset("r2", "g", 5, "orders", [plan(ledger, 9)], "ops", 9)
    assert found(ledger).owner == "m1"


def test_who_holds_a_queue_without_progress_is_forgotten_like_progress() -> None:
    def reverted() -> Ledger:
        ledger = Ledger()
        ledger.apply_reset("r1", "g", 5, "orders", [plan(ledger, 3)], "ops", 5)
        ledger.start("g", 5, QUEUE, 7, COMMITTED, "m1", 6)
        ledger.undo_reset("r1", 5, "ops", 7)
        return ledger

    ledger = reverted()
    assert ledger.release("g", QUEUE, "m2") == []
    assert ledger.release("g", QUEUE, "m1")
    assert ledger.table.owning_progress("g", QUEUE) is None
    ledger = reverted()
    Reconciliation(ledger).delete_topics(["orders"])
    assert ledger.table.owning_progress("g", QUEUE) is None
    assert ledger.stored("g", QUEUE) is None
    ledger = reverted()
    assert Reconciliation(ledger).delete_group("g", 4) == []
    assert Reconciliation(ledger).delete_group("g", 9, incarnation=5) == []
    Reconciliation(ledger).delete_group("g", 9)
    assert ledger.table.owning_progress("g", QUEUE) is None
    ledger = reverted()
    Reconciliation(ledger).compare_with_routes(9, frozenset(), {"g": 5})
    assert ledger.table.owning_progress("g", QUEUE) is None


def test_a_reset_is_not_undone_on_another_incarnation() -> None:
    ledger = Ledger()
    started(ledger)
    ledger.apply_reset("r1", "g", 5, "orders", [plan(ledger, 3)], "ops", 5)
    ledger.start("g", 5, QUEUE, 9, Decision(0, StartReason.OTHER_INCARNATION, "x"), "m1", 2)
    with pytest.raises(PlanStale):
        ledger.undo_reset("r1", 5, "ops", 6)


@pytest.mark.parametrize("deletion", ["seen", "missed"])
def test_undoing_a_reset_gives_a_queue_no_offset_of_its_predecessor(deletion: str) -> None:
    ledger = Ledger()
    ledger.start("g", 5, QUEUE, 6, last(50), "m1", 1000)
    if deletion == "seen":
        Reconciliation(ledger).delete_topics(["orders"])
    ledger.apply_reset("r1", "g", 5, "orders", [plan(ledger, 80)], "ops", 5)
    assert found(ledger).incarnation == 7
    ledger.undo_reset("r1", 5, "ops", 6)
    # At the beginning of a queue of another incarnation.
    assert found(ledger).offset == 0


def test_applied_resets_are_remembered_up_to_a_bound() -> None:
    ledger = Ledger()
    for number in range(RESETS_MAX + 5):
        ledger.apply_reset(f"r{number}", "g", 5, "orders", [plan(ledger, 3)], "ops", 5)
    with pytest.raises(ResetNotFound):
        ledger.resets.find("r4")
    assert ledger.resets.find("r5").operator == "ops"


def test_memory_of_deleted_queues_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_table, "DELETED_QUEUES_MAX", 2000)
    ledger = Ledger()
    for number in range(3):
        for queue_id in range(1000):
            ledger.start("g", 5, MessageQueue(f"t{number}", "b", queue_id), 7, last(0), "", 0)
    Reconciliation(ledger).delete_topics({f"t{number}" for number in range(3)})
    assert ledger.stored("g", MessageQueue("t0", "b", 0)) is None
    assert ledger.stored("g", MessageQueue("t1", "b", 0)) is not None


GROUPS = st.sampled_from(["g", "h"])
QUEUES = st.builds(
    MessageQueue, st.sampled_from(["t", "%RETRY%g"]), st.sampled_from(["a", "b"]), st.integers(0, 1)
)
MEMBERS = st.sampled_from(["", "m1", "m2"])
REASONS = st.sampled_from(list(StartReason))
OFFSETS = st.integers(-2, 20)
OPERATIONS = st.one_of(
    st.tuples(st.just("start"), GROUPS, QUEUES, MEMBERS, REASONS, st.integers(0, 20)),
    st.tuples(st.just("commit"), GROUPS, QUEUES, OFFSETS, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("reset"), GROUPS, QUEUES, st.integers(0, 20)),
    st.tuples(st.just("undo"), GROUPS),
    st.tuples(st.just("import"), GROUPS, QUEUES, st.integers(0, 20)),
    st.tuples(st.just("forget group"), GROUPS),
    st.tuples(st.just("forget topic"), st.sampled_from(["t", "%RETRY%g"])),
    st.tuples(st.just("members"), GROUPS, st.lists(st.sampled_from(["m1", "m2"]), unique=True)),
)


def perform(ledger: Ledger, operation: tuple[Any, ...], number: int) -> list[Record]:
    match operation:
        case ("start", group, queue, member, reason, offset):
            decision = Decision(offset, reason, "why", 1)
            return ledger.start(group, 5, queue, 7, decision, member, number)
        case ("commit", group, queue, offset, epoch_back, force):
            progress = ledger.find(group, queue)
            epoch = (progress.epoch if progress else 0) - epoch_back
            wish = OffsetCommit(group, queue, offset, epoch, "m", f"meta {number}", force)
            before = progress.offset if progress else 0
            records = ledger.commit(wish, 7, None, number)
            assert force or ledger.table.of(group)[queue].offset >= before
            return records
        case ("reset", group, queue, to):
            target = Target(TargetKind.OFFSET, to)
            planned = step(queue, target, ledger.find(group, queue), 7, QueueState(0, 15), None)
            assert planned is not None
            return ledger.apply_reset(f"{group}-r", group, 5, "t", [planned], "op", number)
        case ("undo", group):
            return ledger.undo_reset(f"{group}-r", 5, "op", number)
        case ("import", group, queue, offset):
            decision = Decision(offset, StartReason.IMPORTED, "why")
            return ledger.import_offset(group, 5, queue, 7, decision, number)
        case ("forget group", group):
            return Reconciliation(ledger).delete_group(group, 100)
        case ("forget topic", topic):
            return Reconciliation(ledger).delete_topics([topic])
        case (_, group, names):
            members = tuple(GroupMember(name, "i", 1, (("t", "*"),), "", number) for name in names)
            return ledger.members_changed(MembersChanged(group, members))
    raise AssertionError(operation)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_replay_gives_the_live_state_and_epochs_are_never_given_twice(
    operations: list[tuple[Any, ...]],
) -> None:
    live, journal = Ledger(), list[Record]()
    epochs: set[tuple[str, MessageQueue, int]] = set()
    for number, operation in enumerate(operations):
        before = {entry.epoch for entry in list(live.each_progress())}
        try:
            records = perform(live, operation, number)
        except RockoonError:
            continue
        journal += records
        after = [(entry.group, entry.queue, entry.epoch) for entry in list(live.each_progress())]
        fresh = {entry for entry in after if entry[2] not in before}
        assert not fresh & epochs
        epochs |= fresh
        assert len({epoch for _, _, epoch in after}) == len(after)
    assert state(replayed(journal)) == state(live)
    assert state(replayed(list(live.snapshot()))) == state(live)
