"""The Read call: messages of a queue from an offset on, or one message by its offsetMsgId."""

from functools import partial

from rockoon_broker import cold_reads
from rockoon_broker.broker import Broker
from rockoon_broker.pull import BYTES_MAX
from rockoon_broker.rpc.queue_states import OFFSET_MAX
from rockoon_broker.store.errors import StoreDamaged, UnknownOffset
from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_core.errors import InvalidArgument, InvalidOffset, MessageNotFound, StoreCorrupt
from rockoon_format.message_id import decode_offset_id
from rockoon_format.names import topic_need
from rockoon_format.record import decode_record
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.access.callers import current_caller

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
