"""Simple consumer: messages one by one, as SQS and RocketMQ's SimpleConsumer have them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from rockoon.consumer.missing_topics import MissingTopics, MissingTopicsRule
from rockoon.errors import Closed, InvalidArgument, NotAcquired, TopicNotFound
from rockoon.net.closed_on_exit import ClosedOnExit
from rockoon.offsets.start import ConsumeFrom, StartName
from rockoon.receiving.engine import ReceivingEngine
from rockoon.receiving.extensions import Extensions
from rockoon.receiving.received import ReceivedMessage
from rockoon.subscription import Subscription, parsed
from rockoon.text_checks import check_group_text, check_text
from rockoon_core.valid_text import exception_text, valid_text

MESSAGES_DEFAULT = 10
VISIBLE_AFTER_SECONDS = 30.0
WAIT_SECONDS = 20.0
# As long as a push consumer waits for a handler (`Timing.consume_timeout_seconds`).
EXTEND_SECONDS_MAX = 900.0
# How long the routes may lag behind a nameserver that does not know a topic any more.
ROUTES_SECONDS_MAX = 1.0
REASON_CHARACTERS_MAX = 256


class SimpleConsumer(ClosedOnExit):
    """Receives messages of a group: each is the receiver's own for a while, and comes again unless
    it is acknowledged.

        async with cluster.simple_consumer("billing", {"orders": "new || paid"}) as consumer:
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    Any number of consumers, tasks and processes share a group's messages; no queue is anybody's. In
    a group with `fifo` the messages of one message group come in order.

    Args:
        engine: the connection's.
        group: whose progress it is.
        subscriptions: topic to tags as "new || paid", "*", or an `Sql`. Consumers of a group have
            to agree: what a filter leaves out is done for the group.
        consume_from: where to start on queues without progress when the group does not say: a
            `ConsumeFrom`, "first", "last" or "group".
        receiver: what people see; the connection's client id by default.
        create_group: make the group when it does not exist.
        extend_seconds_max: how long after its receipt a message is extended automatically while the
            program holds the message object and has not settled it, seconds; 0: never. When half of
            `visible_after` has passed, the message is extended by `visible_after`.
        missing_topics: if a topic is deleted, "wait": messages come from the other topics, and from
            the topic when it is created again, as a new topic; "end": `receive` raises
            TopicNotFound. A topic must exist when it is received from for the first time.

    Raises:
        InvalidArgument, InvalidExpression: the subscriptions are none.
    """

    def __init__(
        self,
        engine: ReceivingEngine,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        consume_from: ConsumeFrom | StartName = ConsumeFrom.GROUP,
        receiver: str = "",
        create_group: bool = True,
        extend_seconds_max: float = EXTEND_SECONDS_MAX,
        missing_topics: MissingTopicsRule = "wait",
    ) -> None:
        self.group = check_group_text(group)
        self._engine = engine
        self._subscriptions = tuple(parsed(subscriptions, None).values())
        self._consume_from = ConsumeFrom.of(consume_from)
        self._receiver = check_text("receiver", receiver)
        self._create_group = create_group
        if not 0 <= extend_seconds_max < inf:
            raise InvalidArgument(
                reason=f"extend_seconds_max is {extend_seconds_max}, not 0 or more"
            )
        self._extensions = Extensions(group, self._extend, engine.start_task, extend_seconds_max)
        self._missing = MissingTopics(missing_topics, f"the simple consumer of group {group}")
        # Topics that existed when they were received from.
        self._known: set[str] = set()
        # Of the calls that wait.
        self._timeouts: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def receive(
        self,
        max_messages: int = MESSAGES_DEFAULT,
        *,
        visible_after: float = VISIBLE_AFTER_SECONDS,
        wait: float = WAIT_SECONDS,
    ) -> list[ReceivedMessage]:
        """Return messages, as soon as there are any.

        Args:
            max_messages: 1 to 1024.
            visible_after: seconds until others get what is not acknowledged, 1 to 12 hours.
            wait: seconds to wait for the first message; 0: return what is there.

        Returns:
            Messages of one queue or several; none when the time is over.

        Raises:
            TopicNotFound: a topic does not exist; see `missing_topics`.
            TopicNotReadable, GroupNotFound, NotPermitted: nothing can be received.
            RockoonError: what is needed was away all the time.
            Closed: the consumer is closed.
        """
        if self._is_closed:
            raise Closed(what="the consumer")
        timeout = asyncio.timeout(None)
        self._timeouts.add(timeout)
        try:
            async with timeout:
                visible_after_ms = _milliseconds(visible_after, "visible_after")
                messages = await self._receive(max_messages, visible_after_ms, wait)
                self._extensions.add(messages, visible_after)
                return messages
        except TimeoutError:
            raise Closed(what="the consumer") from None
        finally:
            self._timeouts.discard(timeout)

    async def _receive(
        self, max_messages: int, visible_after_ms: int, wait: float
    ) -> list[ReceivedMessage]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            present = self._present()
            wait_seconds = max(deadline - loop.time(), 0.0)
            if not present:
                if await self._engine.wait_routes(wait_seconds):
                    continue
                return []
            try:
                got = await self._engine.receive(
                    self.group,
                    present,
                    messages_max=max_messages,
                    visible_after_ms=visible_after_ms,
                    wait_seconds=wait_seconds,
                    receiver=self._receiver,
                    consume_from=self._consume_from,
                    create_group=self._create_group,
                )
                self._known.update(each.topic for each in present)
                return list(got)
            except TopicNotFound as absent:
                topic = absent.details.get("topic", "")
                if not self._missing.waits or topic not in self._known:
                    raise
                # Deleted during the call. The routes may not say so yet.
                left = deadline - loop.time()
                if left <= 0:
                    return []
                if self._engine.has_topic(topic):
                    await self._engine.wait_routes(min(left, ROUTES_SECONDS_MAX))

    def _present(self) -> list[Subscription]:
        """The subscriptions whose topics are not missing. Does not wait: receivers keep their
        order."""
        present: list[Subscription] = []
        for each in self._subscriptions:
            if self._engine.has_topic(each.topic):
                self._known.add(each.topic)
                self._missing.discard(each.topic)
            elif self._missing.waits and each.topic in self._known:
                self._missing.add(each.topic, [other.topic for other in self._subscriptions])
                continue
            present.append(each)
        return present

    async def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages: no receiver gets them again. A repeated call has no effect. After
        the invisible time, a call counts until another receiver gets the messages. In a group with
        `fifo`, they come again if an earlier message of their message group comes again.

        Raises:
            NotAcquired: somebody else has one by now, or progress has gone past it. The others are
                acknowledged.
            RockoonError: it was not stored.
        """
        some = _several(messages)
        async with self._extensions.settling(some):
            receipts = [each.receipt for each in some]
            taken = await self._engine.acknowledge(self.group, receipts, receiver=self._receiver)
        _refuse([each for each, is_taken in zip(some, taken, strict=True) if not is_taken])

    async def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay: float = 0.0,
        reason: str | BaseException = "",
    ) -> None:
        """Messages failed: others get them, after a delay, and their attempts are counted.

        Args:
            messages: one or several.
            delay: seconds, up to 12 hours.
            reason: why they failed, as text or an exception. If a message becomes a dead letter,
                the last reason that was given is its `failure`. Cut to 256 bytes.

        Raises:
            NotAcquired, RockoonError: as `ack`.
        """
        some, delay_ms = _several(messages), _milliseconds(delay, "delay")
        text = exception_text(reason) if isinstance(reason, BaseException) else valid_text(reason)
        async with self._extensions.settling(some):
            lost = await self._change(
                some, delay_ms, extend=False, reason=text[:REASON_CHARACTERS_MAX]
            )
        _refuse(lost)

    async def extend(
        self, messages: ReceivedMessage | Iterable[ReceivedMessage], seconds: float
    ) -> None:
        """Stay the only one that has messages, for some more time from now on.

        Args:
            messages: one or several.
            seconds: up to 12 hours.

        Raises:
            NotAcquired, RockoonError: as `ack`.
        """
        some, seconds_ms = _several(messages), _milliseconds(seconds, "seconds")
        async with self._extensions.settling(some):
            lost = await self._change(some, seconds_ms, extend=True)
        self._extensions.add([each for each in some if each not in lost], seconds)
        _refuse(lost)

    async def close(self) -> None:
        """End calls of `receive` that wait, with `Closed`. What was received stays received."""
        self._is_closed = True
        for timeout in self._timeouts:
            timeout.reschedule(0.0)
        await self._extensions.close()

    async def _extend(
        self, messages: Sequence[ReceivedMessage], seconds: float
    ) -> list[ReceivedMessage]:
        return await self._change(messages, _milliseconds(seconds, "seconds"), extend=True)

    async def _change(
        self,
        messages: Sequence[ReceivedMessage],
        visible_after_ms: int,
        *,
        extend: bool,
        reason: str = "",
    ) -> list[ReceivedMessage]:
        """Change visibility; return the messages that are not this receiver's any more."""
        changed = await self._engine.changed(
            self.group,
            [each.receipt for each in messages],
            visible_after_ms,
            extend=extend,
            reason=reason,
        )
        lost = []
        for message, change in zip(messages, changed, strict=True):
            if change is None:
                lost.append(message)
            else:
                message.receipt, message.visible_at_ms = change
        return lost


def _several(messages: ReceivedMessage | Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    return [messages] if isinstance(messages, ReceivedMessage) else list(messages)


def _refuse(lost: Sequence[ReceivedMessage]) -> None:
    if lost:
        raise NotAcquired(count=len(lost), offset=lost[0].queue_offset, queue=lost[0].queue)


def _milliseconds(seconds: float, name: str) -> int:
    if not 0 <= seconds <= 12 * 3600:
        raise InvalidArgument(reason=f"{name} is {seconds} s, not 0 to 12 hours")
    return round(seconds * 1000)
