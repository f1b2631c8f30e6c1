"""Rewrites records of delayed messages: to store, deliver, store again, or close them.

A waiting record is stored under another topic, with its own topic and queue in its properties, as
in RocketMQ (HookUtils#handleScheduleMessage, #transformTimerMessage):

    DELAY = level                              SCHEDULE_TOPIC_XXXX, queue level - 1
    TIMER_DELAY_SEC, TIMER_DELAY_MS or         rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS
    TIMER_DELIVER_MS                           = deliver time

The delivered record has its topic and queue again, keeps its properties unchanged (including DELAY
and REAL_TOPIC, as in RocketMQ) and names the record that it was made from. A message
that will never be delivered is closed by a record in rmq_sys_wheel_timer, queue 1, that names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rockoon_broker.pending.pending_queue import named_source
from rockoon_core.errors import DelayTooLong, InvalidDelay, PropertiesTooLarge
from rockoon_format.delay_levels import parse_java_int
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.properties import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQ_KEY,
    decode,
    encode,
    find_value,
)
from rockoon_format.record import (
    NO_HOST,
    SYS_FLAG_TRANSACTION,
    Record,
    encode_host,
)

TIMED_QUEUE = 0
CLOSING_QUEUE = 1
CANCELLED = "cancelled"
UNDELIVERABLE = "undeliverable"

_MILLISECONDS = {
    PROPERTY_TIMER_DELAY_SEC: 1000,
    PROPERTY_TIMER_DELAY_MS: 1,
    PROPERTY_TIMER_DELIVER_MS: 1,
}


@dataclass(frozen=True, slots=True)
class DelayRules:
    levels_ms: tuple[int, ...]
    """Delays of levels 1, 2, ...; higher levels count as the last one."""
    delay_seconds_max: int
    """Maximum delay of a deliver time."""


@dataclass(frozen=True, slots=True)
class AddressedRecord:
    """A waiting record with its topic and queue."""

    topic: str
    queue_id: int
    record: Record


class Undeliverable(Exception):
    """A waiting record does not name a valid destination."""


def waiting_record(
    record: Record, now_ms: int, rules: DelayRules, index: int = 0
) -> AddressedRecord:
    """Rewrite a record for the topic in which it waits.

    Args:
        record: has the topic and queue of its message, with the delay in its properties.
        now_ms: epoch milliseconds.
        index: index of the message in its batch, for errors.

    Raises:
        InvalidDelay: it has no delay, or an invalid one.
        DelayTooLong: its deliver time is too far ahead.
        PropertiesTooLarge: the properties are too large with the added ones.
    """
    properties = decode(record.properties)
    try:
        level = parse_java_int(properties.get(PROPERTY_DELAY_TIME_LEVEL, "0"))
    except ValueError as failure:
        raise InvalidDelay(index=index, reason=f"as level {failure}") from failure
    if level > 0:
        level = min(level, len(rules.levels_ms))
        properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        topic, queue_id = SCHEDULE_TOPIC, level - 1
    else:
        properties.pop(PROPERTY_DELAY_TIME_LEVEL, None)
        deliver_ms = _deliver_ms(properties, now_ms, index)
        ahead_ms = deliver_ms - now_ms
        if ahead_ms > rules.delay_seconds_max * 1000:
            raise DelayTooLong(
                index=index, seconds=-(-ahead_ms // 1000), seconds_max=rules.delay_seconds_max
            )
        properties[PROPERTY_TIMER_OUT_MS] = str(max(deliver_ms, now_ms))
        topic, queue_id = TIMER_TOPIC, TIMED_QUEUE
    properties[PROPERTY_REAL_TOPIC] = record.topic.decode()
    properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
    kept = replace(
        record,
        topic=topic.encode(),
        queue_id=queue_id,
        properties=_encoded(properties, index),
        store_host=NO_HOST,
    )
    return AddressedRecord(topic, queue_id, kept)


def delivered(record: Record) -> Record:
    """Rewrite a waiting record to the message to deliver. Raises Undeliverable: it does not name a
    valid destination."""
    topic, queue_id = destination(record)
    flags = record.sys_flag & ~SYS_FLAG_TRANSACTION
    return replace(
        record,
        topic=topic.encode(),
        queue_id=queue_id,
        sys_flag=flags,
        store_host=NO_HOST,
        prepared_transaction_offset=named_source(record.physical_offset),
    )


def destination(record: Record) -> tuple[str, int]:
    """Return topic and queue of a waiting message. Raises Undeliverable: the record does not name a
    valid destination."""
    topic = find_value(record.properties, PROPERTY_REAL_TOPIC)
    queue_id = find_value(record.properties, PROPERTY_REAL_QUEUE_ID)
    try:
        if topic is None or queue_id is None:
            raise Undeliverable("it does not name its topic and queue")
        return topic, parse_java_int(queue_id)
    except ValueError as failure:
        raise Undeliverable(f"its queue id is invalid: {failure}") from failure


def stored_once_more(record: Record, due_ms: int) -> AddressedRecord:
    """Rewrite a waiting record to store it again, before retention deletes it.

    It gets a deliver time of its own, because a level would count from now on.
    """
    properties = decode(record.properties)
    rolls = properties.get(PROPERTY_TIMER_ROLL_TIMES, "0")
    properties[PROPERTY_TIMER_ROLL_TIMES] = str(int(rolls) + 1 if rolls.isdecimal() else 1)
    properties[PROPERTY_TIMER_OUT_MS] = str(due_ms)
    kept = replace(
        record,
        topic=TIMER_TOPIC.encode(),
        queue_id=TIMED_QUEUE,
        properties=encode(properties),
        sys_flag=record.sys_flag & ~SYS_FLAG_TRANSACTION,
        store_host=NO_HOST,
        prepared_transaction_offset=named_source(record.physical_offset),
    )
    return AddressedRecord(TIMER_TOPIC, TIMED_QUEUE, kept)


def closing(
    source: int, why: str, unique_id: str, now_ms: int, host: tuple[str, int]
) -> AddressedRecord:
    """Return a record that closes a waiting record without delivery.

    Args:
        source: physical offset of the waiting record.
        why: CANCELLED or UNDELIVERABLE.
        unique_id: UNIQ_KEY of the message, if it has one.
        now_ms: epoch milliseconds.
    """
    properties = {PROPERTY_TAGS: why}
    if unique_id:
        properties[PROPERTY_TIMER_DEL_UNIQKEY] = unique_id
    record = Record(
        topic=TIMER_TOPIC.encode(),
        queue_id=CLOSING_QUEUE,
        properties=encode(properties),
        born_timestamp_ms=now_ms,
        born_host=encode_host(*host),
        prepared_transaction_offset=named_source(source),
    )
    return AddressedRecord(TIMER_TOPIC, CLOSING_QUEUE, record)


def unique_id_of(record: Record) -> str:
    """Return a message's UNIQ_KEY, empty if it has none."""
    return find_value(record.properties, PROPERTY_UNIQ_KEY) or ""


def level_of(record: Record) -> int:
    """Return the delay level of a waiting record, 0 if it has its own deliver time."""
    return record.queue_id + 1 if record.topic == SCHEDULE_TOPIC.encode() else 0


def _deliver_ms(properties: Mapping[str, str], now_ms: int, index: int) -> int:
    for name, unit_ms in _MILLISECONDS.items():
        text = properties.get(name)
        if text is None:
            continue
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise InvalidDelay(index=index, reason=f"{name} is {text!r}, not a number")
        given_ms = int(text) * unit_ms
        return given_ms if name == PROPERTY_TIMER_DELIVER_MS else now_ms + given_ms
    raise InvalidDelay(index=index, reason="neither a delay level nor a deliver time is given")


def _encoded(properties: Mapping[str, str], index: int) -> bytes:
    try:
        return encode(properties)
    except ValueError as failure:
        raise PropertiesTooLarge(index=index, limit=PROPERTIES_BYTES_MAX) from failure
