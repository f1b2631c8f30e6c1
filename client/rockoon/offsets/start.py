"""Start policies (`ConsumeFrom`), decided start positions with their reasons, and start positions
of readers that store their own progress. No I/O.

Such a reader decides as the offset service does (`rockoon_core.start_position`), with this reader
instead of the group: by rule EXACT a queue is new if it was created after *this reader* first used
the topic, however old the group is. So a member that joins late starts by policy, and queues that
were added while it was away are read from their beginning.

Source: RebalancePushImpl#computePullFromWhereWithException for broadcasting; RocketMQ has neither
create revisions nor policies for invalid progress.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, Self

from rockoon.bounds import check_epoch_ms
from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Facts, GroupRules, QueueState, StoredProgress, decide
from rockoon_proto.v1 import nameserver_pb2 as wire
from rockoon_proto.v1 import offset_pb2

_ROCKETMQ_FORMAT = "%Y%m%d%H%M%S"


def timestamp_ms_of(text: str) -> int:
    """Return epoch milliseconds.

    Args:
        text: "20260131120000" (RocketMQ's yyyyMMddHHmmss, local time); ISO 8601 as in
            "2026-01-31T12:00", "2026-01-31 12:00:00+01:00" or with Z, local without a zone; or
            epoch milliseconds of 11 to 13 digits.

    Raises:
        ValueError: the text has none of these forms, or the date does not exist.
    """
    if re.fullmatch(r"\d{14}", text):
        moment = datetime.strptime(text, _ROCKETMQ_FORMAT)
    elif re.fullmatch(r"\d{11,13}", text):
        return int(text)
    else:
        moment = datetime.fromisoformat(text)
    return int(moment.timestamp() * 1000)


StartName = Literal[
    "first",
    "last",
    "group",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
]
"""Names of start policies, for `ConsumeFrom.of`."""


@dataclass(frozen=True, slots=True)
class ConsumeFrom:
    """A reader's start policy: `ConsumeFrom.FIRST`, `ConsumeFrom.LAST`, or one of the methods.

    If the group has a policy, it overrides the reader's. A queue that was created after the group
    subscribed is always read from its beginning.
    """

    kind: wire.ConsumeFrom
    value: int = 0

    FIRST: ClassVar[Self]
    """The oldest stored message."""
    LAST: ClassVar[Self]
    """The end of the queue: only messages sent later."""
    GROUP: ClassVar[Self]
    """The group's policy; LAST if the group has none."""

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> "ConsumeFrom":
        """Start at the first message stored at or after a time.

        Args:
            timestamp_ms: epoch milliseconds.

        Raises:
            InvalidArgument: the value is not in epoch milliseconds. Ten digits are epoch seconds.
        """
        return cls(wire.CONSUME_FROM_TIMESTAMP, check_epoch_ms("timestamp_ms", timestamp_ms))

    @classmethod
    def at(cls, moment: "str | datetime") -> "ConsumeFrom":
        """Start at the first message stored at or after a moment.

        Args:
            moment: a datetime (local if it has no zone), or a text for `timestamp_ms_of`:
                "20260131120000", as RocketMQ's consumeTimestamp, or ISO 8601.

        Raises:
            InvalidArgument: the text is not a point in time.
        """
        try:
            text = moment if isinstance(moment, str) else moment.isoformat()
            return cls(wire.CONSUME_FROM_TIMESTAMP, timestamp_ms_of(text))
        except ValueError as error:
            raise InvalidArgument(
                reason=f"{moment!r} is not a time: write 20260131120000 or 2026-01-31T12:00:00"
            ) from error

    @classmethod
    def tail(cls, messages: int) -> "ConsumeFrom":
        """Start this many messages before the end of each queue."""
        return cls(wire.CONSUME_FROM_TAIL, messages)

    @classmethod
    def ago(cls, milliseconds: int) -> "ConsumeFrom":
        """Start at the first message that was stored at most this long ago."""
        return cls(wire.CONSUME_FROM_DURATION, milliseconds)

    @classmethod
    def of(cls, policy: "ConsumeFrom | str") -> "ConsumeFrom":
        """Return the policy itself, or the policy with a name.

        Args:
            policy: a policy; "first", "last" or "group"; or a name of RocketMQ's ConsumeFromWhere.
                CONSUME_FROM_TIMESTAMP means half an hour ago, as in RocketMQ; use `at` for a time.
                The three deprecated names mean CONSUME_FROM_LAST_OFFSET, as in RocketMQ
                (RebalancePushImpl#computePullFromWhereWithException), even CONSUME_FROM_MIN_OFFSET.

        Raises:
            InvalidArgument: the name is unknown.
        """
        if isinstance(policy, ConsumeFrom):
            return policy
        found = _NAMED.get(policy)
        if found is None:
            raise InvalidArgument(reason=f"{policy!r} is not a start policy: {', '.join(_NAMED)}")
        return found

    def to_wire(self) -> wire.StartPolicy:
        """Return the policy as a message for Resolve."""
        policy = wire.StartPolicy(consume_from=self.kind)
        if self.kind == wire.CONSUME_FROM_TIMESTAMP:
            policy.timestamp_ms = self.value
        elif self.kind == wire.CONSUME_FROM_TAIL:
            policy.tail_messages = self.value
        elif self.kind == wire.CONSUME_FROM_DURATION:
            policy.duration_ms = self.value
        return policy


ConsumeFrom.FIRST = ConsumeFrom(wire.CONSUME_FROM_FIRST)
ConsumeFrom.LAST = ConsumeFrom(wire.CONSUME_FROM_LAST)
ConsumeFrom.GROUP = ConsumeFrom(wire.CONSUME_FROM_UNSPECIFIED)

# RocketMQ's default of consumeTimestamp.
_TIMESTAMP_AGO_MS = 30 * 60 * 1000
_NAMED: dict[str, ConsumeFrom] = {
    "first": ConsumeFrom.FIRST,
    "last": ConsumeFrom.LAST,
    "group": ConsumeFrom.GROUP,
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFrom.FIRST,
    "CONSUME_FROM_LAST_OFFSET": ConsumeFrom.LAST,
    "CONSUME_FROM_TIMESTAMP": ConsumeFrom.ago(_TIMESTAMP_AGO_MS),
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFrom.LAST,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFrom.LAST,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFrom.LAST,
}


@dataclass(frozen=True, slots=True)
class Start:
    """Start position on one queue."""

    queue: MessageQueue
    offset: int
    reason: str
    """Name of a StartReason, for example "COMMITTED" or "NEW_QUEUE"; ASSIGNED if the reader chose
    the offset itself."""
    explanation: str
    """One sentence with the numbers behind the decision."""
    gap: int = 0
    """Number of messages after the stored progress that can no longer be read."""
    epoch: int = 0
    """Sent with every commit; identifies the ownership of the queue."""

    @classmethod
    def from_wire(cls, queue: MessageQueue, start: offset_pb2.Start) -> "Start":
        return cls(
            queue=queue,
            offset=start.offset,
            reason=offset_pb2.StartReason.Name(start.reason),
            explanation=start.explanation,
            gap=start.gap,
            epoch=start.epoch,
        )


CREATE_REVISION_UNKNOWN = 0
"""For progress that RocketMQ wrote: it is assumed to belong to the present queue."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress on one queue."""

    offset: int
    """Next offset to consume."""
    create_revision: int = CREATE_REVISION_UNKNOWN
    """Create revision of the queue; a later queue of the same name has another one."""


def facts_of(
    queue: MessageQueue,
    create_revision: int,
    state: QueueState,
    since: int,
    rules: GroupRules,
    progress: Position | None,
) -> Facts:
    """Return the facts for one decision.

    Args:
        queue, create_revision: the queue and its create revision.
        state: state of the queue from its broker.
        since: revision at which this reader first used the topic.
        rules: rules of its group.
        progress: stored progress; None if there is none.
    """
    stored = None
    if progress is not None:
        stored = StoredProgress(
            progress.offset,
            create_revision
            if progress.create_revision == CREATE_REVISION_UNKNOWN
            else progress.create_revision,
        )
    return Facts(queue, state, create_revision, since, rules, stored, who="this reader")


def start_on(queue: MessageQueue, facts: Facts, offset_at_time: int | None = None) -> Start:
    """Return the start on a queue; see `rockoon_core.start_position.decide`."""
    decision = decide(facts, offset_at_time)
    return Start(
        queue, decision.offset, decision.reason.name, decision.explanation, gap=decision.gap
    )
