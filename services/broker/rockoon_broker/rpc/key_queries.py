"""The QueryMessages call: validates a request, runs the query, encodes the reply."""

import numpy as np

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
from rockoon_core.errors import (
    IndexOff,
    InvalidArgument,
    RouteNotReached,
    StoreCorrupt,
    TopicNotFound,
    TopicNotReadable,
)
from rockoon_format.properties import KEY_SEPARATOR
from rockoon_proto.v1 import broker_pb2

KEY_CHARACTERS_MAX = 32_767


def to_query(request: broker_pb2.QueryMessagesRequest) -> KeyQuery:
    """Decode and validate a request.

    Raises:
        InvalidArgument: a field is out of bounds.
    """
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
