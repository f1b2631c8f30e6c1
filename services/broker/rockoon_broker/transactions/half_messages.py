"""The records of a transaction and their references.

A half message is stored in RMQ_SYS_TRANS_HALF_TOPIC, queue 0, as an ordinary record with its
destination in its properties. The record that ends it names it by its physical offset, in the field
that the `pending` package reads:

    committed  the real topic, system flag 0x8, prepared offset = the half's
    rolled     RMQ_SYS_TRANS_OP_HALF_TOPIC, tag d, body "<queue offset>,", prepared offset = ~half's
    given up   TRANS_CHECK_MAX_TIME_TOPIC, the unchanged half message, prepared offset = ~half's

Commits get an op record too, many in one, for RocketMQ: it has no effect here.
Source: TransactionalMessageBridge#parseHalfMessageInner, EndTransactionProcessor,
TransactionalMessageServiceImpl, TransactionalMessageUtil.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rockoon_broker.batch_columns import whole_columns_of
from rockoon_broker.pending.pending_queue import named_source
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_core.errors import MalformedBatch
from rockoon_format.names import (
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
    group_fault,
)
from rockoon_format.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    decode,
    encode,
)
from rockoon_format.record import (
    NO_HOST,
    SYS_FLAG_TRANSACTION,
    TRANSACTION_COMMIT,
    Record,
    without_checksum,
)

HALF_TOPIC = TRANSACTION_HALF_TOPIC
HALF_QUEUE_ID = 0
OP_TOPIC = TRANSACTION_OP_TOPIC
GIVEN_UP_TOPIC = TRANSACTION_CHECK_MAX_TIME_TOPIC
GIVEN_UP_QUEUE_ID = 0

OP_TAG = "d"
OP_SEPARATOR = ","
OP_BODY_BYTES_MAX = 4096
# Longer numbers would not fit into a Java long as milliseconds.
SECONDS_DIGITS_MAX = 15

_DELAYS = (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELAY_MS,
)


class NotAHalfMessage(ValueError):
    """Raised if a record is not, or cannot be, a valid half message; the text has the reason."""


@dataclass(frozen=True, slots=True)
class HalfFacts:
    """Properties of a half message that the broker needs."""

    transaction_id: str
    """Transaction id: the property UNIQ_KEY."""
    group: str
    topic: str
    """Topic to which a commit sends the message."""
    queue_id: int
    immunity_seconds: int | None
    """Minimum age of the first check in seconds; None: the broker's setting."""
    checks: int = 0
    """Number of checks that RocketMQ made."""


def half_record(record: Record) -> Record:
    """Convert a producer's record to a half message. Raises NotAHalfMessage: the record has no id,
    no valid group, or a delay."""
    properties = decode(record.properties)
    for name in (PROPERTY_PRODUCER_GROUP, PROPERTY_UNIQ_KEY):
        if name not in properties:
            raise NotAHalfMessage(f"a half message needs the property {name}")
    if fault := group_fault(properties[PROPERTY_PRODUCER_GROUP]):
        # No producer can be in a group with an invalid name, so none could end it.
        raise NotAHalfMessage(fault)
    for name in _DELAYS:
        if name in properties:
            raise NotAHalfMessage(f"a half message cannot be delayed, it has {name}")
    added = {
        PROPERTY_TRANSACTION_PREPARED: "true",
        PROPERTY_TRANSACTION_ID: properties[PROPERTY_UNIQ_KEY],
        PROPERTY_REAL_TOPIC: record.topic.decode(),
        PROPERTY_REAL_QUEUE_ID: str(record.queue_id),
    }
    kept = without_checksum(record.properties)
    if not kept.endswith(PROPERTY_SEPARATOR):
        kept += PROPERTY_SEPARATOR
    # Of equal names the last one counts, so values set by a producer have no effect.
    missing = {name: value for name, value in added.items() if properties.get(name) != value}
    return replace(
        record,
        topic=HALF_TOPIC.encode(),
        queue_id=HALF_QUEUE_ID,
        properties=kept + encode(missing),
        sys_flag=record.sys_flag & ~SYS_FLAG_TRANSACTION,
    )


def halves_of(batch: AppendBatch) -> list[tuple[Record, HalfFacts]]:
    """Convert a producer's batch to half messages; return the record and the properties of each.
    Raises MalformedBatch: the batch is malformed, or a record cannot be a half message."""
    columns = whole_columns_of(batch)
    name = batch.topic.encode()
    halves = []
    for index in range(len(columns)):
        record = columns.record(index)
        if (record.topic, record.queue_id) != (name, batch.queue_id):
            raise MalformedBatch(index=index, reason="of another topic or queue")
        if record.prepared_transaction_offset:
            raise MalformedBatch(index=index, reason="the record refers to another record")
        try:
            half = half_record(record)
            halves.append((half, facts_of(half)))
        except NotAHalfMessage as failure:
            raise MalformedBatch(index=index, reason=str(failure)) from failure
    return halves


def facts_of(half: Record) -> HalfFacts:
    """Return the properties of a stored half message. Raises NotAHalfMessage: it is not a half
    message, or lacks a property."""
    properties = decode(half.properties)
    if half.topic != HALF_TOPIC.encode():
        raise NotAHalfMessage("the record there is not a half message")
    immunity = properties.get(PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "")
    try:
        return HalfFacts(
            transaction_id=properties.get(PROPERTY_UNIQ_KEY, ""),
            group=properties[PROPERTY_PRODUCER_GROUP],
            topic=properties[PROPERTY_REAL_TOPIC],
            queue_id=int(properties[PROPERTY_REAL_QUEUE_ID]),
            immunity_seconds=seconds_of(immunity),
            checks=seconds_of(properties.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")) or 0,
        )
    except (KeyError, ValueError) as failure:
        raise NotAHalfMessage(f"a half message without its properties: {failure}") from failure


def seconds_of(text: str) -> int | None:
    """Parse a number of seconds; None if it is invalid or too large, as in RocketMQ."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= SECONDS_DIGITS_MAX
    return int(text) if is_number else None


def committed_record(half: Record, facts: HalfFacts) -> Record:
    """Convert a half message to the message that a commit sends; it keeps the transaction
    properties."""
    return replace(
        half,
        topic=facts.topic.encode(),
        queue_id=facts.queue_id,
        sys_flag=half.sys_flag & ~SYS_FLAG_TRANSACTION | TRANSACTION_COMMIT,
        store_host=NO_HOST,
        prepared_transaction_offset=half.physical_offset,
    )


def abandoned_record(half: Record) -> Record:
    """Convert a half message to the record for operators that ends it as abandoned."""
    return replace(
        half,
        topic=GIVEN_UP_TOPIC.encode(),
        queue_id=GIVEN_UP_QUEUE_ID,
        store_host=NO_HOST,
        prepared_transaction_offset=named_source(half.physical_offset),
    )


def rollback_record(half_offset: int, half_position: int, host: bytes, now_ms: int) -> Record:
    """Return the op record that rolls a half message back.

    Args:
        half_offset, half_position: queue offset and physical offset of the half message.
        host: address of the broker in record format.
        now_ms: epoch milliseconds.
    """
    return replace(
        op_record([half_offset], host, now_ms),
        prepared_transaction_offset=named_source(half_position),
    )


def op_record(half_offsets: Iterable[int], host: bytes, now_ms: int) -> Record:
    """Return the op record that reports ended half messages to RocketMQ."""
    return Record(
        topic=OP_TOPIC.encode(),
        queue_id=HALF_QUEUE_ID,
        body="".join(f"{offset}{OP_SEPARATOR}" for offset in half_offsets).encode(),
        properties=encode({PROPERTY_TAGS: OP_TAG}),
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def op_offsets(body: bytes) -> list[int]:
    """Parse queue offsets of half messages from an op record's body; ignores invalid ones."""
    texts = body.decode(errors="replace").split(OP_SEPARATOR)
    return [int(text) for text in texts if text.isascii() and text.isdecimal()]
