"""Simple consumer: receives and acknowledges single messages, like RocketMQ's SimpleConsumer and
SQS.

A message stays invisible while its receiver still holds the object. If a handler runs for longer
than `visible_after`, its message must not be delivered a second time. When half of that time has
passed, messages that are neither settled nor garbage-collected are extended by `visible_after`. If
a program drops a message (an exception, a lost reference), the extensions end, and the group gets
the message again.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from math import inf
from typing import Any, NamedTuple
from weakref import ref

from rockoon.bounds import check_group_text, check_text
from rockoon.errors import Closed, InvalidArgument, NotAcquired, RockoonError, TopicNotFound
from rockoon.net.forks import ClosedOnExit
from rockoon.offsets.start import ConsumeFrom, StartName
from rockoon.receiving.engine import ReceivingEngine
from rockoon.receiving.received import ReceivedMessage
from rockoon.subscription import MissingTopics, MissingTopicsRule, Subscription, parsed
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import exception_text, valid_text

log = limited(logging.getLogger(__name__))
# Shares of `visible_after`. Three retries of a failed extension fit into the other half.
_RETRY_SHARE = 1 / 8
_EXTEND_SHARE = 1 / 2
Extend = Callable[[Sequence[ReceivedMessage], float], Awaitable[Sequence[ReceivedMessage]]]
"""Extends messages by seconds; returns those that the group delivers to another receiver by now."""


StartTask = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class _ExtendedMessage(NamedTuple):
    """A received message that is not settled yet."""

    message: "ref[ReceivedMessage]"
    visible_after: float
    due: float
    """Loop time of the next extension."""
    until: float
    """Loop time after which it is not extended."""


class Extensions:
    """The messages of one consumer, and the timer that extends them.

    Args:
        group: for log lines.
        extend: makes the call; see `Extend`.
        start_task: starts a task with a name; the connection owns it.
        seconds_max: how long after its receipt a message is extended at most, seconds.
    """

    def __init__(
        self, group: str, extend: Extend, start_task: StartTask, seconds_max: float
    ) -> None:
        self._group = group
        self._extend = extend
        self._start_task = start_task
        self._seconds_max = seconds_max
        # By `id` of the message object; an entry whose reference is dead is deleted.
        self._held: dict[int, _ExtendedMessage] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, messages: Iterable[ReceivedMessage], visible_after: float) -> None:
        """Extend these messages until they are settled, dropped, or `seconds_max` have passed."""
        if self._seconds_max <= 0 or self._is_closed:
            return
        now = asyncio.get_running_loop().time()
        due = now + visible_after * _EXTEND_SHARE
        until = now + self._seconds_max
        for message in messages:
            self._held[id(message)] = _ExtendedMessage(ref(message), visible_after, due, until)
        if self._held:
            self._schedule(due)

    @asynccontextmanager
    async def settling(self, messages: Collection[ReceivedMessage]) -> AsyncIterator[None]:
        """Stop extending messages, which the block settles.

        The block begins once no extension of them is under way: their receipts are valid then. If
        the block fails, the program still holds the messages, so they are extended again.
        """
        held = {
            key: found
            for key in map(id, messages)
            if (found := self._held.pop(key, None)) is not None
        }
        if self._running is not None:
            await asyncio.wait([self._running])
        try:
            yield
        except RockoonError:
            if held and not self._is_closed:
                self._held |= held
                self._schedule(min(each.due for each in held.values()))
            raise

    async def close(self) -> None:
        """Stop extending all messages."""
        self._is_closed = True
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            await asyncio.wait([self._running])

    def _schedule(self, due: float) -> None:
        """Schedule `_run` for a loop time, unless it is scheduled for an earlier one."""
        if self._running is not None or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._start)

    def _start(self) -> None:
        self._timer = None
        work = self._run()
        try:
            self._running = self._start_task(work, f"rockoon {self._group} extension")
        except Closed:  # without a connection, no message can be extended
            work.close()
            self._held.clear()
            return
        self._running.add_done_callback(self._on_done)

    def _on_done(self, _task: asyncio.Task[None]) -> None:
        self._running = None
        if self._held:
            self._schedule(min(each.due for each in self._held.values()))

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time()
        by_seconds: dict[float, list[ReceivedMessage]] = {}
        for key, held in list(self._held.items()):
            message = held.message()
            if message is None or held.until <= now:
                del self._held[key]
            elif held.due <= now:
                by_seconds.setdefault(held.visible_after, []).append(message)
        for visible_after, messages in by_seconds.items():
            await self._extend_some(messages, visible_after)

    async def _extend_some(self, messages: list[ReceivedMessage], visible_after: float) -> None:
        pause = visible_after * _EXTEND_SHARE
        try:
            lost = await self._extend(messages, visible_after)
        except RockoonError as error:
            pause = visible_after * _RETRY_SHARE
            log.warning(
                "group %s: %d messages were not extended, next try in %.1f s: %s",
                self._group,
                len(messages),
                pause,
                error,
            )
            lost = ()
        for message in lost:
            self._held.pop(id(message), None)
            log.warning(
                "group %s: message %d of %s was delivered to another receiver while it was handled",
                self._group,
                message.queue_offset,
                message.queue,
            )
        due = asyncio.get_running_loop().time() + pause
        for message in messages:
            if (held := self._held.get(id(message))) is not None:
                self._held[id(message)] = held._replace(due=due)


MESSAGES_DEFAULT = 10
VISIBLE_AFTER_SECONDS = 30.0
WAIT_SECONDS = 20.0
# The same as the time that a push consumer waits for a handler (`Timing.consume_timeout_seconds`).
EXTEND_SECONDS_MAX = 900.0
# How long a topic that the nameserver deleted may remain in the routes of the connection.
ROUTES_SECONDS_MAX = 1.0
REASON_CHARACTERS_MAX = 256


class SimpleConsumer(ClosedOnExit):
    """Receives messages of a group. A message is invisible to other receivers for a limited time,
    and is delivered again unless it is acknowledged.

        async with cluster.simple_consumer("billing", {"orders": "new || paid"}) as consumer:
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    Any number of consumers, tasks and processes share the messages of a group; a queue has no
    owner. In a group with `fifo`, the messages of one message group are received in order.

    Args:
        engine: the receiving engine of the connection.
        subscriptions: topic to tags as "new || paid", "*", or an `Sql`. Consumers of a group need
            equal subscriptions: messages that a filter excludes are acknowledged for the group.
        consume_from: start position on queues without progress, if the group defines none: a
            `ConsumeFrom`, "first", "last" or "group".
        receiver: name of the holder that tools show; the connection's client id by default.
        create_group: create the group if it does not exist.
        extend_seconds_max: how long after its receipt a message is extended automatically while the
            program holds the message object and has not settled it, seconds; 0: never. When half of
            `visible_after` has passed, the message is extended by `visible_after`.
        missing_topics: if a topic is deleted, "wait": the consumer receives from the other topics,
            and from the topic when it is created again, as a new topic; "end": `receive` raises
            TopicNotFound. A topic must exist at the first call of `receive`.

    Raises:
        InvalidArgument, InvalidExpression: a subscription or another argument is not valid.
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
        # Topics that existed in an earlier call of `receive`.
        self._known: set[str] = set()
        # Timeouts of waiting calls of `receive`.
        self._timeouts: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def receive(
        self,
        max_messages: int = MESSAGES_DEFAULT,
        *,
        visible_after: float = VISIBLE_AFTER_SECONDS,
        wait: float = WAIT_SECONDS,
    ) -> list[ReceivedMessage]:
        """Wait for messages and return them.

        Args:
            max_messages: 1 to 1024.
            visible_after: time until other receivers get messages that are not acknowledged,
                seconds, 0.001 to 43,200 (12 hours).
            wait: seconds to wait for the first message; 0: return available messages.

        Returns:
            Messages of one queue or several; empty after the wait time.

        Raises:
            TopicNotFound: a topic does not exist; see `missing_topics`.
            TopicNotReadable, GroupNotFound, NotPermitted: nothing can be received.
            RockoonError: a required service was not available within the wait time.
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
        """Return the subscriptions whose topics exist. Not `async`, so calls of `receive` keep
        their order."""
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
            NotAcquired: another receiver has one of the messages, or the group's progress is past
                it. The other messages are acknowledged.
            RockoonError: the acknowledgement was not stored.
        """
        some = _several(messages)
        async with self._extensions.settling(some):
            receipts = [each.receipt for each in some]
            acknowledged = await self._engine.acknowledge(
                self.group, receipts, receiver=self._receiver
            )
        _refuse([each for each, is_valid in zip(some, acknowledged, strict=True) if not is_valid])

    async def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay: float = 0.0,
        reason: str | BaseException = "",
    ) -> None:
        """Reject messages: the group gets them again after a delay, as a further attempt.

        Args:
            messages: one or several.
            delay: seconds, up to 12 hours.
            reason: why they failed, as text or an exception. If a message becomes a dead letter,
                the last reason is its `failure`. Cut to 256 characters.

        Raises:
            NotAcquired, RockoonError: see `ack`.
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
        """Extend the time for which messages are invisible to other receivers.

        Args:
            messages: one or several.
            seconds: new invisible time, from now, up to 12 hours.

        Raises:
            NotAcquired, RockoonError: see `ack`.
        """
        some, seconds_ms = _several(messages), _milliseconds(seconds, "seconds")
        async with self._extensions.settling(some):
            lost = await self._change(some, seconds_ms, extend=True)
        self._extensions.add([each for each in some if each not in lost], seconds)
        _refuse(lost)

    async def close(self) -> None:
        """End waiting calls of `receive` with `Closed`. Received messages can still be settled."""
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
        """Change visibility; return the messages whose receipts are not valid."""
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
