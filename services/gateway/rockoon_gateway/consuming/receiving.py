"""ReceiveMessage: acquires messages for a waiting client and writes them, mostly in one write.

    status OK, message, message, ..., delivery_timestamp        or        status, delivery_timestamp

The status comes first: some clients fail otherwise. Without messages it is MESSAGE_NOT_FOUND; OK
without messages is an error to some. Messages that a client did not receive before it left become
visible to other clients immediately, and that delivery does not count.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from rockoon.errors import TopicNotFound
from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages
from rockoon.subscription import ALL, Subscription
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.calls import GatewayCall, SeriesCounts
from rockoon_gateway.clients.presence import key_id
from rockoon_gateway.codes import OK, status
from rockoon_gateway.consuming.handles import RENEWED
from rockoon_gateway.consuming.receive_rules import (
    REQUEST_TIMEOUT_SECONDS,
    ReceiveOptions,
    message_group_max,
    receive_options,
    require_reader,
    subscription_of,
)
from rockoon_gateway.consuming.settling import ReturnedMessages
from rockoon_gateway.delivered import Answers, answers_to, timestamp
from rockoon_gateway.groups import CachedGroups
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.lite.subscribing import lite_parent
from rockoon_gateway.lite.subscriptions import LiteSubscription, LiteSubscriptions
from rockoon_gateway.names import checked_group, checked_topic
from rockoon_gateway.routes import TopicRoutes
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression
from rockoon_rpc.session import framed

Receive = Callable[[Sequence[Subscription], float], Awaitable[ReceivedMessages]]
"""Function that receives messages from topics, for some seconds at most. If cancelled, it returns
its messages.
"""


class LiteReceiving:
    """Receives messages of lite topics for the clients that subscribe to them."""

    def __init__(self, lite_topics: LiteTopics) -> None:
        self._lite_topics = lite_topics

    async def receive(
        self, subscription: LiteSubscription, wait_seconds: float, receive: Receive
    ) -> ReceivedMessages:
        """Return messages of a client's lite topics; none after the time limit.

        The lite topics may change during the wait: then it waits for the new ones. An expired one
        is left out until the client names it again.

        Args:
            wait_seconds: how long to wait for the first message.
            receive: receives messages of subscriptions, at most for a time in seconds.

        Raises:
            RockoonError: see `receive`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        gone = ""
        while True:
            left = max(deadline - loop.time(), 0.0)
            patience = asyncio.timeout(None)
            subscription.waiting.add(patience)
            try:
                async with patience:
                    if topics := self._stored(subscription):
                        return await receive(topics, left)
                    await asyncio.sleep(left)
                    return ReceivedMessages()
            except TimeoutError:
                # The lite topics have changed. A receive without a wait is not repeated.
                if not left:
                    return ReceivedMessages()
            except TopicNotFound as expired:
                if gone == str(expired):
                    raise
                gone = str(expired)
            finally:
                subscription.waiting.discard(patience)

    def _stored(self, subscription: LiteSubscription) -> list[Subscription]:
        """Return the subscriptions to the stored topics of existing lite topics."""
        parent = subscription.parent
        return [
            Subscription.parse(stored_lite_topic(parent, each), ALL)
            for each in subscription.lite_topics
            if self._lite_topics.known(parent, each) is not None
        ]


class Receives(Protocol):
    """The part of `ReceivingEngine` that `Receiving` uses."""

    async def receive(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        messages_max: int,
        visible_after_ms: int,
        wait_seconds: float,
        attempt_id: str = "",
        message_group_max: int = 0,
        receiver: str = "",
        key_id: str = "",
        held_ms_max: int = 0,
        consume_from: ConsumeFrom = ConsumeFrom.GROUP,
        create_group: bool = True,
    ) -> ReceivedMessages:
        """Receive messages for a group; see `ReceivingEngine`."""


class Writer(Protocol):
    """Writes a call's replies to the client; `ServerCall` of Rockoon's own server implements it."""

    async def write_framed(self, data: bytes, *, last: bool = False) -> None:
        """Write framed replies to the client; see `ServerCall`."""

    def on_received(self, then: Callable[[bool], None]) -> None:
        """Call a function when the client has the replies, or may lack them; see `ServerCall`."""


_SOME = framed(pb.ReceiveMessageResponse(status=OK).SerializeToString())
_NONE = framed(
    pb.ReceiveMessageResponse(
        status=status(Code.MESSAGE_NOT_FOUND, "no new message")
    ).SerializeToString()
)


class Receiving:
    """Serves the ReceiveMessage call: waits for messages and writes them to the client.

    Args:
        lite: receives for lite consumers.
        await_receipt: reports messages of a group when a client has received them; see
            `Confirmations`.
        learn: waits for subscriptions that clients have made at other gateways.

    Attributes:
        delivered: number of delivered messages, by topic and group.
    """

    def __init__(
        self,
        engine: Receives,
        topics: TopicRoutes,
        groups: CachedGroups,
        lite: LiteReceiving,
        lite_subscriptions: LiteSubscriptions,
        returned_messages: ReturnedMessages,
        await_receipt: Callable[[Writer, str, Sequence[ReceiptHandle]], None],
        learn: Callable[[], Awaitable[None]],
        clock: Clock = wall_clock_ms,
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._groups = groups
        self._lite = lite
        self._lite_subscriptions = lite_subscriptions
        self._returned_messages = returned_messages
        self._await_receipt = await_receipt
        self._learn = learn
        self._clock = clock
        self.delivered = SeriesCounts()
        # Timeouts of waiting receivers, with their groups.
        self._waits: dict[asyncio.Timeout, str] = {}
        self._is_closed = False

    @property
    def waiting_receivers(self) -> Counter[str]:
        """Number of receivers that wait for messages, by group."""
        return Counter(self._waits.values())

    def close(self) -> None:
        """End the waits of all receivers, and let later receivers not wait: the gateway stops."""
        self._is_closed = True
        for each in self._waits:
            each.reschedule(asyncio.get_running_loop().time())

    async def receive(
        self,
        request: pb.ReceiveMessageRequest,
        call: GatewayCall,
        writer: Writer,
        expression: FilterExpression | None = None,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        """Serve one ReceiveMessage call. If it is cancelled, messages that were not delivered are
        returned.

        Args:
            request: request of the client. Its queue is ignored: messages of all queues are
                received.
            expression: the filter of the client's settings, for a request without one.
            request_timeout_seconds: request timeout in the client's settings, seconds.

        Raises:
            Refusal, RockoonError: nothing was received.
        """
        options = receive_options(request, call.seconds_left, request_timeout_seconds)
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.message_queue.topic, call.namespace)
        require_reader(call, group, topic)
        # The request's filter first: that of the settings may be older.
        wanted = request.filter_expression if request.HasField("filter_expression") else expression
        subscription = subscription_of(topic, wanted or FilterExpression())
        answers = await self._acquire(request, options, call, group, subscription)
        messages = answers.messages
        data, written, sent = (_SOME if messages else _NONE), 0, 0
        try:
            for frames, count in answers.pieces():
                if written:
                    await writer.write_framed(data)
                    data, sent = b"", written
                data += frames
                written += count
            end = pb.ReceiveMessageResponse(delivery_timestamp=timestamp(self._clock()))
            await writer.write_framed(data + framed(end.SerializeToString()), last=True)
            sent = written
        finally:
            if sent:
                self.delivered.add(topic, group, count=sent)
                if options.held_ms_max:
                    self._await_receipt(writer, group, messages.receipts[:sent])
            if sent < len(messages):
                self._returned_messages.return_later(group, messages.receipts[sent:])

    async def _acquire(
        self,
        request: pb.ReceiveMessageRequest,
        options: ReceiveOptions,
        call: GatewayCall,
        group: str,
        subscription: Subscription,
    ) -> Answers:
        """Acquire messages for a client, and serialize its replies."""
        received = ReceivedMessages()
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits[wait] = group
                received = await self._received(
                    group, subscription, options, call, request.attempt_id
                )
        except TimeoutError:
            # The gateway stops; the cancelled engine has returned its messages.
            pass
        finally:
            self._waits.pop(wait, None)
        valid_until_ms = (
            RENEWED if options.held_ms_max else self._clock() + options.visible_after_ms
        )
        try:
            answers = answers_to(received, request.message_queue.topic, valid_until_ms)
        except BaseException:
            self._returned_messages.return_later(group, received.receipts)
            raise
        if answers.left:
            self._returned_messages.return_later(group, answers.left.receipts)
        return answers

    async def _received(
        self,
        group: str,
        subscription: Subscription,
        options: ReceiveOptions,
        call: GatewayCall,
        attempt_id: str,
    ) -> ReceivedMessages:
        is_lite = await lite_parent(self._topics, subscription.topic) is not None
        # Push consumers of lite topics choose their invisible time too.
        group_max = message_group_max(call.language, is_push=options.held_ms_max > 0 or is_lite)

        async def receive(
            subscriptions: Sequence[Subscription],
            wait_seconds: float,
            consume_from: ConsumeFrom = ConsumeFrom.GROUP,
        ) -> ReceivedMessages:
            return await self._engine.receive(
                group,
                subscriptions,
                messages_max=options.messages_max,
                visible_after_ms=options.visible_after_ms,
                wait_seconds=wait_seconds,
                attempt_id=attempt_id,
                message_group_max=group_max,
                receiver=call.client_id,
                key_id=key_id(call),
                held_ms_max=options.held_ms_max,
                consume_from=consume_from,
                create_group=False,
            )

        wait_seconds = 0.0 if self._is_closed else options.wait_seconds
        if not is_lite:
            await self._groups.plain(group)
            return await receive([subscription], wait_seconds)
        await self._groups.lite(group, subscription.topic)
        mine = self._lite_subscriptions.of(call.client_id, group, subscription.topic)
        if not mine.is_compared:
            await self._learn()
            mine.is_compared = True
        # Producers create lite topics, so there may be messages before the first subscription.
        return await self._lite.receive(
            mine, wait_seconds, partial(receive, consume_from=ConsumeFrom.FIRST)
        )
