"""Stored messages for receivers: conversion of a record to `apache.rocketmq.v2.Message`.

    record's properties ─┬─ the system's ────▶ system_properties (tag, keys, message_group, ...)
                         └─ all others ──────▶ user_properties

Bodies are sent uncompressed: clients support different subsets of the compressions in stores. The
digest is MD5 in upper-case hex, the one form that all clients accept, and is always set: some
clients fail without it.
Source: GrpcConverter#buildMessage, #buildSystemProperties.
"""

from collections.abc import Mapping
from hashlib import md5

from google.protobuf.timestamp_pb2 import Timestamp

from rockoon.errors import InvalidArgument, StoreCorrupt
from rockoon.message import Message
from rockoon_format.names import is_dlq_topic, lite_topic_of
from rockoon_format.properties import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PRIORITY,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    split_keys,
)
from rockoon_gateway.messages.reserved_names import is_reserved
from rockoon_gateway.names import plain_name
from rockoon_gateway.producing.transaction_ids import transaction_id
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as v2

UNDELIVERABLE = (StoreCorrupt, InvalidArgument, ValueError)
"""Exceptions of `to_wire` for a message that cannot be delivered: damage, or invalid numbers."""
TIME_DIGITS_MAX = 14
# Limit of the protocol's fields.
INT32_MAX = (1 << 31) - 1
_DELAYS = (
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_DELAY_TIME_LEVEL,
)


def to_wire(
    message: Message, topic: v2.Resource, *, attempt: int = 1, receipt_handle: str = ""
) -> v2.Message:
    """Convert a stored message to the protocol's message for a receiver.

    Args:
        message: as read.
        topic: as the receiver named it, also for a message from a retry topic.
        attempt: number of this delivery, from 1.
        receipt_handle: for its acknowledgement; empty if it cannot be acknowledged, as in a pull.

    Raises:
        StoreCorrupt, InvalidArgument: see `Message.body`.
        ValueError: it has no id, and no position in a log.
    """
    properties = message.properties
    body = message.body
    system = v2.SystemProperties(
        keys=split_keys(properties.get(PROPERTY_KEYS, "")),
        message_id=properties.get(PROPERTY_UNIQ_KEY) or message.offset_message_id,
        body_digest=v2.Digest(type=v2.MD5, checksum=digest(body)),
        body_encoding=v2.IDENTITY,
        message_type=type_of(properties),
        # The record's own time may be that of its batch.
        born_timestamp=_time(properties.get(PROPERTY_BORN_TIMESTAMP, ""))
        or timestamp(message.born_timestamp_ms),
        born_host=properties.get(PROPERTY_BORN_HOST) or message.born_host[0],
        store_timestamp=timestamp(message.store_timestamp_ms),
        store_host="{}:{}".format(*message.store_host),
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        # The count in a record may be any number.
        delivery_attempt=min(attempt, INT32_MAX),
        tag=properties.get(PROPERTY_TAGS),
        message_group=properties.get(PROPERTY_SHARDING_KEY),
        lite_topic=properties.get(PROPERTY_LITE_TOPIC),
        priority=_priority(properties.get(PROPERTY_PRIORITY, "")),
        trace_context=properties.get(PROPERTY_TRACE_CONTEXT),
        receipt_handle=receipt_handle or None,
        delivery_timestamp=_delivery_timestamp(properties),
        dead_letter_queue=_origin(message, properties, topic.resource_namespace),
    )
    users = {name: value for name, value in properties.items() if not is_reserved(name)}
    if PROPERTY_TRANSACTION_ID in users and message.prepared_transaction_offset > 0:
        # The id that its producer received; the store has the message's id there.
        position = message.queue.broker, message.prepared_transaction_offset
        users[PROPERTY_TRANSACTION_ID] = transaction_id(*position)
    return v2.Message(topic=topic, user_properties=users, system_properties=system, body=body)


def digest(body: bytes) -> str:
    """Return a body's checksum in the form that clients compare."""
    return md5(body, usedforsecurity=False).hexdigest().upper()


def type_of(properties: Mapping[str, str]) -> v2.MessageType:
    """Return the type of a message from its properties; the producer's type is not stored."""
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return v2.TRANSACTION
    if any(name in properties for name in _DELAYS):
        return v2.DELAY
    if PROPERTY_LITE_TOPIC in properties:
        return v2.LITE
    if PROPERTY_PRIORITY in properties:
        return v2.PRIORITY
    return v2.FIFO if PROPERTY_SHARDING_KEY in properties else v2.NORMAL


def timestamp(epoch_ms: int) -> Timestamp:
    """Convert epoch milliseconds to a protobuf Timestamp."""
    seconds, milliseconds = divmod(epoch_ms, 1000)
    return Timestamp(seconds=seconds, nanos=milliseconds * 1_000_000)


def _delivery_timestamp(properties: Mapping[str, str]) -> Timestamp | None:
    return _time(
        properties.get(PROPERTY_TIMER_DELIVER_MS) or properties.get(PROPERTY_TIMER_OUT_MS, "")
    )


def _time(text: str) -> Timestamp | None:
    # A producer of another protocol may have stored any text.
    is_time = text.isascii() and text.isdecimal() and len(text) <= TIME_DIGITS_MAX
    return timestamp(int(text)) if is_time else None


def _priority(text: str) -> int | None:
    is_priority = text.isascii() and text.isdecimal() and len(text) <= len(str(INT32_MAX))
    return min(int(text), INT32_MAX) if is_priority else None


def _origin(
    message: Message, properties: Mapping[str, str], namespace: str
) -> v2.DeadLetterQueue | None:
    """Return the topic and id of the message that became a dead letter, for clients of a namespace;
    None for other messages.
    """
    if not is_dlq_topic(message.queue.topic):
        return None
    topic = properties.get(PROPERTY_DLQ_ORIGIN_TOPIC) or properties.get(PROPERTY_RETRY_TOPIC, "")
    lite = lite_topic_of(topic)
    return v2.DeadLetterQueue(
        # Clients name a lite topic by its parent and the message's `lite_topic`.
        topic=plain_name(lite[0] if lite is not None else topic, namespace) or None,
        message_id=properties.get(PROPERTY_DLQ_ORIGIN_MESSAGE_ID)
        or properties.get(PROPERTY_ORIGIN_MESSAGE_ID),
    )
