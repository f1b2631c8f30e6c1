"""Start position of a reader on a queue, and the reason. Pure: decides from facts, without I/O.

The offset service decides for groups, and for members whose progress it stores. A client decides
for a reader that stores its own progress.

The first line that applies decides:

    stored progress of this queue, within [min, max]           COMMITTED, where it is
    stored progress that does not fit                          by the group's out-of-range policy
    no progress, a retry topic                                 RETRY_TOPIC, at the oldest message
    no progress, the queue is new to the group                 NEW_QUEUE, at the oldest message
    no progress, the queue is older than the subscription      by the start policy

"New to the group" has two rules. EXACT compares etcd revisions: the queue was created after the
group subscribed to the topic. It uses no clock, and stays valid however late the group returns.
CLASSIC is the estimate of RocketMQ 4.x in ConsumerManageProcessor#queryConsumerOffset: the queue
still begins at 0, and it is empty or its first message is near the end of the log: the distance is
less than 40 % of the machine's memory.
"""

import enum
from dataclasses import dataclass, field

from rockoon_core.errors import InvalidArgument, InvalidOffset, OffsetBeyondEnd
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2, nameserver_pb2


class StartReason(enum.IntEnum):
    """Reason of a start position; numbers as on the wire."""

    COMMITTED = 1
    NEW_QUEUE = 2
    FIRST = 3
    LAST = 4
    TIMESTAMP = 5
    TAIL = 6
    DURATION = 7
    RETRY_TOPIC = 8
    BELOW_MIN = 9
    ABOVE_MAX = 10
    OTHER_INCARNATION = 11
    RESET = 12
    IMPORTED = 13
    RESTORED = 14


class NewQueueRule(enum.IntEnum):
    """Rule that decides whether a queue is new to a group; numbers as on the wire."""

    UNSPECIFIED = 0
    EXACT = 1
    CLASSIC = 2


class OutOfRange(enum.IntEnum):
    """Policy for progress that no longer fits its queue; numbers as on the wire."""

    UNSPECIFIED = 0
    FIRST = 1
    LAST = 2
    FAIL = 3


class StartRule(enum.IntEnum):
    """Start position on an older queue; numbers as on the wire."""

    UNSPECIFIED = 0
    LAST = 1
    FIRST = 2
    TIMESTAMP = 3
    TAIL = 4
    DURATION = 5


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """A start policy of a group or of one reader."""

    consume_from: StartRule = StartRule.UNSPECIFIED
    timestamp_ms: int = 0
    tail_messages: int = 0
    duration_ms: int = 0


def effective_policy(group: StartPolicy, reader: StartPolicy) -> StartPolicy:
    """Return the group's policy if it has one, else the reader's, else LAST."""
    for policy in (group, reader):
        if policy.consume_from is not StartRule.UNSPECIFIED:
            return policy
    return StartPolicy(StartRule.LAST)


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The settings of a group that decide where it starts."""

    rule: NewQueueRule
    policy: StartPolicy = field(default_factory=lambda: StartPolicy(StartRule.LAST))
    below_min: OutOfRange = OutOfRange.UNSPECIFIED
    above_max: OutOfRange = OutOfRange.UNSPECIFIED
    other_incarnation: OutOfRange = OutOfRange.UNSPECIFIED


def policy_from_wire(policy: nameserver_pb2.StartPolicy) -> StartPolicy:
    """Convert a start policy from the wire. Raises InvalidArgument for a negative or unknown
    number."""
    if min(policy.timestamp_ms, policy.tail_messages, policy.duration_ms) < 0:
        raise InvalidArgument(reason="a start policy holds a negative number")
    try:
        consume_from = StartRule(policy.consume_from)
    except ValueError as failure:
        raise InvalidArgument(reason=f"unknown start policy {policy.consume_from}") from failure
    return StartPolicy(consume_from, policy.timestamp_ms, policy.tail_messages, policy.duration_ms)


def rules_from_wire(
    config: nameserver_pb2.GroupConfig, reader: StartPolicy, cluster_rule: NewQueueRule
) -> GroupRules:
    """Return the rules of a group: from its own settings, then the reader's, then the cluster's."""
    return GroupRules(
        rule=NewQueueRule(config.new_queue_rule) or cluster_rule,
        policy=effective_policy(policy_from_wire(config.start_policy), reader),
        below_min=OutOfRange(config.below_min),
        above_max=OutOfRange(config.above_max),
        other_incarnation=OutOfRange(config.other_incarnation),
    )


@dataclass(frozen=True, slots=True)
class QueueState:
    """State of a queue, as its broker reports it."""

    # Oldest kept message, and one past the newest; equal if the queue is empty.
    min_offset: int
    max_offset: int
    # RocketMQ 4.x's estimate for the message at offset 0; None without one.
    first_in_memory: bool | None = None
    # The broker's time at the report. A duration is counted back from it, because store times come
    # from the same clock.
    as_of_ms: int = 0
    # Store time of the message at the requested offset, or else of the oldest message after it, and
    # the time at which retention can delete this message, by the broker's clock. None: not
    # requested, no message, or unknown.
    asked_store_ms: int | None = None
    asked_loss: "ExpectedDeletion | None" = None
    # Why the message at that offset was deleted, as DeletionReason on the wire; 0: it was not, or
    # the broker does not report it.
    asked_deletion: int = 0


DELETION_TEXTS: dict[int, str] = {
    broker_pb2.DELETED_EXPIRED: "expired",
    broker_pb2.DELETED_DISK_PRESSURE: "were deleted under disk pressure",
    broker_pb2.DELETED_WAIT_LIMIT: (
        "expired and were deleted at the limit retention_wait_bytes_max"
    ),
}


@dataclass(frozen=True, slots=True)
class ExpectedDeletion:
    """Earliest time at which retention can delete a message, and the reason (`cause` as on the
    wire)."""

    at_ms: int
    cause: int


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """Stored progress of a group on a queue, as needed for the decision.

    `offset` is None if only this is known: the group had progress on a deleted queue of this name.
    """

    offset: int | None
    incarnation: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Input of `decide`: everything known about one queue and its reader."""

    queue: MessageQueue
    state: QueueState
    # etcd revision at which the queue was created: its incarnation.
    create_revision: int
    # etcd revision at which the group subscribed to the topic.
    subscription_revision: int
    rules: GroupRules
    stored: StoredProgress | None = None
    # The subscriber, for explanations.
    who: str = "the group"


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of `decide`: the start position and its reason.

    `gap`: number of lost messages that the group should have received: no policy can read them.
    """

    offset: int
    reason: StartReason
    explanation: str
    gap: int = 0


def is_new_queue(facts: Facts) -> bool:
    """Return whether the queue is new to the group by the group's rule."""
    if facts.rules.rule is NewQueueRule.CLASSIC:
        return facts.state.min_offset <= 0 and facts.state.first_in_memory is not False
    return facts.create_revision > facts.subscription_revision


def search_timestamp_ms(facts: Facts) -> int | None:
    """Return the store time whose offset `decide` needs; None if it needs none."""
    if facts.stored is not None or facts.queue.is_retry or is_new_queue(facts):
        return None
    policy = facts.rules.policy
    if policy.consume_from is StartRule.TIMESTAMP:
        return policy.timestamp_ms
    if policy.consume_from is StartRule.DURATION:
        return max(0, facts.state.as_of_ms - policy.duration_ms)
    return None


def decide(facts: Facts, offset_at_time: int | None = None) -> Decision:
    """Decide where a reader starts.

    Args:
        facts: the input.
        offset_at_time: first offset stored at or after `search_timestamp_ms(facts)`; needed if that
            is not None.

    Raises:
        InvalidOffset, OffsetBeyondEnd: progress does not fit and the group's policy is FAIL.
    """
    stored, state = facts.stored, facts.state
    if stored is not None:
        if stored.offset is None or stored.incarnation != facts.create_revision:
            return other_incarnation(facts, stored)
        if stored.offset < state.min_offset:
            return below_min(facts, stored.offset)
        if stored.offset > state.max_offset:
            return above_max(facts, stored.offset)
        return Decision(
            stored.offset,
            StartReason.COMMITTED,
            f"continues at the stored offset {stored.offset} of {span(state)}",
        )
    if facts.queue.is_retry:
        return Decision(
            state.min_offset,
            StartReason.RETRY_TOPIC,
            f"a retry topic is read from its oldest message, {state.min_offset}",
        )
    if is_new_queue(facts):
        return new_queue(facts)
    return by_policy(facts, offset_at_time)


def span(state: QueueState) -> str:
    if state.min_offset == state.max_offset:
        return f"an empty queue at {state.max_offset}"
    return f"a queue that holds {state.min_offset} to {state.max_offset - 1}"


def new_queue(facts: Facts) -> Decision:
    state = facts.state
    offset = max(0, state.min_offset)
    if facts.rules.rule is NewQueueRule.CLASSIC:
        seen = "it is empty" if state.first_in_memory is None else "its first message is in memory"
        why = f"the queue begins at {state.min_offset} and {seen} (rule CLASSIC)"
    else:
        why = (
            f"the queue was created at revision {facts.create_revision}, after {facts.who} "
            f"subscribed at {facts.subscription_revision} (rule EXACT)"
        )
    how = deletion_text(state.asked_deletion)
    lost = f"; {offset} messages {how} before {facts.who} first read" if offset else ""
    return Decision(
        offset, StartReason.NEW_QUEUE, f"starts at {offset}, nothing skipped: {why}{lost}", offset
    )


def by_policy(facts: Facts, offset_at_time: int | None) -> Decision:
    state, policy = facts.state, facts.rules.policy
    if facts.rules.rule is NewQueueRule.CLASSIC:
        old = f"not new (rule CLASSIC, oldest message {state.min_offset})"
    else:
        old = (
            f"created at revision {facts.create_revision}, before {facts.who} subscribed at "
            f"{facts.subscription_revision}"
        )

    def decision(offset: int, reason: StartReason, how: str) -> Decision:
        clamped = min(max(offset, state.min_offset), state.max_offset)
        text = f"no progress on {span(state)}, {old}: starts {how}, at {clamped}"
        return Decision(clamped, reason, text)

    match policy.consume_from:
        case StartRule.FIRST:
            return decision(state.min_offset, StartReason.FIRST, "at the oldest message")
        case StartRule.TAIL:
            offset = state.max_offset - policy.tail_messages
            how = f"{policy.tail_messages} messages before the end"
            return decision(offset, StartReason.TAIL, how)
        case StartRule.TIMESTAMP:
            assert offset_at_time is not None, "the caller searches first"
            how = f"at the first message stored at {policy.timestamp_ms} ms or later"
            return decision(offset_at_time, StartReason.TIMESTAMP, how)
        case StartRule.DURATION:
            assert offset_at_time is not None, "the caller searches first"
            how = f"at the first message not older than {policy.duration_ms} ms"
            return decision(offset_at_time, StartReason.DURATION, how)
        case _:
            return decision(state.max_offset, StartReason.LAST, "after the newest message")


def deletion_text(reason: int) -> str:
    """Return a phrase such as "were deleted by age", to follow a number of lost messages."""
    return DELETION_TEXTS.get(reason, "were deleted")


def below_min(facts: Facts, stored: int) -> Decision:
    """Decide for progress below the oldest message: retention was faster than the reader. By
    default, the reader starts at the oldest message."""
    state = facts.state
    gap = state.min_offset - stored
    what = (
        f"stored offset {stored} is below the oldest message {state.min_offset}: "
        f"{gap} messages {deletion_text(state.asked_deletion)} unread"
    )
    if facts.rules.below_min is OutOfRange.FAIL:
        raise InvalidOffset(refusal(what), offset=stored, min_offset=state.min_offset)
    to_end = facts.rules.below_min is OutOfRange.LAST
    offset = state.max_offset if to_end else state.min_offset
    return Decision(
        offset, StartReason.BELOW_MIN, f"{what}; continues at {where(to_end, offset)}", gap
    )


def above_max(facts: Facts, stored: int) -> Decision:
    """Decide for progress beyond the end: the log has lost its tail (a restored copy, or an
    asynchronous flush and a power cut).

    The default is the end, unlike in the two other cases. Stored progress means that all messages
    below it were read, including all that the queue still had after the loss: starting at the
    oldest message would repeat all kept messages (a known problem with RocketMQ) for no gain. Only
    messages appended between the loss and this decision can be missed; a group that prefers
    repeated messages sets FIRST.
    """
    state = facts.state
    gap = stored - state.max_offset
    what = (
        f"stored offset {stored} is above the queue's end {state.max_offset}: "
        f"the log lost {gap} messages at its tail"
    )
    if facts.rules.above_max is OutOfRange.FAIL:
        raise OffsetBeyondEnd(
            refusal(what), offset=stored, end=state.max_offset, queue=str(facts.queue)
        )
    to_end = facts.rules.above_max is not OutOfRange.FIRST
    offset = state.max_offset if to_end else state.min_offset
    return Decision(
        offset, StartReason.ABOVE_MAX, f"{what}; continues at {where(to_end, offset)}", gap
    )


def other_incarnation(facts: Facts, stored: StoredProgress) -> Decision:
    """Decide for progress of a deleted queue with the same name, whose offset is meaningless
    here."""
    state = facts.state
    at = "" if stored.offset is None else f" ({stored.offset})"
    what = (
        f"stored progress{at} belongs to a deleted queue of this name, created at revision "
        f"{stored.incarnation}; the present queue was created at {facts.create_revision}"
    )
    if facts.rules.other_incarnation is OutOfRange.FAIL:
        raise InvalidOffset(refusal(what), offset=stored.offset, incarnation=stored.incarnation)
    to_end = facts.rules.other_incarnation is OutOfRange.LAST
    offset = state.max_offset if to_end else state.min_offset
    return Decision(
        offset,
        StartReason.OTHER_INCARNATION,
        f"{what}; continues at {where(to_end, offset)}",
        state.min_offset,
    )


def where(to_end: bool, offset: int) -> str:
    return f"the end, {offset}" if to_end else f"the oldest message, {offset}"


def refusal(what: str) -> str:
    return f"{what}; the group's policy is to fail: change it, or reset the offset on this queue"
