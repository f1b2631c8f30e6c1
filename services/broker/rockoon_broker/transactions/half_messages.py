"""The records of a transaction, and what they say of one another.

A half message is stored in RMQ_SYS_TRANS_HALF_TOPIC, queue 0, as an ordinary record whose
properties name where it belongs. What ends it names it by its physical offset, in the field that
the `pending` package reads:

    committed  the real topic, system flag 0x8, prepared offset = the half's
    rolled     RMQ_SYS_TRANS_OP_HALF_TOPIC, tag d, body "<queue offset>,", prepared offset = ~half's
    given up   TRANS_CHECK_MAX_TIME_TOPIC, the half message as it was, prepared offset = ~half's

Commits get an op record too, for RocketMQ's readers, many in one: it completes nothing here.
Source: TransactionalMessageBridge#parseHalfMessageInner, EndTransactionProcessor,
TransactionalMessageServiceImpl, TransactionalMessageUtil.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rockoon_broker.batch_columns import whole_columns_of
from rockoon_broker.pending.sources import named_source
from rockoon_broker.store.log.batch import Batch
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
# More would not fit into a Java long as milliseconds.
SECONDS_DIGITS_MAX = 15

_DELAYS = (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELAY_MS,
)


class NotAHalfMessage(ValueError):
    """A record that cannot be, or is not, a half message; the text says why."""


@dataclass(frozen=True, slots=True)
class HalfFacts:
    """What a half message says of itself."""

    transaction_id: str
    """UNIQ_KEY."""
    group: str
    topic: str
    """Where it goes when it is committed."""
    queue_id: int
    immunity_seconds: int | None
    """How long its sender is not to be asked; None for the broker's own time."""
    checks: int = 0
    """How often RocketMQ has asked about it."""


def half_record(record: Record) -> Record:
    """The half message of a producer's record.

    Raises:
        NotAHalfMessage: it has no id, no group that can be one, or a delay.
    """
    properties = decode(record.properties)
    for name in (PROPERTY_PRODUCER_GROUP, PROPERTY_UNIQ_KEY):
        if name not in properties:
            raise NotAHalfMessage(f"a half message needs the property {name}")
    if fault := group_fault(properties[PROPERTY_PRODUCER_GROUP]):
        # Nobody of such a group could end it, or be asked about it.
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
    # Of equal names the last one counts, so what a producer may have set does no harm.
    missing = {name: value for name, value in added.items() if properties.get(name) != value}
    return replace(
        record,
        topic=HALF_TOPIC.encode(),
        queue_id=HALF_QUEUE_ID,
        properties=kept + encode(missing),
        sys_flag=record.sys_flag & ~SYS_FLAG_TRANSACTION,
    )


def halves_of(batch: Batch) -> list[tuple[Record, HalfFacts]]:
    """What a producer's batch is stored as, and what each record says of itself.

    Raises:
        MalformedBatch: the batch is none, or a record cannot be a half message.
    """
    columns = whole_columns_of(batch)
    name = batch.topic.encode()
    halves = []
    for index in range(len(columns)):
        record = columns.record(index)
        if (record.topic, record.queue_id) != (name, batch.queue_id):
            raise MalformedBatch(index=index, reason="of another topic or queue")
        if record.prepared_transaction_offset:
            raise MalformedBatch(index=index, reason="it names another record")
        try:
            half = half_record(record)
            halves.append((half, facts_of(half)))
        except NotAHalfMessage as failure:
            raise MalformedBatch(index=index, reason=str(failure)) from failure
    return halves


def facts_of(half: Record) -> HalfFacts:
    """What a stored half message says of itself.

    Raises:
        NotAHalfMessage: it is none, or lacks what every one has.
    """
    properties = decode(half.properties)
    if half.topic != HALF_TOPIC.encode():
        raise NotAHalfMessage("no half message is there")
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
    """A number of seconds; whatever is none, or too large, does not count, as in RocketMQ."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= SECONDS_DIGITS_MAX
    return int(text) if is_number else None


def committed_record(half: Record, facts: HalfFacts) -> Record:
    """The message that a half message becomes; its properties still tell of the transaction."""
    return replace(
        half,
        topic=facts.topic.encode(),
        queue_id=facts.queue_id,
        sys_flag=half.sys_flag & ~SYS_FLAG_TRANSACTION | TRANSACTION_COMMIT,
        store_host=NO_HOST,
        prepared_transaction_offset=half.physical_offset,
    )


def given_up_record(half: Record) -> Record:
    """The half message as operators find it when nobody has ended it."""
    return replace(
        half,
        topic=GIVEN_UP_TOPIC.encode(),
        queue_id=GIVEN_UP_QUEUE_ID,
        store_host=NO_HOST,
        prepared_transaction_offset=named_source(half.physical_offset),
    )


def rollback_record(half_offset: int, half_position: int, host: bytes, now_ms: int) -> Record:
    """The op record that ends a half message without a message.

    Args:
        half_offset, half_position: queue offset and physical offset of the half message.
        host: the broker's, as records hold it.
        now_ms: epoch milliseconds.
    """
    return replace(
        op_record([half_offset], host, now_ms),
        prepared_transaction_offset=named_source(half_position),
    )


def op_record(half_offsets: Iterable[int], host: bytes, now_ms: int) -> Record:
    """The op record that tells RocketMQ's readers which half messages have ended."""
    return Record(
        topic=OP_TOPIC.encode(),
        queue_id=HALF_QUEUE_ID,
        body="".join(f"{offset}{OP_SEPARATOR}" for offset in half_offsets).encode(),
        properties=encode({PROPERTY_TAGS: OP_TAG}),
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def op_offsets(body: bytes) -> list[int]:
    """The half messages' queue offsets that an op record's body names; what is none is left out."""
    texts = body.decode(errors="replace").split(OP_SEPARATOR)
    return [int(text) for text in texts if text.isascii() and text.isdecimal()]
