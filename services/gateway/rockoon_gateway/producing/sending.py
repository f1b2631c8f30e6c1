"""Sending: the protocol's calls of producers.

The messages of all clients are sent by one producer of the SDK, so that many small calls share
batches, streams and syncs. It keeps the order of a message group during its own retries. The queue
that a client names is ignored: clients of different languages hash message groups differently, and
one group in two queues would have no order.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rockoon import Cluster
from rockoon.admin.reads import get_topic
from rockoon.errors import (
    NoWritableQueue,
    RockoonError,
    TimedOut,
    TopicNotFound,
    TopicNotWritable,
)
from rockoon.message import SendResult
from rockoon.net.routes import TopicRoute
from rockoon.producer.forwarded_batches import ForwardingSettings
from rockoon.producer.forwarding import ForwardingProducer
from rockoon.producer.receipt import Receipt
from rockoon.transactions.transaction import Resolution
from rockoon_core.clock import Clock
from rockoon_core.message_queue import MessageQueue
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.calls import GatewayCall, SeriesCounts
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.codes import OK, Refusal, common_status, status_of
from rockoon_gateway.delivered import parse_transaction_id
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.names import checked_topic, cluster_name
from rockoon_gateway.producing.message_checks import (
    AcceptedMessage,
    SendLimits,
    all_accepted,
    check_transactions,
)
from rockoon_gateway.producing.transactions import GatewayTransactions
from rockoon_gateway.routes import TopicRoutes, accepted_types, queues_to_send
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    Code,
    MessageType,
    TransactionResolution,
    TransactionSource,
)

_VERSION = "v1"


class Recall(NamedTuple):
    """Recall handle of a delayed message that is not delivered yet: with it, a producer cancels the
    message.

    Source: RecallMessageHandle of RocketMQ: base64url of words, the last one the message's id.
    Rockoon adds one word, by which brokers find the message; clients do not interpret the text.
    """

    topic: str
    broker: str
    deliver_at_ms: int
    offset_message_id: str
    message_id: str


def recall_handle(recall: Recall) -> str:
    """Return the recall handle of a delayed message."""
    words = " ".join((_VERSION, *map(str, recall)))
    return base64.urlsafe_b64encode(words.encode()).decode()


def parse_recall_handle(handle: str) -> Recall:
    """Parse a recall handle; raises Refusal with BAD_REQUEST."""
    try:
        text = base64.urlsafe_b64decode(handle.encode()).decode()
        # A message id may have any characters, including blanks.
        version, topic, broker, deliver_at_ms, offset_id, message_id = text.split(" ", 5)
        if version == _VERSION:
            return Recall(topic, broker, int(deliver_at_ms), offset_id, message_id)
    except (ValueError, binascii.Error):
        pass
    raise Refusal(Code.BAD_REQUEST, "it is not a recall handle")


log = logging.getLogger(__name__)

# Part of the call's time limit that is reserved for sending the reply.
ANSWER_SECONDS = 0.1
_RESOLUTIONS = {
    TransactionResolution.COMMIT: Resolution.COMMIT,
    TransactionResolution.ROLLBACK: Resolution.ROLLBACK,
}
# Cached: the generated code looks up an enum's value by its name, each time.
_TRANSACTION, _DELAY = MessageType.TRANSACTION, MessageType.DELAY
_LITE, _PRIORITY = MessageType.LITE, MessageType.PRIORITY
# Each is stored before the next one is sent: producers send them one by one.
HALF_MESSAGES_MAX = 32
# Labels of metrics.
TYPE_LABELS = {value: name.lower() for name, value in MessageType.items()}


class Sending:
    """Serves producers' calls: SendMessage, EndTransaction, RecallMessage.

    Args:
        lite_topics: those below a parent.
        timeout_seconds: how long to try to deliver a message.
        buffer_bytes_max: limit of buffered messages.
        clock: epoch milliseconds.

    Attributes:
        limits: see the argument; may change.
        stored: number of stored messages, by topic and type label.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        lite_topics: LiteTopics,
        presence: Presence,
        transactions: GatewayTransactions,
        limits: SendLimits,
        *,
        timeout_seconds: float,
        buffer_bytes_max: int,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._lite_topics = lite_topics
        self._presence = presence
        self._transactions = transactions
        self.limits = limits
        self._buffer_bytes_max = buffer_bytes_max
        # Messages with a priority alternate between brokers; the priority selects the queue.
        self._turn = 0
        self._clock = clock
        self._producer = ForwardingProducer(
            cluster,
            ForwardingSettings(
                delivery_timeout_seconds=timeout_seconds,
                reply_timeout_seconds=timeout_seconds,
                buffer_bytes_max=buffer_bytes_max,
            ),
        )
        self.stored = SeriesCounts()

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes in messages that wait for brokers."""
        return self._producer.buffered_bytes

    async def close(self) -> None:
        """Wait until brokers have replied to all messages; no producer waits any more."""
        try:
            await self._producer.close()
        except RockoonError as failure:
            log.info("messages of disconnected senders were not stored: %s", failure)

    async def send(
        self, request: pb.SendMessageRequest, call: GatewayCall
    ) -> pb.SendMessageResponse:
        """Serve the SendMessage call of a producer."""
        self._presence.record_call(call)
        messages = request.messages
        if not messages:
            raise Refusal(Code.MESSAGE_CORRUPTED, "the request has no message")
        topic = checked_topic(messages[0].topic, call.namespace)
        if len(messages) > 1 and any(
            cluster_name(each.topic, call.namespace) != topic for each in messages
        ):
            raise Refusal(Code.MESSAGE_CORRUPTED, "the messages are of several topics")
        call.require_topic("write", topic)
        if self._producer.buffered_bytes > self._buffer_bytes_max:
            raise Refusal(
                Code.TOO_MANY_REQUESTS, f"{self._producer.buffered_bytes} bytes wait for brokers"
            )
        each = all_accepted(topic, messages, self.limits, self._clock())
        if sum(one.message_type == _TRANSACTION for one in each) > HALF_MESSAGES_MAX:
            text = f"more than {HALF_MESSAGES_MAX} half messages in one request"
            raise Refusal(Code.BAD_REQUEST, text)
        route = await self._topics.route(topic)
        check_route(route, each)
        left = call.seconds_left
        if left is None:
            entries = await self._store(route, each)
        else:
            try:
                async with asyncio.timeout(max(left - ANSWER_SECONDS, 0)):
                    entries = await self._store(route, each)
            except TimeoutError:
                raise TimedOut(what="storing the messages", seconds=left) from None
        return pb.SendMessageResponse(
            status=common_status([entry.status for entry in entries]), entries=entries
        )

    async def end_transaction(
        self, request: pb.EndTransactionRequest, call: GatewayCall
    ) -> pb.EndTransactionResponse:
        """Serve the EndTransaction call of a producer."""
        self._presence.record_call(call)
        topic = checked_topic(request.topic, call.namespace)
        call.require_topic("write", topic)
        position = parse_transaction_id(request.transaction_id)
        if position is None:
            raise Refusal(
                Code.INVALID_TRANSACTION_ID,
                f"{request.transaction_id!r} is not a transaction's id",
            )
        if request.resolution not in TransactionResolution.values():
            raise Refusal(Code.BAD_REQUEST, f"{request.resolution} is not a resolution")
        if request.source not in TransactionSource.values():
            raise Refusal(Code.BAD_REQUEST, f"{request.source} is not a source of resolutions")
        check_transactions(topic)
        # Brokers keep no half messages of missing topics.
        route = await self._topics.route(topic)
        if not has_queue_at(route, position.broker):
            # The broker may be new: a nameserver knows it before this gateway does.
            now = await get_topic(self._cluster, topic)
            if now is None or not has_queue_at(now, position.broker):
                # A broker that does not reply keeps its queues in the route: this one has none.
                text = f"topic {topic!r} has no queue at broker {position.broker!r}"
                raise Refusal(Code.INVALID_TRANSACTION_ID, text)
        resolution = _RESOLUTIONS.get(request.resolution)
        # None: undecided; the broker asks again.
        if resolution is not None:
            from_check = request.source == TransactionSource.SOURCE_SERVER_CHECK
            await self._transactions.end(topic, position, resolution, from_check=from_check)
        return pb.EndTransactionResponse(status=OK)

    async def recall(
        self, request: pb.RecallMessageRequest, call: GatewayCall
    ) -> pb.RecallMessageResponse:
        """Serve the RecallMessage call of a producer."""
        self._presence.record_call(call)
        topic = checked_topic(request.topic, call.namespace)
        call.require_topic("write", topic)
        recall = parse_recall_handle(request.recall_handle)
        if recall.topic != topic:
            raise Refusal(Code.BAD_REQUEST, f"the handle is not of a message of topic {topic!r}")
        # The handle comes from the client, and this connection may cancel any message: the broker
        # checks the topic of the message itself.
        await self._cluster.admin.delayed.cancel(recall.offset_message_id, topic)
        return pb.RecallMessageResponse(status=OK, message_id=recall.message_id)

    async def _store(
        self, route: TopicRoute, messages: Sequence[AcceptedMessage]
    ) -> list[pb.SendResultEntry]:
        if lite := dict.fromkeys(one.lite_topic for one in messages if one.lite_topic):
            await self._lite_topics.provide(route, lite)
        # All messages are sent before the first wait: they share batches, in order.
        forwarded = [self._forwarded(route, message) for message in messages]
        return [
            await self._entry(route, message, receipt)
            for message, receipt in zip(messages, forwarded, strict=True)
        ]

    def _forwarded(
        self, route: TopicRoute, message: AcceptedMessage
    ) -> Receipt | RockoonError | None:
        """Send a message to a broker; returns None for a half message, which is sent separately."""
        if message.message_type == _TRANSACTION:
            return None
        topic, queue = route.name, None
        if message.message_type == _LITE:
            topic = stored_lite_topic(topic, message.lite_topic)
        elif message.message_type == _PRIORITY:
            self._turn += 1
            queues = queues_to_send(self._cluster, route)
            queue = queue_of_priority(queues, message.priority, self._turn)
        try:
            return self._producer.forward(
                topic,
                message.body,
                message.properties,
                ordering_key=message.message_group or None,
                queue=queue,
                delayed=message.message_type == _DELAY,
            )
        except RockoonError as failure:
            return failure

    async def _resend(self, route: TopicRoute, message: AcceptedMessage) -> SendResult:
        """Send a message again to a lite topic that was about to expire, after it was reopened."""
        await self._lite_topics.open_again(route, message.lite_topic)
        receipt = self._forwarded(route, message)
        if isinstance(receipt, RockoonError):
            raise receipt
        assert receipt is not None, "no half message"
        return await receipt

    async def _entry(
        self, route: TopicRoute, message: AcceptedMessage, receipt: Receipt | RockoonError | None
    ) -> pb.SendResultEntry:
        topic = route.name
        # Some clients expect a transaction id for all messages.
        entry = pb.SendResultEntry(
            status=OK, message_id=message.message_id, transaction_id=message.message_id
        )
        try:
            if receipt is None:
                entry.transaction_id = await self._transactions.begin(topic, message)
            elif isinstance(receipt, RockoonError):
                entry.status.CopyFrom(status_of(receipt))
                return entry
            else:
                try:
                    result = await receipt
                except (TopicNotFound, TopicNotWritable):
                    if message.message_type != _LITE:
                        raise
                    result = await self._resend(route, message)
                entry.offset = result.queue_offset
                if message.deliver_at_ms:
                    entry.recall_handle = recall_handle(
                        Recall(
                            topic,
                            result.queue.broker,
                            message.deliver_at_ms,
                            result.offset_message_id,
                            message.message_id,
                        )
                    )
        except (RockoonError, Refusal) as failure:
            entry.status.CopyFrom(status_of(failure))
            return entry
        self.stored.add(topic, TYPE_LABELS[message.message_type])
        return entry


def has_queue_at(route: TopicRoute, broker: str) -> bool:
    return any(queue.broker == broker for queue in route.queues)


def queue_of_priority(queues: Sequence[MessageQueue], priority: int, turn: int) -> MessageQueue:
    """Return the queue for a priority at one broker: the queue with that id, or the last one.

    Source: SendMessageProcessor#sendMessage.

    Args:
        priority: 0 or more.
        turn: selects the broker.
    """
    brokers = sorted({each.broker for each in queues})
    of_broker = [each for each in queues if each.broker == brokers[turn % len(brokers)]]
    fitting = [each for each in of_broker if each.queue_id <= priority]
    return max(fitting or of_broker[:1], key=lambda each: each.queue_id)


def check_route(route: TopicRoute, messages: Iterable[AcceptedMessage]) -> None:
    """Check that a topic accepts the messages of a request.

    Raises:
        TopicNotWritable, NoWritableQueue: it accepts none.
        Refusal: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE.
    """
    if not route.writable:
        raise TopicNotWritable(topic=route.name)
    if not route.queues:
        raise NoWritableQueue(topic=route.name)
    types = accepted_types(route)
    for message in messages:
        if message.message_type not in types:
            raise Refusal(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {route.name!r} accepts no messages of type "
                f"{MessageType.Name(message.message_type)}",
            )
