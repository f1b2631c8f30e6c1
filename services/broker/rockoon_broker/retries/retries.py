"""Retry rules: a later retry, or a dead letter. Pure.

    read from                        failed before   stored in                retried
    any topic                        0 times         %RETRY%group             at level 3
    %RETRY%group                     n times         %RETRY%group             at level 3 + n
    %RETRY%group                     max or more     %DLQ%group               never

The group's settings give the number of retries and retry queues; a request may override the former.
RocketMQ drops failed messages of a group without retry queues; here they become dead letters,
because "no retries" does not mean "lose the message".
Source: AbstractSendMessageProcessor#consumerSendMsgBack.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rockoon_core.errors import PropertiesTooLarge
from rockoon_core.group_settings import RETRY_ATTEMPTS_DEFAULT, RETRY_QUEUES_DEFAULT
from rockoon_format.batch import SYS_FLAGS_ALLOWED
from rockoon_format.message_id import encode_offset_id
from rockoon_format.names import dlq_topic, is_dlq_topic, is_retry_topic, retry_topic
from rockoon_format.properties import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_FAILURE,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SEQUENCE,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION_PREPARED,
    decode,
    encode,
)
from rockoon_format.record import Record
from rockoon_proto.v1.nameserver_pb2 import GroupConfig, RouteUpdate

FIRST_LEVEL = 3
# No broker has this many levels: higher levels count as its last, if they fit into 32 bits.
LEVEL_MAX = 2**31 - 1
FAILURE_BYTES_MAX = 512
# Property separators and NULs, which are not readable.
_SPACES = {0: " ", 1: " ", 2: " "}
ATTEMPTS_COUNTED_MAX = 2**31 - 1
"""A record's field cannot hold more."""

# Properties of the previous delivery: if kept, they would repeat its routing or be wrong.
_DELIVERY_PROPERTIES = (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_SEQUENCE,
    PROPERTY_FAILURE,
)


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Retry settings of a group."""

    attempts_max: int = RETRY_ATTEMPTS_DEFAULT
    """Maximum number of retries of a message."""
    queues: int = RETRY_QUEUES_DEFAULT
    """Number of queues of its retry topic on each broker; 0 for no retries."""


class GroupRetryRules:
    """The retry rules of all groups, from the routes."""

    def __init__(self) -> None:
        self._rules: dict[str, RetryRules] = {}

    def apply(self, update: RouteUpdate) -> None:
        if update.snapshot:
            self._rules.clear()
        self._rules |= {group.config.name: rules_of(group.config) for group in update.groups}
        for name in update.removed_groups:
            self._rules.pop(name, None)

    def of(self, group: str) -> RetryRules | None:
        """Return a group's rules; None if the group does not exist."""
        return self._rules.get(group)


def rules_of(config: GroupConfig) -> RetryRules:
    attempts, queues = RETRY_ATTEMPTS_DEFAULT, RETRY_QUEUES_DEFAULT
    if config.HasField("retry_attempts_max"):
        attempts = config.retry_attempts_max
    if config.HasField("retry_queues"):
        queues = config.retry_queues
    return RetryRules(attempts, queues)


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A consumer's report about a failed message."""

    delay_level: int = 0
    """1 or more: this level. 0: a level by the number of attempts. Negative: dead letter."""
    delay_ms: int = 0
    """Delay instead of a level; 0: use the level."""
    attempts_max: int | None = None
    """Overrides the group's setting."""
    reason: str = ""
    deliveries: int = 1
    """Number of failed deliveries, counted in a dead letter."""


@dataclass(frozen=True, slots=True)
class ReturnedMessage:
    """A failed message to be stored again."""

    record: Record
    """With topic and queue id; without offsets and store time."""
    dead: bool
    origin_message_id: str

    @property
    def topic(self) -> str:
        return self.record.topic.decode()


def returned(
    original: Record, group: str, rules: RetryRules, failure: FailureReport, turn: int
) -> ReturnedMessage:
    """Make the record that retries a message or keeps it as a dead letter.

    Args:
        original: as it was read, with offsets and store host.
        failure: the consumer's report.
        turn: any number; selects the retry queue by round robin.

    Returns:
        Body, flag, born time, host and compression are the original's. A retry has the
        delay in its properties.

    Raises:
        PropertiesTooLarge: the added properties do not fit.
    """
    topic = original.topic.decode()
    came_back = topic == retry_topic(group)
    # Failures in another group do not count here.
    failed_before = max(original.reconsume_times, 0) if came_back else 0
    attempts_max = rules.attempts_max if failure.attempts_max is None else failure.attempts_max
    dead = rules.queues <= 0 or failure.delay_level < 0 or failed_before >= attempts_max
    properties = decode(original.properties)
    origin = properties.get(PROPERTY_ORIGIN_MESSAGE_ID) or encode_offset_id(
        original.store_host, original.physical_offset
    )
    if not (is_retry_topic(topic) or is_dlq_topic(topic)):
        properties[PROPERTY_RETRY_TOPIC] = topic
    properties.setdefault(PROPERTY_RETRY_TOPIC, topic)
    properties[PROPERTY_ORIGIN_MESSAGE_ID] = origin
    for name in _DELIVERY_PROPERTIES:
        properties.pop(name, None)
    if not dead:
        properties |= delay_of(failure, failed_before)
    record = Record(
        topic=(dlq_topic(group) if dead else retry_topic(group)).encode(),
        queue_id=0 if dead else turn % rules.queues,
        body=original.body,
        properties=encoded(properties, failure.reason),
        flag=original.flag,
        sys_flag=original.sys_flag & SYS_FLAGS_ALLOWED,
        born_timestamp_ms=original.born_timestamp_ms,
        born_host=original.born_host,
        reconsume_times=min(
            failed_before + (max(failure.deliveries, 1) if dead else 1), ATTEMPTS_COUNTED_MAX
        ),
    )
    return ReturnedMessage(record, dead, origin)


def delay_of(failure: FailureReport, failed_before: int) -> dict[str, str]:
    """Return the property with the delay of a retry."""
    if failure.delay_level == 0 and failure.delay_ms > 0:
        return {PROPERTY_TIMER_DELAY_MS: str(failure.delay_ms)}
    level = failure.delay_level or min(FIRST_LEVEL + failed_before, LEVEL_MAX)
    return {PROPERTY_DELAY_TIME_LEVEL: str(level)}


def encoded(properties: Mapping[str, str], reason: str) -> bytes:
    """Encode properties with the reason, or without it if it does not fit."""
    text = bounded(reason)
    with_reason = {**properties, PROPERTY_FAILURE: text} if text else properties
    tries: Iterable[Mapping[str, str]] = (with_reason, properties)
    for each in tries:
        try:
            return encode(each)
        except ValueError as failure:
            refusal = failure
    raise PropertiesTooLarge(str(refusal))


def bounded(reason: str) -> str:
    """Return a reason as it may be stored in a property."""
    plain = reason.translate(_SPACES).strip()
    return plain.encode(errors="replace")[:FAILURE_BYTES_MAX].decode(errors="ignore")
