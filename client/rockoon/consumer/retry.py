"""Retries: failed messages are sent back to a broker, for redelivery or as dead letters.

    handler fails ──▶ SendBack to the broker that has the message      (a reference, some bytes)
                  └─▶ else to another broker, with the whole record
                  └─▶ else this consumer redelivers after a pause      (blocks the queue's progress)

The broker stores the message, with the reason and the number of failures, in the group's retry
topic %RETRY%GROUP, which each member reads in addition to its own topics. A message without
attempts left goes to %DLQ%GROUP. In both cases the message counts as finished here, so it does not
block the progress of its queue. No message counts as finished before it is durable elsewhere: if a
reply is lost, the message is delivered twice.

Source: ConsumeMessageConcurrentlyService#sendMessageBack; RocketMQ falls back to an ordinary send.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rockoon.consumer.redelivery import HandlerFailure, LocalRedelivery, Redelivery
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
# Time to wait for the reply of a broker that another leader has replaced. Without it, the consumer
# would send the message to the new leader as well, and the group would receive it twice.
FAREWELL_SECONDS = 0.5
# Bounded, because these calls block a worker.
OTHER_BROKERS_MAX = 2
MESSAGES_PER_CALL_MAX = 1024
BYTES_PER_CALL_MAX = 8 << 20
REASON_CHARACTERS_MAX = 512
BROADCASTING_ATTEMPTS_MAX = 16
# Limits of the wire's fields. Larger values of a handler are reduced, or the call would fail.
_INT32_MAX = 2**31 - 1
_DELAY_MS_MAX = 2**53
STORED_ELSEWHERE_MAX = 65_536


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rules for the redelivery of failed messages by brokers.

    Args:
        attempts_max: number of redeliveries before a message becomes a dead letter, so the handler
            is called once more than that; None: the value of the group, or 16.
        delay_levels: the brokers' delay levels before the first, second, ... redelivery; the last
            one applies to all later ones. Empty: 3 (10 s), 4 (30 s), ... up to 18 (2 h).
        local: pauses before local redeliveries while no broker accepts a message.

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
        """Return the delay level after some earlier failures; 0: the broker decides."""
        if not self.delay_levels:
            return 0
        return self.delay_levels[min(failed_before, len(self.delay_levels) - 1)]


@dataclass(slots=True)
class RetryStatistics:
    """Counters of failed messages of a consumer."""

    sent_back: int = 0
    """Messages that a broker will redeliver."""
    dead: int = 0
    """Messages that became dead letters."""
    elsewhere: int = 0
    """Messages of both counters that were stored by another broker than the one they came from."""
    kept_here: int = 0
    """Local redeliveries because no broker accepted the message."""
    dropped: int = 0
    """Broadcasting only: messages that were dropped after their last attempt."""


class RetryTopic:
    """`Redelivery` that sends failed messages back to brokers.

    Args:
        policy: delays and number of attempts.
        statistics: counters.
    """

    def __init__(
        self, cluster: Connection, group: str, policy: RetryPolicy, statistics: RetryStatistics
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._policy = policy
        self._statistics = statistics
        # Messages that a broker stored although not all messages of their handler call were
        # accepted. The whole call is repeated locally; its next failure must not send them again.
        self._stored_elsewhere: dict[tuple[MessageQueue, int], None] = {}

    async def failed(self, failure: HandlerFailure) -> float | None:
        """Send failed messages back to a broker, or have them redelivered here; see `Redelivery`.
        If the call is cancelled, messages may be delivered twice."""
        home = failure.messages[0].queue.broker
        unstored = [
            each for each in failure.messages if _position(each) not in self._stored_elsewhere
        ]
        left = await self._send(home, unstored, failure, with_records=False)
        for broker in self._other_brokers(home):
            if not left:
                break
            before = len(left)
            left = await self._send(broker, left, failure, with_records=True)
            self._statistics.elsewhere += before - len(left)
        if not left:
            for each in failure.messages:
                self._stored_elsewhere.pop(_position(each), None)
            return None
        self._add_stored(each for each in unstored if each not in left)
        self._statistics.kept_here += len(left)
        pause = await self._policy.local.failed(failure)
        log.warning(
            "no broker accepts %s (and %d more): this consumer redelivers in %.1f s",
            left[0],
            len(left) - 1,
            pause or 0.0,
        )
        return pause

    def has_sent(self, message: Message) -> bool:
        """True if a broker stored the message in a call that did not succeed for all messages."""
        return _position(message) in self._stored_elsewhere

    def _add_stored(self, messages: Iterable[Message]) -> None:
        self._stored_elsewhere.update((_position(each), None) for each in messages)
        # Bounded, because messages of revoked queues are never removed.
        while len(self._stored_elsewhere) > STORED_ELSEWHERE_MAX:
            del self._stored_elsewhere[next(iter(self._stored_elsewhere))]

    def _other_brokers(self, home: str) -> list[str]:
        live = sorted(n.name for n in self._cluster.routes.nodes if n.kind == BROKER)
        # Starting after `home`, so that the messages of several unavailable brokers are spread.
        turned = [n for n in live if n > home] + [n for n in live if n < home]
        return turned[:OTHER_BROKERS_MAX]

    async def _send(
        self, broker: str, messages: list[Message], failure: HandlerFailure, *, with_records: bool
    ) -> list[Message]:
        """Send messages back to a broker; return the messages that it did not accept."""
        left: list[Message] = []
        for part in split_calls(messages, with_records=with_records):
            request = SendBackRequest(
                group=self._group,
                messages=[self._failed(each, failure, with_records) for each in part],
                attempts_max=self._policy.attempts_max,
                # A broker with older routes, which may lack the group, updates them first.
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
                log.info("%s did not accept failed messages of %s: %s", broker, self._group, error)
                return left + messages[messages.index(part[0]) :]
            for message, result in zip(part, reply.results, strict=True):
                if result.HasField("error"):
                    refusal = from_wire(result.error)
                    log.info("%s did not accept %s: %s", broker, message, refusal)
                    left.append(message)
                else:
                    self._record_result(message, result, failure)
        return left

    def _failed(
        self, message: Message, failure: HandlerFailure, with_record: bool
    ) -> FailedMessage:
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

    def _delay(self, message: Message, failure: HandlerFailure) -> tuple[int, int]:
        """Return the delay level, or level 0 and the delay in milliseconds."""
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

    def _record_result(self, message: Message, result: SentBack, failure: HandlerFailure) -> None:
        if not result.dead:
            self._statistics.sent_back += 1
            return
        self._statistics.dead += 1
        log.error(
            "%s of topic %s, first stored as %s, failed %d times and became a dead letter in %s: "
            "%s",
            message,
            message.topic,
            result.origin_message_id,
            result.attempts,
            result.topic,
            reason_of(failure),
        )


class DroppingRedelivery:
    """`Redelivery` of broadcasting members: redelivers locally, then drops the message.

    A message is not sent back to the group, because other members have handled it.

    Args:
        statistics: counters.
        attempts_max: failed deliveries after which a message is dropped.
        local: pauses before redeliveries.
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

    async def failed(self, failure: HandlerFailure) -> float | None:
        """Have a failed message redelivered here, or drop it; see `Redelivery`."""
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
    """Return the `Redelivery` for the argument `redelivery` of a consumer. Raises InvalidArgument:
    the argument is neither, or a RetryPolicy of a broadcasting consumer."""
    if not (chosen is None or isinstance(chosen, RetryPolicy) or hasattr(chosen, "failed")):
        raise InvalidArgument(reason=f"redelivery is {chosen!r}, not a RetryPolicy or Redelivery")
    if mode != CLUSTERING:
        if isinstance(chosen, RetryPolicy):
            raise InvalidArgument(reason="a broadcasting consumer has no retry topic")
        return chosen or DroppingRedelivery(statistics)
    if chosen is None or isinstance(chosen, RetryPolicy):
        return RetryTopic(cluster, group, chosen or RetryPolicy(), statistics)
    return chosen


def _position(message: Message) -> tuple[MessageQueue, int]:
    return message.queue, message.queue_offset


def reason_of(failure: HandlerFailure) -> str:
    """Return the reason of a failure, as text for the wire."""
    if failure.exception is None:
        return "the handler returned LATER"
    return exception_text(failure.exception, REASON_CHARACTERS_MAX)


def split_calls(messages: Sequence[Message], *, with_records: bool) -> list[list[Message]]:
    """Split messages into calls within the limits of size and number."""
    parts: list[list[Message]] = []
    size = BYTES_PER_CALL_MAX
    for message in messages:
        size += message.stored_bytes if with_records else 0
        if not parts or len(parts[-1]) >= MESSAGES_PER_CALL_MAX or size > BYTES_PER_CALL_MAX:
            parts.append([])
            size = message.stored_bytes if with_records else 0
        parts[-1].append(message)
    return parts
