"""PullMessage, UpdateOffset, GetOffset, QueryOffset: reading by offset.

RocketMQ's proxy does not implement these calls, and its clients do not make them. A program that
does reads queues like the SDK's pull consumer, and can commit a group's offset.
"""

import logging
from collections.abc import AsyncGenerator

from rockoon.consumer.pull import Pulled, PullLimits, PullOutOfRange, pull
from rockoon.errors import CommitBehind, OffsetServiceUnavailable, QueueNotFound, RockoonError
from rockoon.net.connection import Connection
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.offset_reader import DAMAGE, ONE, UNREADABLE
from rockoon.subscription import ALL, Subscription
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import OK, Refusal, status
from rockoon_gateway.consuming.receive_rules import (
    ANSWER_SECONDS,
    BATCH_SIZE_MAX,
    POLL_SECONDS_MAX,
    polling_ms,
    require_reader,
    subscription_of,
)
from rockoon_gateway.delivered import ANSWER_BYTES_MAX, UNDELIVERABLE, to_wire
from rockoon_gateway.names import checked_group, checked_topic, epoch_ms
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Message, QueryOffsetPolicy
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import MessageQueue as WireQueue
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import QueryRequest

log = logging.getLogger(__name__)


class OffsetReads:
    """Serves the calls PullMessage, UpdateOffset, GetOffset and QueryOffset.

    Args:
        create_groups: create a group when UpdateOffset names one that does not exist.
    """

    def __init__(self, cluster: Connection, *, create_groups: bool = True) -> None:
        self._cluster = cluster
        self._create_groups = create_groups
        self._lookup = OffsetLookup(cluster)

    async def pull(
        self, request: pb.PullMessageRequest, call: GatewayCall
    ) -> AsyncGenerator[pb.PullMessageResponse, None]:
        """Serve PullMessage: yield a status, messages without receipt handles, and the next offset;
        at most 32 messages.

        Damaged messages are left out and logged: the reader continues after them.
        """
        answer = await self._pull(request, call)
        messages: list[Message] = []
        if isinstance(answer, PullOutOfRange):
            following = answer.min_offset if answer.below_min else answer.max_offset
            result = status(Code.ILLEGAL_OFFSET, str(answer))
        else:
            following = answer.next_offset
            size = 0
            for each in answer.batch or ():
                if size >= ANSWER_BYTES_MAX:
                    following = each.queue_offset
                    break
                try:
                    messages.append(to_wire(each, request.message_queue.topic))
                    size += len(messages[-1].body)
                except UNDELIVERABLE as damage:
                    _left_out(each.queue, each.queue_offset, damage)
            result = OK if messages else status(Code.MESSAGE_NOT_FOUND, "no new message")
        yield pb.PullMessageResponse(status=result)
        for message in messages:
            yield pb.PullMessageResponse(message=message)
        yield pb.PullMessageResponse(next_offset=following)

    async def _pull(
        self, request: pb.PullMessageRequest, call: GatewayCall
    ) -> Pulled | PullOutOfRange:
        group = checked_group(request.group, call.namespace)
        queue = await self._queue(request.message_queue, call)
        require_reader(call, group, queue.topic)
        require_offset(request.offset)
        wait_seconds = polling_ms(request.long_polling_timeout) / 1000
        if (left := call.seconds_left) is not None:
            wait_seconds = min(wait_seconds, left - ANSWER_SECONDS)
        limits = PullLimits(
            messages_max=min(max(request.batch_size, 1), BATCH_SIZE_MAX),
            wait_ms=round(1000 * min(max(wait_seconds, 0.0), POLL_SECONDS_MAX)),
        )
        wanted = subscription_of(queue.topic, request.filter_expression)
        where = self._cluster, queue, request.offset, wanted
        try:
            return await pull(*where, limits, group=group)
        except UNREADABLE:
            # A later message of the batch may be the damaged one.
            pass
        try:
            return await pull(*where, ONE, group=group)
        except DAMAGE:
            # The first message that the filter selects, or may select, is damaged: perhaps not the
            # one at this offset.
            await self._log_damage(queue, request.offset)
            return Pulled(None, (), request.offset + 1, 0, request.offset + 1)

    async def _log_damage(self, queue: MessageQueue, offset: int) -> None:
        """Log a pulled message if it is damaged."""
        everything = Subscription.parse(queue.topic, ALL)
        try:
            answer = await pull(self._cluster, queue, offset, everything, ONE)
            if isinstance(answer, Pulled):
                # Only a filter detects damaged tags.
                answer.intact()
        except DAMAGE as damage:
            _left_out(queue, offset, damage)

    async def update_offset(
        self, request: pb.UpdateOffsetRequest, call: GatewayCall
    ) -> pb.UpdateOffsetResponse:
        """Serve UpdateOffset: store the group's next offset to consume; it may decrease."""
        group = checked_group(request.group, call.namespace)
        queue = await self._queue(request.message_queue, call)
        require_reader(call, group, queue.topic)
        require_offset(request.offset)
        joined = await self._cluster.call_nameserver(
            "Subscribe",
            SubscribeRequest(group=group, topic=queue.topic, create_group=self._create_groups),
        )
        store = RemoteOffsetStore(self._cluster, group)
        start = (await store.resolve([queue], ConsumeFrom.GROUP, joined.revision))[queue]
        if isinstance(start, RockoonError):
            raise start
        try:
            await store.commit(queue, request.offset)
        except CommitBehind:
            # A decrease is a reset, and needs its permission.
            call.require("write", f"group:{group}")
            await store.commit(queue, request.offset, force=True)
        return pb.UpdateOffsetResponse(status=OK)

    async def get_offset(
        self, request: pb.GetOffsetRequest, call: GatewayCall
    ) -> pb.GetOffsetResponse:
        """Return the group's committed offset; for receivers, the smallest one not settled."""
        group = checked_group(request.group, call.namespace)
        queue = await self._queue(request.message_queue, call)
        require_reader(call, group, queue.topic)
        reply = await self._cluster.call(
            self._cluster.offset_service().Query,
            QueryRequest(group=group, queue=queue_to_wire(queue)),
            unavailable=OffsetServiceUnavailable,
        )
        if not reply.found:
            raise Refusal(Code.OFFSET_NOT_FOUND, f"group {group} has no offset of {queue}")
        return pb.GetOffsetResponse(status=OK, offset=reply.offset)

    async def query_offset(
        self, request: pb.QueryOffsetRequest, call: GatewayCall
    ) -> pb.QueryOffsetResponse:
        """Return a queue's first offset, its end, or the first offset stored at or after a time."""
        queue = await self._queue(request.message_queue, call)
        call.require_topic("read", queue.topic)
        if request.query_offset_policy not in QueryOffsetPolicy.values():
            policy = request.query_offset_policy
            raise Refusal(Code.BAD_REQUEST, f"{policy} is not a policy for offsets")
        if request.query_offset_policy == QueryOffsetPolicy.TIMESTAMP:
            time_ms = epoch_ms(request.timestamp, "timestamp")
            offset = (await self._lookup.search({queue: time_ms}))[queue]
        else:
            first, end = (await self._lookup.ends([queue]))[queue]
            is_first = request.query_offset_policy == QueryOffsetPolicy.BEGINNING
            offset = first if is_first else end
        return pb.QueryOffsetResponse(status=OK, offset=offset)

    async def _queue(self, queue: WireQueue, call: GatewayCall) -> MessageQueue:
        """Return the queue of a request; raises TopicNotFound, QueueNotFound, Refusal."""
        topic = checked_topic(queue.topic, call.namespace)
        named = MessageQueue(topic, queue.broker.name, queue.id)
        route = await self._cluster.route(topic)
        if named not in route.create_revisions:
            raise QueueNotFound(topic=topic, queue=queue.id, broker=queue.broker.name)
        return named


def _left_out(queue: MessageQueue, offset: int, damage: Exception) -> None:
    log.error("message %d of %s is left out of a pull: %s", offset, queue, damage)


def require_offset(offset: int) -> None:
    """Raise Refusal if an offset of a request is negative."""
    if offset < 0:
        raise Refusal(Code.ILLEGAL_OFFSET, f"{offset} is not an offset")
