"""Calls for delayed messages: decode, call one method, encode."""

from rockoon_broker.delays.delays import Delays
from rockoon_core.errors import InvalidArgument, MessageNotFound
from rockoon_format.names import CLUSTER, topic_need
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_runtime.access.callers import current_caller

LISTED_DEFAULT = 100
LISTED_MAX = 1024


async def cancel_delayed(delays: Delays, request: pb.CancelDelayedRequest) -> pb.CancelDelayedReply:
    """See `Delays.cancel`; a caller that may send to the message's topic may cancel it."""
    caller = current_caller()

    def check(topic: str) -> None:
        if request.topic and request.topic != topic:
            raise MessageNotFound(position=request.message_id)
        if caller is None or caller.may("write", CLUSTER):
            return
        if not topic or not caller.may(*topic_need("see", topic)):
            # The caller may not learn whether the message exists.
            raise MessageNotFound(position=request.message_id)
        caller.require(*topic_need("write", topic))

    await delays.cancel(request.message_id, check)
    return pb.CancelDelayedReply()


def list_delayed(
    delays: Delays, request: pb.ListDelayedRequest, now_ms: int
) -> pb.ListDelayedReply:
    """See `Delays.next_due`."""
    if not 0 <= request.max_messages <= LISTED_MAX:
        raise InvalidArgument(reason=f"{request.max_messages} messages, not 1 to {LISTED_MAX}")
    waiting = delays.next_due(request.max_messages or LISTED_DEFAULT)
    return pb.ListDelayedReply(
        messages=[
            pb.PendingDelayed(
                message_id=one.message_id,
                topic=one.topic,
                queue_id=one.queue_id,
                unique_id=one.unique_id,
                deliver_at_ms=one.deliver_at_ms,
                level=one.level,
                store_timestamp_ms=one.store_timestamp_ms,
            )
            for one in waiting
        ],
        counts=delayed_counts(delays),
        as_of_ms=now_ms,
    )


def delayed_counts(delays: Delays) -> pb.DelayedCounts:
    pending = delays.pending_by_level()
    counts = delays.delivery.counts
    return pb.DelayedCounts(
        pending_timed=pending.pop(0, 0),
        pending_by_level={level: count for level, count in pending.items() if count},
        delivered=counts.delivered,
        cancelled=counts.cancelled,
        undeliverable=counts.undeliverable,
        lost=counts.lost,
        lag_ms=counts.lag_ms,
        rolled=counts.rolled,
    )
