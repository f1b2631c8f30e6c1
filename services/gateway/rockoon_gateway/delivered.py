"""Stored messages for receivers: records as messages of the protocol, and replies to a
ReceiveMessage call as gRPC frames.

The kernel serializes most messages, a run at a time; `to_wire` converts the rest. The results are
equal.

    record's properties ─┬─ the system's ────▶ system_properties (tag, keys, message_group, ...)
                         └─ all others ──────▶ user_properties

Bodies are sent uncompressed: clients support different subsets of the compressions in stores. The
digest is MD5 in upper-case hex, the one form that all clients accept, and is always set: some
clients fail without it.
Source: GrpcConverter#buildMessage, #buildSystemProperties.
"""

import logging
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import md5
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from rockoon.errors import InvalidArgument, StoreCorrupt
from rockoon.message import Message
from rockoon.receiving.received import ReceivedMessages, ReceivedRun
from rockoon_format import kernel
from rockoon_format.names import is_dlq_topic, lite_topic_of
from rockoon_format.properties import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_FAILURE,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PRIORITY,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SEQUENCE,
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
    TRANSIENT_PREFIX,
    split_keys,
)
from rockoon_gateway.consuming.handles import Handle
from rockoon_gateway.names import plain_name
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as v2
from rockoon_proto.apache.rocketmq.v2.service_pb2 import ReceiveMessageResponse
from rockoon_rpc.session import framed

log = logging.getLogger(__name__)

# A 64-bit positive integer in hexadecimal, and the name of a node.
_FORM = re.compile(r"([0-7][0-9a-f]{15})@([A-Za-z0-9._-]{1,100})", re.ASCII)


class TransactionPosition(NamedTuple):
    """Position of a half message in its broker."""

    broker: str
    physical_offset: int


def transaction_id(broker: str, physical_offset: int) -> str:
    """Return the id of a half message's transaction: its position, as text.

    A client sends the id back with EndTransaction, maybe to another gateway, or to a restarted one.
    So the id alone identifies the half message, and gateways keep no table.

    Args:
        broker: the broker's name.
        physical_offset: physical offset of the half message's record; the committed message's
            record contains it too.
    """
    return f"{physical_offset:016x}@{broker}"


def parse_transaction_id(text: str) -> TransactionPosition | None:
    """Parse a transaction id; None if it is malformed."""
    found = _FORM.fullmatch(text)
    return TransactionPosition(found[2], int(found[1], 16)) if found else None


# Property names that producers must not set and receivers do not see: RocketMQ's list
# (MessageConst.STRING_HASH_SET). It is shorter than Rockoon's: RocketMQ's clients show other names
# to users, for example `__SHARDINGKEY`, `__transactionId__` and `TRACE_CONTEXT`.
_ROCKETMQ = (
    "TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP "
    "MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG "
    "RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET "
    "1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID "
    "REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET "
    "TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS "
    "TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP "
    "DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#"
)
RESERVED = frozenset(_ROCKETMQ.split()) | {
    PROPERTY_FAILURE,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_SEQUENCE,
}


def is_reserved(name: str) -> bool:
    """True if a property belongs to the system."""
    return name in RESERVED or name.startswith(TRANSIENT_PREFIX)


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
    """Return the topic and id of a dead letter's message, for a namespace; else None."""
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


ANSWER_BYTES_MAX = 8 << 20
"""Maximum bytes of one receive, which has at least one message: all bodies are unpacked in
memory.
"""
PIECE_BYTES_MAX = 64 << 10
"""Maximum bytes of one write. A client that disconnects has received the written pieces, and none
of the rest.
"""


class Answers(NamedTuple):
    """Serialized replies to one ReceiveMessage call."""

    messages: ReceivedMessages
    """Messages whose replies are in `frames`."""
    frames: bytes
    """Replies to the client, concatenated, each a gRPC frame."""
    ends: list[int]
    """Position of the end of each frame in `frames`."""
    left: ReceivedMessages
    """Messages that were not serialized, because they exceed the maximum bytes."""

    def pieces(self, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[tuple[bytes, int]]:
        """Yield frames in pieces of about `bytes_max`, cut between messages, with their number."""
        if len(self.frames) <= bytes_max and self.ends:
            yield self.frames, len(self.ends)
            return
        first = begin = 0
        while first < len(self.ends):
            end = max(bisect_right(self.ends, begin + bytes_max), first + 1)
            yield self.frames[begin : self.ends[end - 1]], end - first
            first, begin = end, self.ends[end - 1]


def answers_to(
    received: ReceivedMessages,
    topic: v2.Resource,
    valid_until_ms: int,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> Answers:
    """Serialize the replies for received messages. Messages that cannot be delivered are left out
    and logged.

    Args:
        topic: as the receiver named it.
        valid_until_ms: validity of receipt handles, epoch milliseconds; 0: leases are extended.
        bytes_max: after this many bytes at most one more message is written.
    """
    field = v2.Message(topic=topic).SerializeToString()
    runs: list[ReceivedRun] = []
    pieces: list[bytes] = []
    ends: list[int] = []
    size = done = 0
    for each in received.runs:
        room = bytes_max - size
        fitting = _fitting(each, room) or (0 if ends else 1)
        run = each if fitting == len(each.offsets) else each.part(0, fitting)
        frames, own, rare = _by_kernel(run, field, valid_until_ms)
        parts = [run]
        if rare:
            frames, own, parts, fitting = _completed(run, frames, own, topic, valid_until_ms, room)
        runs += parts
        pieces.append(frames)
        ends += [size + end for end in own] if size else own
        size += len(frames)
        done += fitting
        if fitting < len(each.offsets):
            break
    left = received[done:] if done < len(received) else ReceivedMessages()
    return Answers(ReceivedMessages(runs), b"".join(pieces), ends, left)


def _fitting(run: ReceivedRun, room: int) -> int:
    """Return how many messages of a run fit into a number of bytes, by their stored sizes."""
    if run.batch.size_bytes <= room:
        return len(run.offsets)
    stored = run.batch.columns.lengths[np.asarray(run.indices)]
    return int(np.searchsorted(np.cumsum(stored, dtype=np.int64), room, side="right"))


def _by_kernel(run: ReceivedRun, topic: bytes, valid_until_ms: int) -> tuple[bytes, list[int], int]:
    """Serialize a run of messages with the kernel; returns frames, the end of each, and how many
    messages are left out (empty frames).
    """
    count = len(run.offsets)
    is_usual = not (is_dlq_topic(run.queue.topic) or len(run.batch.columns.damaged))
    if not is_usual:
        return b"", [0] * count, count
    made: tuple[bytes, list[int], int] = _writer(kernel.native).framed(
        *run.batch.columns.places(run.indices),
        array("q", run.offsets).tobytes(),
        topic,
        run.queue.broker.encode(),
        run.queue.queue_id,
        run.attempt,
        f"{run.queue}/{run.acquisition}/".encode(),
        f"/{valid_until_ms}".encode(),
    )
    return made


@lru_cache(maxsize=1)
def _writer(native: ModuleType) -> Any:
    return native.DeliveredAnswers([name.encode() for name in RESERVED], TRANSIENT_PREFIX.encode())


def _completed(
    run: ReceivedRun,
    frames: bytes,
    ends: list[int],
    topic: v2.Resource,
    valid_until_ms: int,
    room: int,
) -> tuple[bytes, list[int], list[ReceivedRun], int]:
    """Add the messages that the kernel left out, up to the limit; returns frames, ends, runs, and
    the number of processed messages. Messages that cannot be delivered are dropped."""
    begin = size = 0
    pieces: list[bytes] = []
    own: list[int] = []
    runs: list[ReceivedRun] = []
    for number, end in enumerate(ends):
        if size >= room:
            return b"".join(pieces), own, runs, number
        piece = frames[begin:end] or _framed(run, number, topic, valid_until_ms)
        begin = end
        if piece:
            size += len(piece)
            pieces.append(piece)
            own.append(size)
            runs.append(run.part(number, number + 1))
    return b"".join(pieces), own, runs, len(ends)


def _framed(run: ReceivedRun, number: int, topic: v2.Resource, valid_until_ms: int) -> bytes:
    message = run.message(number)
    handle = Handle(message.receipt, valid_until_ms).text()
    try:
        wire = to_wire(message, topic, attempt=message.attempt, receipt_handle=handle)
    except UNDELIVERABLE as failure:
        # It becomes visible again after its lease, until its attempts are used up.
        log.error("%s cannot be delivered: %s", message.receipt.text(), failure)  # noqa: TRY400
        return b""
    except Exception:
        # One faulty message must not block the rest.
        log.exception("unexpected error while converting %s (bug)", message.receipt.text())
        return b""
    return framed(ReceiveMessageResponse(message=wire).SerializeToString())
