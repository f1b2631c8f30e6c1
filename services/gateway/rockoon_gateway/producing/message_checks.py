"""Checks of a message that a client sends, and the properties that are stored with it. Pure.

Source: SendMessageActivity, GrpcValidator and GrpcConverter of RocketMQ's proxy: the same checks,
limits and codes.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

from rockoon_format.names import GROUP_BYTES_MAX, lite_topic_fault
from rockoon_format.properties import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    encode,
)
from rockoon_gateway.codes import Refusal
from rockoon_gateway.delivered import is_reserved
from rockoon_gateway.names import duration_ms, epoch_ms
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    Code,
    Encoding,
    Message,
    MessageType,
    SystemProperties,
)

USER_PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16_384
MESSAGE_GROUP_BYTES_MAX = 63
MESSAGE_ID_BYTES_MAX = 255
BORN_HOST_BYTES_MAX = 255
TRACE_CONTEXT_BYTES_MAX = 4096
RECOVERY_SECONDS_MAX = 3600
# Bytes that compression may add to a body that it does not make smaller.
PACKING_BYTES_MAX = 64 << 10
# Limit of a request's uncompressed bodies: equal to the limit of an uncompressed request.
BODIES_BYTES_MAX = 130 << 20
# ISO control characters: Java's Character.isISOControl.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Cached: the generated code looks up an enum's value by its name, each time.
_TRANSACTION, _DELAY, _FIFO, _LITE, _PRIORITY, _NORMAL = (
    MessageType.TRANSACTION, MessageType.DELAY, MessageType.FIFO, MessageType.LITE,
    MessageType.PRIORITY, MessageType.NORMAL,
)  # fmt: skip
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = Encoding.GZIP
_TYPES, _ENCODINGS = frozenset(MessageType.values()), frozenset(Encoding.values())
# Fields that a message of a type must not have.
_EXCLUDED: Mapping[MessageType, Sequence[str]] = {
    _TRANSACTION: ("delivery_timestamp", "lite_topic", "priority"),
    _DELAY: ("lite_topic",),
}


@dataclass(frozen=True, slots=True)
class SendLimits:
    """Limits of messages that producers send, from the settings.

    Attributes:
        body_bytes_max: largest body.
        delay_ms_max: how far ahead a delivery time may be.
    """

    body_bytes_max: int
    delay_ms_max: int


class AcceptedMessage(NamedTuple):
    """A producer's message that was checked and can be stored.

    Attributes:
        message_id: id that the client's SDK has made.
        body: uncompressed.
        message_type: from its properties.
        message_group: empty without one.
        properties: encoded.
        deliver_at_ms: delivery time of a delayed message, epoch milliseconds; else 0.
        lite_topic: empty without one.
        priority: 0 without one.
    """

    message_id: str
    body: bytes
    message_type: MessageType
    message_group: str
    properties: bytes
    deliver_at_ms: int
    lite_topic: str = ""
    priority: int = 0


def has_control(text: str) -> bool:
    """True if a text has an ISO control character, which is never printable."""
    return not text.isprintable() and _CONTROL.search(text) is not None


def without_control(text: str) -> str:
    """Return a text without its ISO control characters."""
    return text if text.isprintable() else _CONTROL.sub("", text)


def all_accepted(
    topic: str, messages: Iterable[Message], limits: SendLimits, now_ms: int
) -> list[AcceptedMessage]:
    """Check all messages of a request like `accepted`; raises Refusal."""
    found = []
    left = BODIES_BYTES_MAX
    for message in messages:
        found.append(accepted(topic, message, limits, now_ms))
        left -= len(found[-1].body)
        if left < 0:
            raise Refusal(
                Code.MESSAGE_BODY_TOO_LARGE, f"bodies of more than {BODIES_BYTES_MAX} bytes"
            )
    return found


def accepted(topic: str, message: Message, limits: SendLimits, now_ms: int) -> AcceptedMessage:
    """Return a client's message in the form to be stored. Raises Refusal with the fault's code.

    Args:
        topic: checked.
        now_ms: epoch milliseconds.
    """
    system = message.system_properties
    body = checked_body(message, limits.body_bytes_max)
    check_properties(message.user_properties, system)
    message_id = system.message_id
    if not message_id.strip() or has_control(message_id):
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, f"{message_id!r} is not a message id")
    check_bytes("message id", message_id, MESSAGE_ID_BYTES_MAX, Code.ILLEGAL_MESSAGE_ID)
    properties = stored_properties(message)
    group = properties.get(PROPERTY_SHARDING_KEY, "")
    deliver_at_ms = 0
    if system.HasField("delivery_timestamp"):
        code = Code.ILLEGAL_DELIVERY_TIME
        deliver_at_ms = epoch_ms(system.delivery_timestamp, "delivery_timestamp", code)
        if deliver_at_ms - now_ms > limits.delay_ms_max:
            raise Refusal(
                Code.ILLEGAL_DELIVERY_TIME,
                f"it is {(deliver_at_ms - now_ms) // 1000} s ahead, more than "
                f"{limits.delay_ms_max // 1000}",
            )
        properties[PROPERTY_TIMER_DELIVER_MS] = str(deliver_at_ms)
    message_type = checked_type(system, group)
    if message_type == _TRANSACTION:
        check_transactions(topic)
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        properties[PROPERTY_PRODUCER_GROUP] = producer_group(topic)
    lite_topic = system.lite_topic if message_type == _LITE else ""
    return AcceptedMessage(
        message_id,
        body,
        message_type,
        group,
        encode(properties),
        deliver_at_ms,
        lite_topic,
        system.priority,
    )


def producer_group(topic: str) -> str:
    """Return the group of producers that are asked about a topic's half messages: the topic's name,
    as in RocketMQ's proxy."""
    return topic


def check_transactions(topic: str) -> None:
    """Raise Refusal if a topic's name is too long for a group's, which transactions need."""
    if len(topic.encode()) > GROUP_BYTES_MAX:
        raise Refusal(
            Code.ILLEGAL_TOPIC,
            f"topic {topic!r} accepts no transactions: its name exceeds {GROUP_BYTES_MAX} bytes",
        )


def checked_type(system: SystemProperties, message_group: str) -> MessageType:
    """Check the properties that give the type of a message, and return the type; see `type_of`.

    Raises:
        Refusal: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, for a type that the protocol does not have, or
            properties of two types that exclude each other.
    """
    code = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    if system.message_type not in _TYPES:
        raise Refusal(code, f"{system.message_type} is not a type of messages")
    message_type = type_of(system, message_group)
    for name in _EXCLUDED.get(message_type, ()):
        if system.HasField(name):
            raise Refusal(code, f"a {MessageType.Name(message_type)} message has no {name}")
    return message_type


def type_of(system: SystemProperties, message_group: str) -> MessageType:
    """Return the type of a message; its properties decide rather than its type field."""
    if system.message_type == _TRANSACTION:
        return _TRANSACTION
    if system.HasField("delivery_timestamp"):
        return _DELAY
    if message_group:
        return _FIFO
    if system.HasField("lite_topic"):
        return _LITE
    return _PRIORITY if system.HasField("priority") else _NORMAL


def checked_body(message: Message, bytes_max: int) -> bytes:
    """Return the body to be stored, uncompressed; raises Refusal."""
    body = message.body
    if not body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "a message has no body")
    encoding = message.system_properties.body_encoding
    if encoding not in _ENCODINGS:
        raise Refusal(Code.MESSAGE_CORRUPTED, f"{encoding} is not an encoding of bodies")
    if encoding == _GZIP:
        if len(body) > bytes_max + PACKING_BYTES_MAX:
            raise Refusal(Code.MESSAGE_BODY_TOO_LARGE, f"a body has {len(body)} bytes, even packed")
        body = unpacked(body, bytes_max)
    if len(body) > bytes_max:
        raise Refusal(
            Code.MESSAGE_BODY_TOO_LARGE, f"a body has {len(body)} bytes, more than {bytes_max}"
        )
    return body


def unpacked(body: bytes, bytes_max: int) -> bytes:
    """Unpack a body whose encoding is GZIP.

    The C++ client sends a zlib stream (RFC 1950) under that name for bodies from 4 MiB on, so the
    first bytes decide.

    Returns:
        The body; one byte more than `bytes_max` if it is longer than that.

    Raises:
        Refusal: it is neither a gzip file nor a zlib stream, or it is cut short.
    """
    try:
        if body.startswith(_GZIP_MAGIC):
            with gzip.open(BytesIO(body)) as stream:
                return stream.read(bytes_max + 1)
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(body, bytes_max + 1)
        if not unpacker.eof and len(found) <= bytes_max:
            raise EOFError("it is cut short")
    except (OSError, EOFError, zlib.error) as failure:
        raise Refusal(
            Code.MESSAGE_CORRUPTED, f"a body is neither gzip nor zlib: {failure}"
        ) from failure
    return found


def check_properties(user: Mapping[str, str], system: SystemProperties) -> None:
    """Raise Refusal for properties that cannot be stored, or must not be set."""
    tag, keys = system.tag, system.keys
    size = len(tag.encode())
    # Most messages have neither, and empty loops cost time too.
    if user:
        if len(user) > USER_PROPERTIES_MAX:
            raise Refusal(
                Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"a message has {len(user)} properties, more than {USER_PROPERTIES_MAX}",
            )
        size += sum(len(name.encode()) + len(value.encode()) for name, value in user.items())
    if keys:
        # They are stored separated by blanks.
        size += sum(len(key.encode()) for key in keys) + len(keys) - 1
    if size > PROPERTIES_BYTES_MAX:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes, more than {PROPERTIES_BYTES_MAX}",
        )
    if user:
        check_user_properties(user)
    if (tag or system.HasField("tag")) and (not tag.strip() or "|" in tag or has_control(tag)):
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, f"{tag!r} is not a tag")
    for key in keys:
        if not key.strip() or has_control(key):
            raise Refusal(Code.ILLEGAL_MESSAGE_KEY, f"{key!r} is not a key")
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or len(group.encode()) > MESSAGE_GROUP_BYTES_MAX or has_control(group):
            raise Refusal(Code.ILLEGAL_MESSAGE_GROUP, f"{group!r} is not a message group")
    if system.HasField("lite_topic"):
        if fault := lite_topic_fault(system.lite_topic):
            raise Refusal(Code.ILLEGAL_LITE_TOPIC, fault)
        if system.HasField("message_group"):
            raise Refusal(Code.ILLEGAL_MESSAGE_GROUP, "a lite topic is one message group itself")
    if system.priority < 0:
        raise Refusal(Code.BAD_REQUEST, f"priority {system.priority} is less than 0")
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return
    if (seconds := recovery_seconds(system)) > RECOVERY_SECONDS_MAX:
        raise Refusal(
            Code.BAD_REQUEST,
            f"a transaction's recovery is {seconds} s away, more than {RECOVERY_SECONDS_MAX}",
        )


def recovery_seconds(system: SystemProperties) -> int:
    """Return the seconds before the first check of a half message; raises Refusal."""
    name = "orphaned_transaction_recovery_duration"
    return duration_ms(system.orphaned_transaction_recovery_duration, name) // 1000


def check_bytes(name: str, value: str, bytes_max: int, code: Code) -> None:
    """Raise Refusal if a text of a message is longer than its field permits."""
    if len(value) > bytes_max or len(value.encode()) > bytes_max:
        raise Refusal(code, f"the {name} has {len(value.encode())} bytes, more than {bytes_max}")


def check_user_properties(user: Mapping[str, str]) -> None:
    """Raise Refusal if a message has properties that a producer must not set."""
    for name, value in user.items():
        if not name or is_reserved(name):
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"{name!r} is reserved")
        if has_control(name) or has_control(value):
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"{name!r} has a control character")


def stored_properties(message: Message) -> dict[str, str]:
    """Return the properties to store, without those of the message's type; TAGS first, where
    brokers look.

    A property without a value is left out: readers would not see it.

    Raises:
        Refusal: a system property is too long, or is a time out of range.
    """
    system = message.system_properties
    found = {PROPERTY_TAGS: tag} if (tag := system.tag) else {}
    found[PROPERTY_UNIQ_KEY] = system.message_id
    if keys := system.keys:
        found[PROPERTY_KEYS] = " ".join(keys)
    if user := message.user_properties:
        found |= {name: value for name, value in user.items() if value}
    if system.HasField("message_group"):
        found[PROPERTY_SHARDING_KEY] = system.message_group
    if system.HasField("lite_topic"):
        found[PROPERTY_LITE_TOPIC] = system.lite_topic
    if system.HasField("priority"):
        found[PROPERTY_PRIORITY] = str(system.priority)
    too_large = Code.MESSAGE_PROPERTIES_TOO_LARGE
    if trace := without_control(system.trace_context):
        check_bytes("trace context", trace, TRACE_CONTEXT_BYTES_MAX, too_large)
        found[PROPERTY_TRACE_CONTEXT] = trace
    if system.HasField("born_timestamp"):
        found[PROPERTY_BORN_TIMESTAMP] = str(epoch_ms(system.born_timestamp, "born_timestamp"))
    if host := without_control(system.born_host):
        check_bytes("born host", host, BORN_HOST_BYTES_MAX, too_large)
        found[PROPERTY_BORN_HOST] = host
    if (attempt := system.delivery_attempt) > 0:
        found[PROPERTY_RECONSUME_TIME] = str(attempt)
    if system.HasField("orphaned_transaction_recovery_duration"):
        immunity = str(max(recovery_seconds(system), 0))
        found[PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS] = immunity
    return found
