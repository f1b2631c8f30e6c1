"""Start positions of new lite subscriptions: the protocol's offset option as a reset.

    LAST         the group's position: nothing is reset
    MIN, MAX     the oldest message, the end
    offset       this offset
    tail_n       the last n messages
    timestamp    the first message stored at or after a time

The group's progress on the lite topic changes, also for its other clients, as in RocketMQ.
Source: OffsetOption of the protocol.
"""

import asyncio

from rockoon import Cluster
from rockoon.admin.queue_ends import ask_queue_ends
from rockoon.errors import BrokerUnavailable, GroupNotFound, InvalidArgument, TopicNotFound
from rockoon.net.routes import TopicRoute
from rockoon_core.backoff import Backoff
from rockoon_core.message_queue import queue_to_wire
from rockoon_gateway.times import checked_epoch_ms
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import OffsetOption
from rockoon_proto.v1.offset_pb2 import QueueOffset, QueueOffsets, ResetTarget

# The offset service sees a new topic or group by its own watch, after the creation.
HEARS_SECONDS_MAX = 5.0


def is_reset(option: OffsetOption) -> bool:
    """Whether an option requests a reset."""
    kind = option.WhichOneof("offset_type")
    return kind is not None and not (kind == "policy" and option.policy == OffsetOption.LAST)


def reset_target(option: OffsetOption) -> ResetTarget | None:
    """Return the target of an option; None for the last n messages, which need the queue's end.

    Raises:
        InvalidArgument: a negative number, or an unknown policy.
        Refusal: the timestamp is out of range.
    """
    match option.WhichOneof("offset_type"):
        case "policy" if option.policy == OffsetOption.MIN:
            return ResetTarget(earliest=True)
        case "policy" if option.policy == OffsetOption.MAX:
            return ResetTarget(latest=True)
        case "offset" if option.offset >= 0:
            return ResetTarget(offset=option.offset)
        case "timestamp":
            return ResetTarget(timestamp_ms=checked_epoch_ms(option.timestamp, "timestamp"))
        case "tail_n" if option.tail_n >= 0:
            return None
    raise InvalidArgument(reason=f"not a start position: {str(option).strip()}")


async def reset_progress(
    cluster: Cluster, group: str, route: TopicRoute, option: OffsetOption, operator: str
) -> None:
    """Set a group's progress on a lite topic.

    Args:
        cluster: the connection.
        group: the reader.
        route: of the stored lite topic.
        option: the start position.
        operator: name for the log of resets.

    Raises:
        RockoonError: it was not set.
    """
    target = reset_target(option) or await _last(cluster, route, option.tail_n)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HEARS_SECONDS_MAX
    backoff = Backoff()
    while True:
        try:
            await cluster.admin.reset_offsets(group, route.name, target, operator=operator)
            break
        except (TopicNotFound, GroupNotFound):
            pause = backoff.next_seconds()
            if loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)


async def _last(cluster: Cluster, route: TopicRoute, messages: int) -> ResetTarget:
    found = []
    for ends in await ask_queue_ends(cluster, route):
        if ends.state is None:
            raise ends.error or BrokerUnavailable(broker=ends.queue.broker)
        offset = max(ends.state.max_offset - messages, ends.state.min_offset)
        found.append(QueueOffset(queue=queue_to_wire(ends.queue), offset=offset))
    return ResetTarget(offsets=QueueOffsets(offsets=found))
