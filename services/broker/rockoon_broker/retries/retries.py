"""Retry rules: another try later, or a dead letter. Pure.

    read from                        failed before   goes to                  to come again
    any topic                        0 times         %RETRY%group             at level 3
    %RETRY%group                     n times         %RETRY%group             at level 3 + n
    %RETRY%group                     max or more     %DLQ%group               never

The group's own settings say how often and into how many queues; the request may say it otherwise.
Unlike RocketMQ, which drops what fails in a group without retry queues, such a message is a dead
letter: to say "no retries" is not to say "lose it".
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
# Of no broker: higher ones count as its last, as long as they fit into 32 bits.
LEVEL_MAX = 2**31 - 1
FAILURE_BYTES_MAX = 512
# Separators, and NULs, which nobody could read.
_SPACES = {0: " ", 1: " ", 2: " "}
ATTEMPTS_COUNTED_MAX = 2**31 - 1
"""A record's field holds no more."""

# Of the way the message took before: kept, they would send it that way again, or tell a lie.
_OF_THE_LAST_WAY = (
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
    """What a group says of messages that fail."""

    attempts_max: int = RETRY_ATTEMPTS_DEFAULT
    """How often one comes again."""
    queues: int = RETRY_QUEUES_DEFAULT
    """Of its retry topic on each broker; 0 for no retries."""


class GroupRules:
    """The rules of every group there is, as the routes tell them."""

    def __init__(self) -> None:
        self._rules: dict[str, RetryRules] = {}

    def take(self, update: RouteUpdate) -> None:
        """Put an update of the routes into force."""
        if update.snapshot:
            self._rules.clear()
        self._rules |= {group.config.name: rules_of(group.config) for group in update.groups}
        for name in update.removed_groups:
            self._rules.pop(name, None)

    def of(self, group: str) -> RetryRules | None:
        """A group's rules; None when there is no such group."""
        return self._rules.get(group)


def rules_of(config: GroupConfig) -> RetryRules:
    attempts, queues = RETRY_ATTEMPTS_DEFAULT, RETRY_QUEUES_DEFAULT
    if config.HasField("retry_attempts_max"):
        attempts = config.retry_attempts_max
    if config.HasField("retry_queues"):
        queues = config.retry_queues
    return RetryRules(attempts, queues)


@dataclass(frozen=True, slots=True)
class Failure:
    """What the consumer says of a message."""

    delay_level: int = 0
    """1 or more: that level. 0: by the attempts. Less: it is dead."""
    delay_ms: int = 0
    """Instead of a level; 0 for none."""
    attempts_max: int | None = None
    """Instead of the group's."""
    reason: str = ""
    deliveries: int = 1
    """Failed deliveries that a dead letter counts."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A message on its way back."""

    record: Record
    """For the queue whose id it names; still without offsets and store time."""
    dead: bool
    origin_message_id: str

    @property
    def topic(self) -> str:
        return self.record.topic.decode()


def returned(
    original: Record, group: str, rules: RetryRules, failure: Failure, turn: int
) -> Returned:
    """Make the record that brings a message back, or keeps it as a dead letter.

    Args:
        original: as it was read, offsets and store host included.
        group: whose consumer failed.
        rules: the group's.
        failure: what that consumer says.
        turn: any number; retry queues are filled in turn by it.

    Returns:
        Body, flag, born time and host are the original's, and so is compression. A retry has the
        delay among its properties.

    Raises:
        PropertiesTooLarge: what has to be noted does not fit beside the sender's properties.
    """
    topic = original.topic.decode()
    came_back = topic == retry_topic(group)
    # Dead letters of another group have failed there, and not here.
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
    for name in _OF_THE_LAST_WAY:
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
    return Returned(record, dead, origin)


def delay_of(failure: Failure, failed_before: int) -> dict[str, str]:
    """The property that says when a retry comes."""
    if failure.delay_level == 0 and failure.delay_ms > 0:
        return {PROPERTY_TIMER_DELAY_MS: str(failure.delay_ms)}
    level = failure.delay_level or min(FIRST_LEVEL + failed_before, LEVEL_MAX)
    return {PROPERTY_DELAY_TIME_LEVEL: str(level)}


def encoded(properties: Mapping[str, str], reason: str) -> bytes:
    """Properties with the reason, or without it where it does not fit."""
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
    """A reason as a property may hold it."""
    plain = reason.translate(_SPACES).strip()
    return plain.encode(errors="replace")[:FAILURE_BYTES_MAX].decode(errors="ignore")
