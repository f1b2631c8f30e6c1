"""Where a reader starts that keeps its own progress. Pure: facts in, a decision out.

The offset service's decision, with this reader in the place of the group: a queue is new when it
was born after *this reader* first looked at the topic, however long the group has been there. So a
member that comes late starts by policy, and queues that were added while it was away are read from
their beginning.

    kept progress of this very queue, within [min, max]     COMMITTED, where it is
    kept progress that does not fit                         by the group's out-of-range policy
    nothing kept, a retry topic                             RETRY_TOPIC, at the oldest message
    nothing kept, the queue is new to this reader           NEW_QUEUE, at the oldest message
    nothing kept, the queue is older                        by the start policy

Source: RebalancePushImpl#computePullFromWhereWithException for broadcasting; RocketMQ knows neither
births nor policies for progress that does not fit.
"""

from dataclasses import dataclass

from rockoon.errors import InvalidOffset, OffsetBeyondEnd
from rockoon.message import MessageQueue
from rockoon.start import ConsumeFrom, Start
from rockoon_format.names import is_retry_topic
from rockoon_proto.v1 import nameserver_pb2 as wire

BIRTH_UNKNOWN = 0
"""Of progress that RocketMQ wrote: taken to be of the queue that is there now."""

_REASONS = {
    wire.CONSUME_FROM_FIRST: "FIRST",
    wire.CONSUME_FROM_TIMESTAMP: "TIMESTAMP",
    wire.CONSUME_FROM_TAIL: "TAIL",
    wire.CONSUME_FROM_DURATION: "DURATION",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Progress on one queue."""

    offset: int
    """Next offset to consume."""
    birth: int = BIRTH_UNKNOWN
    """Revision at which the queue was created: a queue of the same name is another one."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What one decision is made on."""

    queue: MessageQueue
    birth: int
    min_offset: int
    max_offset: int
    since: int
    """Revision at which this reader first looked at the topic."""
    kept: Place | None = None


def effective_policy(group: wire.GroupConfig, reader: ConsumeFrom) -> ConsumeFrom:
    """The group's policy if it has one, else the reader's, else LAST."""
    policy = group.start_policy
    if policy.consume_from == wire.CONSUME_FROM_UNSPECIFIED:
        return ConsumeFrom.LAST if reader == ConsumeFrom.GROUP else reader
    value = {
        wire.CONSUME_FROM_TIMESTAMP: policy.timestamp_ms,
        wire.CONSUME_FROM_TAIL: policy.tail_messages,
        wire.CONSUME_FROM_DURATION: policy.duration_ms,
    }.get(policy.consume_from, 0)
    return ConsumeFrom(policy.consume_from, value)


def needs_policy(facts: QueueFacts) -> bool:
    """Whether `decide` needs the offset that the start policy means."""
    is_new = facts.birth > facts.since or is_retry_topic(facts.queue.topic)
    return facts.kept is None and not is_new


def decide(
    facts: QueueFacts, group: wire.GroupConfig, policy: ConsumeFrom, by_policy: int | None = None
) -> Start:
    """Where reading starts.

    Args:
        facts: see there.
        group: its policies for progress that does not fit.
        policy: the start policy in force.
        by_policy: the offset it means; needed when `needs_policy(facts)`.

    Raises:
        InvalidOffset, OffsetBeyondEnd: progress does not fit and the group's policy is to fail.
    """
    kept = facts.kept
    if kept is not None:
        if kept.birth not in (BIRTH_UNKNOWN, facts.birth):
            return _other_incarnation(facts, kept, group)
        if kept.offset < facts.min_offset:
            return _below_min(facts, kept.offset, group)
        if kept.offset > facts.max_offset:
            return _above_max(facts, kept.offset, group)
        text = f"goes on at the kept offset {kept.offset} of {_span(facts)}"
        return Start(facts.queue, kept.offset, "COMMITTED", text)
    if is_retry_topic(facts.queue.topic):
        text = f"starts at {facts.min_offset}: all that is in a retry topic failed in this group"
        return Start(facts.queue, facts.min_offset, "RETRY_TOPIC", text)
    if facts.birth > facts.since:
        text = (
            f"starts at {facts.min_offset}: the queue was born at revision {facts.birth}, after "
            f"this reader first looked at the topic, at {facts.since}"
        )
        return Start(facts.queue, facts.min_offset, "NEW_QUEUE", text, gap=facts.min_offset)
    assert by_policy is not None, "the caller asks the broker first"
    offset = min(max(by_policy, facts.min_offset), facts.max_offset)
    reason = _REASONS.get(policy.kind, "LAST")
    text = f"nothing kept of {_span(facts)}: starts by policy {reason}, at {offset}"
    return Start(facts.queue, offset, reason, text)


def _below_min(facts: QueueFacts, kept: int, group: wire.GroupConfig) -> Start:
    gap = facts.min_offset - kept
    what = (
        f"kept offset {kept} is below the oldest message {facts.min_offset}: {gap} messages "
        "expired unread"
    )
    if group.below_min == wire.OUT_OF_RANGE_FAIL:
        raise InvalidOffset(_refusal(what), offset=kept, min_offset=facts.min_offset)
    to_end = group.below_min == wire.OUT_OF_RANGE_LAST
    return _moved(facts, "BELOW_MIN", what, gap, to_end=to_end)


def _above_max(facts: QueueFacts, kept: int, group: wire.GroupConfig) -> Start:
    gap = kept - facts.max_offset
    what = (
        f"kept offset {kept} is above the queue's end {facts.max_offset}: the log lost {gap} "
        "messages at its tail"
    )
    if group.above_max == wire.OUT_OF_RANGE_FAIL:
        raise OffsetBeyondEnd(
            _refusal(what), offset=kept, end=facts.max_offset, queue=str(facts.queue)
        )
    # Whatever the queue still held when it lost its tail has been read.
    to_end = group.above_max != wire.OUT_OF_RANGE_FIRST
    return _moved(facts, "ABOVE_MAX", what, gap, to_end=to_end)


def _other_incarnation(facts: QueueFacts, kept: Place, group: wire.GroupConfig) -> Start:
    what = (
        f"kept offset {kept.offset} belongs to a deleted queue of this name, born at revision "
        f"{kept.birth}; this one was born at {facts.birth}"
    )
    if group.other_incarnation == wire.OUT_OF_RANGE_FAIL:
        raise InvalidOffset(_refusal(what), offset=kept.offset, incarnation=kept.birth)
    to_end = group.other_incarnation == wire.OUT_OF_RANGE_LAST
    return _moved(facts, "OTHER_INCARNATION", what, facts.min_offset, to_end=to_end)


def _moved(facts: QueueFacts, reason: str, what: str, gap: int, *, to_end: bool) -> Start:
    offset = facts.max_offset if to_end else facts.min_offset
    place = "the end" if to_end else "the oldest message"
    return Start(facts.queue, offset, reason, f"{what}; goes on at {place}, {offset}", gap=gap)


def _span(facts: QueueFacts) -> str:
    return f"a queue of [{facts.min_offset}, {facts.max_offset})"


def _refusal(what: str) -> str:
    return f"{what}; the group's policy is to fail"
