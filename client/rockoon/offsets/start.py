"""Start policies (`ConsumeFrom`), and the start position that was decided, with its reason."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, Self

from rockoon.bounds import check_epoch_ms
from rockoon.errors import InvalidArgument
from rockoon.times import timestamp_ms_of
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import nameserver_pb2 as wire
from rockoon_proto.v1 import offset_pb2

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
"""Names of start policies, as `ConsumeFrom.of` reads them."""


@dataclass(frozen=True, slots=True)
class ConsumeFrom:
    """A reader's own start policy. The group's policy, when it has one, goes before it, and a
    queue that was born after the group subscribed is always read from its beginning.

    `ConsumeFrom.FIRST`, `ConsumeFrom.LAST`, or one of the methods.
    """

    kind: wire.ConsumeFrom
    value: int = 0

    FIRST: ClassVar[Self]
    """At the oldest message kept."""
    LAST: ClassVar[Self]
    """Behind the newest message."""
    GROUP: ClassVar[Self]
    """What the group says; LAST when it says nothing."""

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> "ConsumeFrom":
        """At the first message stored at or after a time.

        Args:
            timestamp_ms: epoch milliseconds.

        Raises:
            InvalidArgument: it is no time in epoch milliseconds. Ten digits are epoch seconds.
        """
        return cls(wire.CONSUME_FROM_TIMESTAMP, check_epoch_ms("timestamp_ms", timestamp_ms))

    @classmethod
    def at(cls, moment: "str | datetime") -> "ConsumeFrom":
        """At the first message stored at or after a moment.

        Args:
            moment: a datetime (local, when it has no zone), or a text that `timestamp_ms_of` takes:
                "20260131120000", as RocketMQ's consumeTimestamp, or ISO 8601.

        Raises:
            InvalidArgument: the text is no point in time.
        """
        try:
            text = moment if isinstance(moment, str) else moment.isoformat()
            return cls(wire.CONSUME_FROM_TIMESTAMP, timestamp_ms_of(text))
        except ValueError as error:
            raise InvalidArgument(
                reason=f"{moment!r} is no time: write 20260131120000 or 2026-01-31T12:00:00"
            ) from error

    @classmethod
    def tail(cls, messages: int) -> "ConsumeFrom":
        """So many messages before the end of each queue."""
        return cls(wire.CONSUME_FROM_TAIL, messages)

    @classmethod
    def ago(cls, milliseconds: int) -> "ConsumeFrom":
        """At the first message stored so long ago or later."""
        return cls(wire.CONSUME_FROM_DURATION, milliseconds)

    @classmethod
    def of(cls, policy: "ConsumeFrom | str") -> "ConsumeFrom":
        """Return the policy itself, or that of a name.

        Args:
            policy: a policy; "first", "last" or "group"; or a name of RocketMQ's ConsumeFromWhere.
                CONSUME_FROM_TIMESTAMP alone is half an hour ago, as there; `at` says when. The
                three that are deprecated there mean CONSUME_FROM_LAST_OFFSET, as there
                (RebalancePushImpl#computePullFromWhereWithException), CONSUME_FROM_MIN_OFFSET too.

        Raises:
            InvalidArgument: the name is none of these.
        """
        if isinstance(policy, ConsumeFrom):
            return policy
        found = _NAMED.get(policy)
        if found is None:
            raise InvalidArgument(reason=f"{policy!r} is not a place to start: {', '.join(_NAMED)}")
        return found

    def to_wire(self) -> wire.StartPolicy:
        """Return the policy as Resolve takes it."""
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
    """The place on one queue where reading begins."""

    queue: MessageQueue
    offset: int
    reason: str
    """Name of a StartReason, for example "COMMITTED" or "NEW_QUEUE"; ASSIGNED when the reader
    itself chose."""
    explanation: str
    """One sentence with the figures the decision was made on."""
    gap: int = 0
    """Messages after the stored progress that can no longer be read."""
    epoch: int = 0
    """Goes with every commit: says under which ownership it was made."""

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
