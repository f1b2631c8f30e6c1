"""A message's properties: `name 0x01 value 0x02`, repeated.

    +------+------+-------+------+------+------+-------+------+
    | name | 0x01 | value | 0x02 | name | 0x01 | value | 0x02 |  ...
    +------+------+-------+------+------+------+-------+------+

RocketMQ 4.9.1 to 5.1.4 omit the last 0x02, so readers accept both forms.
Source: MessageDecoder#messageProperties2String, #string2messageProperties; names: MessageConst.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

NAME_VALUE_SEPARATOR = b"\x01"
PROPERTY_SEPARATOR = b"\x02"
PROPERTIES_BYTES_MAX = 32_767
KEY_SEPARATOR = " "

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK = "WAIT"
PROPERTY_DELAY_TIME_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PROPERTY_INNER_NUM = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_DUP_INFO = "DUP_INFO"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_TTL = "TTL"
PROPERTY_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_POP_CK = "POP_CK"
PROPERTY_POP_CK_OFFSET = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
PROPERTY_REDIRECT = "REDIRECT"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
# OpenTelemetry's instrumentation of RocketMQ's 5.x clients; see TRACEPARENT.
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_CRC32 = "__CRC32#"
PROPERTY_LITE_TOPIC = "__LITE_TOPIC"
PROPERTY_PRIORITY = "_SYS_MSG_PRIORITY_"
# Rockoon's own: why a consumer sent the message back.
PROPERTY_FAILURE = "ROCKOON_FAILURE"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
PROPERTY_SEQUENCE = "__SEQ"
"""Rockoon's own: see rockoon_format.sequences."""
# W3C Trace Context of the sender's span, written by OpenTelemetry's instrumentation of RocketMQ's
# 4.x clients. Not reserved: a sender may set its own context.
TRACEPARENT = "traceparent"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."

RESERVED_NAMES = frozenset(
    value
    for name, value in tuple(globals().items())
    if name.startswith("PROPERTY_") and isinstance(value, str)
)

# Three bytes that would decode to a lone surrogate become one replacement character in Java and
# three in Python. Tags are hashed, so the difference would change a ConsumeQueue.
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def decode_text(raw: bytes) -> str:
    """Decode UTF-8 as Java's `new String(bytes, UTF_8)` does: malformed input is replaced."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xef\xbf\xbd", raw).decode(errors="replace")


def encode(properties: Mapping[str, str]) -> bytes:
    """Encode properties in the mapping's order, with the closing 0x02.

    Put TAGS first, where the broker finds them without a search. Raises ValueError: a name or value
    is empty (readers would drop the pair), or contains a separator (readers would see other pairs),
    or the result exceeds 32767 bytes.
    """
    pieces = []
    for name, value in properties.items():
        if not name or not value:
            raise ValueError(f"property {name!r} has an empty name or value")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise ValueError(f"property {name!r} contains a separator byte")
        pieces.append(f"{name}\x01{value}\x02")
    raw = "".join(pieces).encode()
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {len(raw)} bytes, more than {PROPERTIES_BYTES_MAX}")
    return raw


def decode(raw: bytes) -> dict[str, str]:
    """Decode properties like a broker; never raises.

    Pairs with an empty name or value are dropped, and the last of equal names wins. The record's
    checksum is dropped: it does not belong to the message, and would be wrong in another record.
    """
    result: dict[str, str] = {}
    for segment in decode_text(raw).split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            result[name] = value
    result.pop(PROPERTY_CRC32, None)
    return result


def find_value(raw: bytes, name: str) -> str | None:
    """Return `decode(raw).get(name)` without parsing the other properties."""
    start, inside = _markers(name)
    last = raw.rfind(inside)
    if last >= 0:
        at = last + len(inside)
    elif raw.startswith(start):
        at = len(start)
    else:
        return None
    end = raw.find(PROPERTY_SEPARATOR, at)
    value = raw[at:] if end < 0 else raw[at:end]
    if value:
        return decode_text(value)
    # An empty value is ignored, but an earlier one of the same name may exist.
    return decode(raw).get(name)


@lru_cache(maxsize=256)
def _markers(name: str) -> tuple[bytes, bytes]:
    start = name.encode() + NAME_VALUE_SEPARATOR
    return start, PROPERTY_SEPARATOR + start


def split_keys(keys: str) -> list[str]:
    """Return the index keys in a KEYS value: its non-empty tokens between single spaces."""
    return [token for token in keys.split(KEY_SEPARATOR) if token]


TRACEPARENT_BYTES = 55
# A consumer with a lag pulls megabytes per call; only the start is searched.
SEARCHED_BYTES_MAX = 64 << 10
TRACEPARENT_MARK = f"{TRACEPARENT}\x01".encode()
"""The bytes before a trace context in a record."""


def find_traceparents(records: bytes, count_max: int) -> list[str]:
    """Return the trace contexts in the first `SEARCHED_BYTES_MAX` bytes of stored records.

    Searches the bytes and decodes no message. Text in a body that looks like one counts as well.

    Args:
        records: records back to back.
        count_max: maximum number of results.
    """
    found: list[str] = []
    at = records.find(TRACEPARENT_MARK, 0, SEARCHED_BYTES_MAX)
    while at >= 0 and len(found) < count_max:
        at += len(TRACEPARENT_MARK)
        found.append(records[at : at + TRACEPARENT_BYTES].decode(errors="replace"))
        at = records.find(TRACEPARENT_MARK, at, SEARCHED_BYTES_MAX)
    return found
