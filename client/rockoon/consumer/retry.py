"""Messages that a handler failed on go back to a broker: to come again, or as dead letters.

    handler fails ──▶ SendBack to the broker that has the message      (a reference, some bytes)
                  └─▶ else to another broker, with the whole record
                  └─▶ else delivered again here after a pause           (the queue's progress waits)

The broker notes what failed, how often and why, and stores the message in the group's retry topic,
%RETRY%GROUP, which every member reads beside its own topics; or, when it has failed too often, in
%DLQ%GROUP. Either counts as finished here, so one bad message does not hold its queue's progress
back. Nothing counts as finished before it is durable elsewhere: when an answer is lost, a message
comes twice.

Source: ConsumeMessageConcurrentlyService#sendMessageBack; RocketMQ falls back to an ordinary send.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rockoon.consumer.redelivery import Failure, LocalRedelivery, Redelivery
from rockoon.errors import BrokerUnavailable, InvalidArgument, RockoonError, from_wire
from rockoon.message import Message
from rockoon.net.connection import Connection
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import exception_text
from rockoon_format.names import retry_topic
from rockoon_proto.v1.broker_pb2 import FailedMessage, SendBackReply, SendBackRequest, SentBack
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_proto.v1.offset_pb2 import CLUSTERING, ConsumeMode

log = limited(logging.getLogger(__name__))

SEND_BACK_SECONDS_MAX = 5.0
# What a former leader has stored and what the next one is sent come both.
FAREWELL_SECONDS = 0.5
# A handler's place is taken while brokers are asked: not all of a large cluster.
OTHER_BROKERS_MAX = 2
MESSAGES_PER_CALL_MAX = 1024
BYTES_PER_CALL_MAX = 8 << 20
REASON_CHARACTERS_MAX = 512
BROADCASTING_ATTEMPTS_MAX = 16
# Of the wire: a larger number of a handler's would keep its message from being sent back.
_INT32_MAX = 2**31 - 1
_DELAY_MS_MAX = 2**53
SAFE_MAX = 65_536


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a consumer wants its failed messages back.

    Args:
        attempts_max: how often a message comes again before it is a dead letter, so its handler is
            called once more than that; None: as the group says, and 16 if it does not.
        delay_levels: the brokers' delay level before the first, second, ... time it comes again;
            the last one stands for all that follow. Empty: 3 (10 s), 4 (30 s), ... up to 18 (2 h).
        local: the pauses while no broker takes a message back.

    Raises:
        InvalidArgument: a level is less than 1, or `attempts_max` less than 0.
    """

    attempts_max: int | None = None
    delay_levels: Sequence[int] = ()
    local: LocalRedelivery = field(default_factory=LocalRedelivery)

    def __post_init__(self) -> None:
        if any(level < 1 for level in self.delay_levels):
            raise InvalidArgument(reason="a delay level is 1 or more")
        if self.attempts_max is not None and not 0 <= self.attempts_max <= _INT32_MAX:
            raise InvalidArgument(reason=f"attempts_max is 0 to {_INT32_MAX}")

    def level_of(self, failed_before: int) -> int:
        """The delay level to ask for, 0 to leave it to the broker."""
        if not self.delay_levels:
            return 0
        return self.delay_levels[min(failed_before, len(self.delay_levels) - 1)]


@dataclass(slots=True)
class RetryStatistics:
    """Counts since the consumer was made; messages, not calls."""

    sent_back: int = 0
    """To come again."""
    dead: int = 0
    """Dead letters now."""
    elsewhere: int = 0
    """Of both: taken by another broker than the one they were read from."""
    kept_here: int = 0
    """No broker took them: delivered again here. A message counts each time."""
    dropped: int = 0
    """Broadcasting only: given up for good."""


class RetryTopic:
    """The `Redelivery` that sends back.

    Args:
        cluster: the connection.
        group: the consumer's.
        policy: delays and how often.
        statistics: counted in.
    """

    def __init__(
        self, cluster: Connection, group: str, policy: RetryPolicy, statistics: RetryStatistics
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._policy = policy
        self._statistics = statistics
        # Messages of batches of which others were not taken: sent back, and delivered again here
        # with the others. They must not be sent back with every further failure of those.
        self._safe: dict[tuple[MessageQueue, int], None] = {}

    async def failed(self, failure: Failure) -> float | None:
        """See `Redelivery`; cancelling it can bring messages twice."""
        home = failure.messages[0].queue.broker
        unsafe = [each for each in failure.messages if _place(each) not in self._safe]
        left = await self._send(home, unsafe, failure, with_records=False)
        for broker in self._others(home):
            if not left:
                break
            taken = len(left)
            left = await self._send(broker, left, failure, with_records=True)
            self._statistics.elsewhere += taken - len(left)
        if not left:
            for each in failure.messages:
                self._safe.pop(_place(each), None)
            return None
        self._note_safe(each for each in unsafe if each not in left)
        self._statistics.kept_here += len(left)
        pause = await self._policy.local.failed(failure)
        log.warning(
            "no broker takes %s back (and %d more): delivered again here in %.1f s",
            left[0],
            len(left) - 1,
            pause or 0.0,
        )
        return pause

    def has_sent(self, message: Message) -> bool:
        """Whether a broker took a message of a failure that not all of were taken."""
        return _place(message) in self._safe

    def _note_safe(self, messages: Iterable[Message]) -> None:
        self._safe.update((_place(each), None) for each in messages)
        # Those of queues that were lost meanwhile are never asked for again.
        while len(self._safe) > SAFE_MAX:
            del self._safe[next(iter(self._safe))]

    def _others(self, home: str) -> list[str]:
        live = sorted(n.name for n in self._cluster.routes.nodes if n.kind == BROKER)
        # Behind the one that is away, so that not all of its messages go to the same other one.
        turned = [n for n in live if n > home] + [n for n in live if n < home]
        return turned[:OTHER_BROKERS_MAX]

    async def _send(
        self, broker: str, messages: list[Message], failure: Failure, *, with_records: bool
    ) -> list[Message]:
        """Send messages back to a broker; returns those that it did not take."""
        left: list[Message] = []
        for part in parts_of(messages, with_records=with_records):
            request = SendBackRequest(
                group=self._group,
                messages=[self._failed(each, failure, with_records) for each in part],
                attempts_max=self._policy.attempts_max,
                # A broker that has not heard of the group yet catches up first.
                route_revision=self._cluster.routes.revision,
            )
            try:
                reply: SendBackReply = await self._cluster.call(
                    self._cluster.broker(broker).SendBack,
                    request,
                    unavailable=BrokerUnavailable,
                    timeout_seconds=SEND_BACK_SECONDS_MAX,
                    farewell_seconds=FAREWELL_SECONDS,
                    broker=broker,
                )
            except RockoonError as error:
                log.info("%s does not take messages of %s back: %s", broker, self._group, error)
                return left + messages[messages.index(part[0]) :]
            for message, result in zip(part, reply.results, strict=True):
                if result.HasField("error"):
                    refusal = from_wire(result.error)
                    log.info("%s does not take %s back: %s", broker, message, refusal)
                    left.append(message)
                else:
                    self._note(message, result, failure)
        return left

    def _failed(self, message: Message, failure: Failure, with_record: bool) -> FailedMessage:
        level, delay_ms = self._delay(message, failure)
        return FailedMessage(
            topic=message.queue.topic,
            queue_id=message.queue.queue_id,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            record=message.record if with_record else b"",
            delay_level=level,
            delay_ms=delay_ms,
            failure=reason_of(failure),
            deliveries=min(failure.attempt, _INT32_MAX) if failure.is_last else 0,
        )

    def _delay(self, message: Message, failure: Failure) -> tuple[int, int]:
        """Level, and milliseconds where that is 0."""
        if failure.is_last:
            return -1, 0
        wanted = failure.delay
        if wanted is not None and wanted.level:
            return max(-1, min(wanted.level, _INT32_MAX)), 0
        if wanted is not None and wanted.seconds is not None:
            return 0, max(1, round(min(1000 * wanted.seconds, _DELAY_MS_MAX)))
        came_back = message.queue.topic == retry_topic(self._group)
        level = self._policy.level_of(message.reconsume_times if came_back else 0)
        return min(level, _INT32_MAX), 0

    def _note(self, message: Message, result: SentBack, failure: Failure) -> None:
        if not result.dead:
            self._statistics.sent_back += 1
            return
        self._statistics.dead += 1
        log.error(
            "%s of topic %s, first stored as %s, has failed %d times and is a dead letter in %s: "
            "%s",
            message,
            message.topic,
            result.origin_message_id,
            result.attempts,
            result.topic,
            reason_of(failure),
        )


class DroppingRedelivery:
    """Of a broadcasting member: delivered again here, and after so many times given up.

    What one member fails on, others have handled: it must not be sent back to all of them.

    Args:
        statistics: counted in.
        attempts_max: deliveries in vain after which a message is dropped.
        local: the pauses before.
    """

    def __init__(
        self,
        statistics: RetryStatistics,
        attempts_max: int = BROADCASTING_ATTEMPTS_MAX,
        local: LocalRedelivery | None = None,
    ) -> None:
        if attempts_max < 1:
            raise InvalidArgument(reason="attempts_max is 1 or more")
        self._statistics = statistics
        self._attempts_max = attempts_max
        self._local = local or LocalRedelivery()

    async def failed(self, failure: Failure) -> float | None:
        """See `Redelivery`."""
        wanted = failure.delay
        is_unwanted = wanted is not None and wanted.level is not None and wanted.level < 0
        if failure.attempt < self._attempts_max and not failure.is_last and not is_unwanted:
            return await self._local.failed(failure)
        self._statistics.dropped += len(failure.messages)
        for message in failure.messages:
            log.error(
                "%s is dropped after %d deliveries: %s",
                message,
                failure.attempt,
                reason_of(failure),
            )
        return None


def redelivery_of(
    cluster: Connection,
    group: str,
    mode: ConsumeMode,
    chosen: Redelivery | RetryPolicy | None,
    statistics: RetryStatistics,
) -> Redelivery:
    """Return what a consumer does with failures when its user said this much.

    Raises:
        InvalidArgument: it is neither, or a RetryPolicy for a broadcasting consumer, which sends
            nothing back.
    """
    if not (chosen is None or isinstance(chosen, RetryPolicy) or hasattr(chosen, "failed")):
        raise InvalidArgument(reason=f"redelivery is {chosen!r}, not a RetryPolicy or Redelivery")
    if mode != CLUSTERING:
        if isinstance(chosen, RetryPolicy):
            raise InvalidArgument(reason="a broadcasting consumer has no retry topic")
        return chosen or DroppingRedelivery(statistics)
    if chosen is None or isinstance(chosen, RetryPolicy):
        return RetryTopic(cluster, group, chosen or RetryPolicy(), statistics)
    return chosen


def _place(message: Message) -> tuple[MessageQueue, int]:
    return message.queue, message.queue_offset


def reason_of(failure: Failure) -> str:
    """Return why a handler failed, as text that can be sent."""
    if failure.exception is None:
        return "the handler returned LATER"
    return exception_text(failure.exception, REASON_CHARACTERS_MAX)


def parts_of(messages: Sequence[Message], *, with_records: bool) -> list[list[Message]]:
    """Cut messages into as many calls as they need."""
    parts: list[list[Message]] = []
    size = BYTES_PER_CALL_MAX
    for message in messages:
        size += message.stored_bytes if with_records else 0
        if not parts or len(parts[-1]) >= MESSAGES_PER_CALL_MAX or size > BYTES_PER_CALL_MAX:
            parts.append([])
            size = message.stored_bytes if with_records else 0
        parts[-1].append(message)
    return parts
