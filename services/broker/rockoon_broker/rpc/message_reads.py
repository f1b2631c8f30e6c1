"""The Read call: messages of a queue from an offset on, or one message by its offsetMsgId. The
QueryMessages call: messages with a key.
"""

from functools import partial

import numpy as np

from rockoon_broker import cold_reads
from rockoon_broker.broker import Broker
from rockoon_broker.clock import Clock
from rockoon_broker.index.query import (
    END_OF_TIME_MS,
    MESSAGES_DEFAULT,
    MESSAGES_MAX,
    KeyAnswer,
    KeyQuery,
    answer,
)
from rockoon_broker.pull import BYTES_MAX
from rockoon_broker.rpc.queue_states import OFFSET_MAX
from rockoon_broker.store.errors import StoreDamaged, UnknownOffset
from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_core.errors import (
    IndexOff,
    InvalidArgument,
    InvalidOffset,
    MessageNotFound,
    RouteNotReached,
    StoreCorrupt,
    TopicNotFound,
    TopicNotReadable,
)
from rockoon_format.message_id import decode_offset_id
from rockoon_format.names import topic_need
from rockoon_format.properties import KEY_SEPARATOR
from rockoon_format.record import decode_record
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.access.callers import current_caller

KEY_CHARACTERS_MAX = 32_767


def to_query(request: broker_pb2.QueryMessagesRequest) -> KeyQuery:
    """Decode and validate a request. Raises InvalidArgument: a field is out of bounds."""
    key = request.key
    if not key:
        raise InvalidArgument(reason="the key is empty")
    if KEY_SEPARATOR in key:
        raise InvalidArgument(reason=f"{key!r} has a space, which separates keys: use one key")
    if any(character < " " for character in key) or len(key) > KEY_CHARACTERS_MAX:
        raise InvalidArgument(
            reason=f"no message has a key with control characters or of {len(key)} characters"
        )
    if request.kind not in (broker_pb2.KEY, broker_pb2.UNIQUE_ID):
        raise InvalidArgument(reason=f"{request.kind} is not a kind of key")
    if not 0 <= request.max_messages <= MESSAGES_MAX:
        raise InvalidArgument(reason=f"{request.max_messages} messages, not 1 to {MESSAGES_MAX}")
    end_ms = request.end_ms or END_OF_TIME_MS
    if not 0 <= request.begin_ms <= end_ms <= END_OF_TIME_MS:
        raise InvalidArgument(
            reason=f"the time range from {request.begin_ms} to {request.end_ms} is invalid: "
            "it begins before 0 or after its end"
        )
    return KeyQuery(
        topic=request.topic,
        key=key,
        unique=request.kind == broker_pb2.UNIQUE_ID,
        begin_ms=request.begin_ms,
        end_ms=end_ms,
        messages_max=request.max_messages or MESSAGES_DEFAULT,
    )


async def query_messages(
    broker: Broker, request: broker_pb2.QueryMessagesRequest, clock: Clock
) -> broker_pb2.QueryMessagesReply:
    """Answer a request.

    Raises:
        InvalidArgument: a field is out of bounds.
        TopicNotFound, TopicNotReadable: the topic.
        RouteNotReached: the topic is unknown here, but the caller's routes are newer.
        IndexOff: this broker keeps no index, and has no compacted messages of the topic.
        StoreCorrupt: the disk refuses to read a message of the index.
    """
    query = to_query(request)
    await broker.topics.catch_up([(query.topic, 0)], request.route_revision)
    found = broker.topics.table.topics.get(query.topic)
    if found is None and request.route_revision > broker.topics.table.revision:
        raise RouteNotReached(wanted=request.route_revision, revision=broker.topics.table.revision)
    if found is None:
        raise TopicNotFound(topic=query.topic)
    if not found.readable:
        raise TopicNotReadable(topic=query.topic)
    if broker.key_index is None and not broker.store.compaction.covered_end(query.topic):
        raise IndexOff(broker=broker.settings.name)
    try:
        return to_wire(await answer(query, broker.store, broker.key_index, clock))
    except OSError as failure:
        path = broker.settings.store_path
        raise StoreCorrupt(path=path, reason=f"the disk refused: {failure}") from failure


def to_wire(found: KeyAnswer) -> broker_pb2.QueryMessagesReply:
    lengths = np.fromiter(map(len, found.frames), "<u4", len(found.frames))
    return broker_pb2.QueryMessagesReply(
        frames=b"".join(found.frames),
        record_lengths=lengths.tobytes(),
        whole_range_searched=not found.not_searched_because,
        not_searched_because=found.not_searched_because,
        indexed_until_ms=found.indexed_until_ms,
    )


READ_MESSAGES_MAX = 1024


async def read(broker: Broker, request: broker_pb2.ReadRequest) -> broker_pb2.ReadReply:
    """Handle either kind of request."""
    if request.WhichOneof("what") == "range":
        return await read_range(broker, request.range)
    return await read_message(broker, request.message_id)


async def read_range(broker: Broker, wanted: broker_pb2.QueueRange) -> broker_pb2.ReadReply:
    check_offset(wanted.offset)
    if not 0 <= wanted.messages <= READ_MESSAGES_MAX:
        raise InvalidArgument(reason=f"{wanted.messages} messages, not 1 to {READ_MESSAGES_MAX}")
    messages = wanted.messages or 1

    def get() -> GetResult:
        broker.topics.check_readable(wanted.topic, wanted.queue_id)
        return broker.store.get(
            wanted.topic,
            wanted.queue_id,
            wanted.offset,
            messages_max=messages,
            bytes_max=BYTES_MAX,
            entries_max=messages,
        )

    try:
        found = await cold_reads.answer(get)
    except StoreDamaged as damage:
        broker.pulls.record_damage(damage)
        raise StoreCorrupt(path=damage.path, reason=damage.reason) from damage
    if found.status is not GetStatus.FOUND:
        position = f"offset {wanted.offset} of queue {wanted.queue_id} of {wanted.topic!r}"
        raise MessageNotFound(position=position)
    return broker_pb2.ReadReply(frames=found.frames, record_lengths=packed(found))


async def read_message(broker: Broker, message_id: str) -> broker_pb2.ReadReply:
    """Return one message by its offsetMsgId.

    The host in the id is compared with the host in the record, not with this broker's address,
    which may have changed.
    """
    try:
        where = decode_offset_id(message_id)
    except ValueError as failure:
        raise InvalidArgument(reason=str(failure)) from failure
    not_here = MessageNotFound(position=message_id)
    try:
        read_at = partial(broker.store.read_at, where.physical_offset)
        frame = await cold_reads.answer(read_at)
    except UnknownOffset as failure:
        raise not_here from failure
    record = decode_record(frame)
    topic = record.topic.decode()
    if record.store_host != where.store_host or topic not in broker.topics.table.topics:
        raise not_here
    caller = current_caller()
    if caller is not None and not caller.may(*topic_need("read", topic)):
        # The caller may not learn whether the message exists.
        raise not_here
    broker.topics.check_readable(topic, record.queue_id)
    return broker_pb2.ReadReply(frames=frame, record_lengths=len(frame).to_bytes(4, "little"))


def check_offset(offset: int) -> None:
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidOffset(offset=offset)


def packed(found: GetResult) -> bytes:
    """Return record lengths in wire format."""
    return found.lengths.astype("<u4", copy=False).tobytes()
