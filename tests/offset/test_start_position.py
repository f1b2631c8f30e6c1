"""Start positions of readers: every reason, both rules."""

from dataclasses import replace

import pytest

from rockoon_core import start_position
from rockoon_core.errors import InvalidOffset, OffsetBeyondEnd
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import (
    Facts,
    GroupRules,
    NewQueueRule,
    OutOfRange,
    QueueState,
    StartPolicy,
    StartReason,
    StartRule,
    StoredProgress,
    decide,
    effective_policy,
    search_timestamp_ms,
)
from rockoon_proto.v1 import nameserver_pb2, offset_pb2

QUEUE = MessageQueue("orders", "broker-a", 3)
EXACT = GroupRules(NewQueueRule.EXACT)
CLASSIC = GroupRules(NewQueueRule.CLASSIC)
# The group subscribed at revision 20: created at 10 is older, created at 30 is newer.
OLD = Facts(QUEUE, QueueState(5, 100), create_revision=10, subscription_revision=20, rules=EXACT)
NEW = replace(OLD, create_revision=30)


def with_policy(facts: Facts, policy: StartPolicy) -> Facts:
    return replace(facts, rules=replace(facts.rules, policy=policy))


def outcome(facts: Facts, at_time: int | None = None) -> tuple[StartReason, int, int]:
    decision = decide(facts, at_time)
    assert decision.explanation
    return decision.reason, decision.offset, decision.gap


@pytest.mark.parametrize("offset", [5, 50, 100])
def test_stored_progress_that_fits_is_where_reading_goes_on(offset: int) -> None:
    facts = replace(OLD, stored=StoredProgress(offset, 10))
    assert outcome(facts) == (StartReason.COMMITTED, offset, 0)


def test_stored_progress_wins_over_the_policy_over_retry_topics_and_over_a_new_queue() -> None:
    first = StartPolicy(StartRule.FIRST)
    facts = with_policy(replace(NEW, stored=StoredProgress(50, 30)), first)
    assert outcome(facts) == (StartReason.COMMITTED, 50, 0)
    retry = replace(facts, queue=MessageQueue("%RETRY%g", "broker-a", 0))
    assert outcome(retry) == (StartReason.COMMITTED, 50, 0)


def test_a_queue_born_after_the_group_subscribed_is_read_from_its_first_message() -> None:
    state = QueueState(0, 100, first_in_memory=False)
    for consume_from in StartRule:
        facts = with_policy(replace(NEW, state=state), StartPolicy(consume_from))
        assert outcome(facts) == (StartReason.NEW_QUEUE, 0, 0)


def test_what_a_new_queue_lost_to_retention_before_the_group_came_is_counted() -> None:
    assert outcome(NEW) == (StartReason.NEW_QUEUE, 5, 5)
    assert "5 messages were deleted" in decide(NEW).explanation


def test_a_queue_that_is_as_old_as_the_subscription_is_not_new() -> None:
    assert outcome(replace(OLD, create_revision=20))[0] is StartReason.LAST


@pytest.mark.parametrize(
    ("policy", "at_time", "expected"),
    [
        (StartPolicy(StartRule.LAST), None, (StartReason.LAST, 100, 0)),
        (StartPolicy(), None, (StartReason.LAST, 100, 0)),
        (StartPolicy(StartRule.FIRST), None, (StartReason.FIRST, 5, 0)),
        (StartPolicy(StartRule.TIMESTAMP, timestamp_ms=7), 42, (StartReason.TIMESTAMP, 42, 0)),
        (StartPolicy(StartRule.DURATION, duration_ms=7), 42, (StartReason.DURATION, 42, 0)),
        (StartPolicy(StartRule.TAIL, tail_messages=10), None, (StartReason.TAIL, 90, 0)),
        (StartPolicy(StartRule.TAIL, tail_messages=0), None, (StartReason.TAIL, 100, 0)),
        (StartPolicy(StartRule.TAIL, tail_messages=1000), None, (StartReason.TAIL, 5, 0)),
        # A search result outside the queue, as for an empty one, is limited to it.
        (StartPolicy(StartRule.TIMESTAMP, timestamp_ms=7), 0, (StartReason.TIMESTAMP, 5, 0)),
    ],
)
def test_an_older_queue_without_progress_is_read_by_the_policy(
    policy: StartPolicy, at_time: int | None, expected: tuple[StartReason, int, int]
) -> None:
    assert outcome(with_policy(OLD, policy), at_time) == expected


def test_the_log_s_temperature_does_not_matter_to_the_exact_rule() -> None:
    # RocketMQ replays the whole history here although LAST was requested.
    warm = replace(OLD, state=QueueState(0, 100, first_in_memory=True))
    assert outcome(warm) == (StartReason.LAST, 100, 0)
    # And skips all messages here although the queue is new.
    cold = replace(NEW, state=QueueState(0, 100, first_in_memory=False))
    assert outcome(cold) == (StartReason.NEW_QUEUE, 0, 0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # Empty: 4.x replies 0, so that no message sent in the meantime is skipped.
        (QueueState(0, 0, None), (StartReason.NEW_QUEUE, 0, 0)),
        (QueueState(0, 100, True), (StartReason.NEW_QUEUE, 0, 0)),
        (QueueState(0, 100, False), (StartReason.LAST, 100, 0)),
        (QueueState(5, 100, None), (StartReason.LAST, 100, 0)),
        # Emptied by retention: its first offset is not 0 any more.
        (QueueState(100, 100, None), (StartReason.LAST, 100, 0)),
    ],
)
@pytest.mark.parametrize("create_revision", [10, 30])
def test_the_classic_rule_guesses_as_rocketmq_4_does_whatever_the_revisions_say(
    state: QueueState, expected: tuple[StartReason, int, int], create_revision: int
) -> None:
    facts = replace(OLD, rules=CLASSIC, state=state, create_revision=create_revision)
    assert outcome(facts) == expected


# Three policies and their results on a queue of 15 messages. The time of TIMESTAMP is that of
# offset 10.
GROWN_POLICIES = (
    StartPolicy(StartRule.FIRST),
    StartPolicy(StartRule.LAST),
    StartPolicy(StartRule.TIMESTAMP, timestamp_ms=7),
)
BY_POLICY = ((StartReason.FIRST, 0), (StartReason.LAST, 15), (StartReason.TIMESTAMP, 10))
FROM_FIRST = ((StartReason.NEW_QUEUE, 0),) * 3


@pytest.mark.parametrize("growth_broker", ["broker-a", "broker-b"])
@pytest.mark.parametrize(
    ("rules", "subscribed", "first_in_memory", "expected"),
    [
        # The group subscribed after the growth.
        (EXACT, 40, True, BY_POLICY),
        (EXACT, 40, False, BY_POLICY),
        # It ran, lagged or was stopped during the growth, and asks early or late.
        (EXACT, 20, True, FROM_FIRST),
        (EXACT, 20, False, FROM_FIRST),
        # CLASSIC replays a queue whose start is in memory, and applies the policy to other queues.
        (CLASSIC, 40, True, FROM_FIRST),
        (CLASSIC, 40, False, BY_POLICY),
        (CLASSIC, 20, True, FROM_FIRST),
        (CLASSIC, 20, False, BY_POLICY),
    ],
)
def test_a_queue_added_to_a_topic_is_read_from_its_start_or_by_the_policy(
    rules: GroupRules,
    subscribed: int,
    first_in_memory: bool,
    expected: tuple[tuple[StartReason, int], ...],
    growth_broker: str,
) -> None:
    added = Facts(
        MessageQueue("orders", growth_broker, 2),
        QueueState(0, 15, first_in_memory=first_in_memory),
        create_revision=30,
        subscription_revision=subscribed,
        rules=rules,
    )
    found = [outcome(with_policy(added, policy), at_time=10) for policy in GROWN_POLICIES]
    assert found == [(reason, offset, 0) for reason, offset in expected]


@pytest.mark.parametrize("rules", [EXACT, CLASSIC])
def test_a_retry_topic_is_read_from_its_oldest_message_whatever_the_policy(
    rules: GroupRules,
) -> None:
    facts = replace(OLD, queue=MessageQueue("%RETRY%g", "broker-a", 0), rules=rules)
    assert outcome(facts) == (StartReason.RETRY_TOPIC, 5, 0)


@pytest.mark.parametrize(
    ("policy", "offset"),
    [(OutOfRange.UNSPECIFIED, 5), (OutOfRange.FIRST, 5), (OutOfRange.LAST, 100)],
)
def test_retention_passed_the_reader(policy: OutOfRange, offset: int) -> None:
    facts = replace(OLD, stored=StoredProgress(2, 10), rules=replace(EXACT, below_min=policy))
    assert outcome(facts) == (StartReason.BELOW_MIN, offset, 3)


@pytest.mark.parametrize(
    ("policy", "offset"),
    [(OutOfRange.UNSPECIFIED, 100), (OutOfRange.FIRST, 5), (OutOfRange.LAST, 100)],
)
def test_the_log_lost_its_tail(policy: OutOfRange, offset: int) -> None:
    facts = replace(OLD, stored=StoredProgress(130, 10), rules=replace(EXACT, above_max=policy))
    assert outcome(facts) == (StartReason.ABOVE_MAX, offset, 30)


@pytest.mark.parametrize(
    ("policy", "offset"),
    [(OutOfRange.UNSPECIFIED, 5), (OutOfRange.FIRST, 5), (OutOfRange.LAST, 100)],
)
@pytest.mark.parametrize(
    "stored", [StoredProgress(50, 8), StoredProgress(None, 8), StoredProgress(1000, 8)]
)
def test_the_topic_was_deleted_and_created_again(
    policy: OutOfRange, offset: int, stored: StoredProgress
) -> None:
    rules = replace(EXACT, other_incarnation=policy)
    facts = replace(OLD, stored=stored, rules=rules)
    assert outcome(facts) == (StartReason.OTHER_INCARNATION, offset, 5)


def test_a_group_may_refuse_to_go_on_when_progress_does_not_fit() -> None:
    rules = GroupRules(
        NewQueueRule.EXACT,
        below_min=OutOfRange.FAIL,
        above_max=OutOfRange.FAIL,
        other_incarnation=OutOfRange.FAIL,
    )
    for stored in (StoredProgress(2, 10), StoredProgress(50, 8)):
        with pytest.raises(InvalidOffset, match="reset the offset on this queue"):
            decide(replace(OLD, rules=rules, stored=stored))
    with pytest.raises(OffsetBeyondEnd, match="reset the offset on this queue"):
        decide(replace(OLD, rules=rules, stored=StoredProgress(130, 10)))


def test_a_time_is_searched_for_only_when_the_decision_needs_it() -> None:
    at = with_policy(OLD, StartPolicy(StartRule.TIMESTAMP, timestamp_ms=77))
    assert search_timestamp_ms(at) == 77
    assert search_timestamp_ms(replace(at, create_revision=30)) is None
    assert search_timestamp_ms(replace(at, stored=StoredProgress(5, 10))) is None
    ago = with_policy(
        replace(OLD, state=QueueState(5, 100, as_of_ms=1000)),
        StartPolicy(StartRule.DURATION, duration_ms=300),
    )
    assert search_timestamp_ms(ago) == 700
    assert search_timestamp_ms(OLD) is None


def test_the_group_s_policy_wins_over_the_reader_s_and_last_is_the_default() -> None:
    first, tail = StartPolicy(StartRule.FIRST), StartPolicy(StartRule.TAIL, tail_messages=3)
    assert effective_policy(first, tail) == first
    assert effective_policy(StartPolicy(), tail) == tail
    assert effective_policy(StartPolicy(), StartPolicy()).consume_from is StartRule.LAST


def test_an_explanation_names_the_figures_it_rests_on() -> None:
    text = decide(replace(OLD, stored=StoredProgress(2, 10))).explanation
    assert all(figure in text for figure in ("2", "5", "3 messages were deleted unread"))
    assert "revision 30" in decide(NEW).explanation
    assert "20" in decide(NEW).explanation


def test_numbers_are_those_of_the_wire() -> None:
    for reason in StartReason:
        assert offset_pb2.StartReason.Name(reason) == reason.name  # type: ignore[arg-type]
    for rule in NewQueueRule:
        wire = nameserver_pb2.NewQueueRule.Value
        assert wire(rule.name if rule else "NEW_QUEUE_RULE_UNSPECIFIED") == rule
    for policy in OutOfRange:
        assert nameserver_pb2.OutOfRangePolicy.Value(f"OUT_OF_RANGE_{policy.name}") == policy
    for origin in StartRule:
        assert nameserver_pb2.ConsumeFrom.Value(f"CONSUME_FROM_{origin.name}") == origin
    assert len(offset_pb2.StartReason.keys()) == len(StartReason) + 1
    assert start_position.OutOfRange.FAIL == nameserver_pb2.OUT_OF_RANGE_FAIL
