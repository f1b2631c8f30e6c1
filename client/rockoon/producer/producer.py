"""Producer: accepts single messages, sends them in batches, keeps their order.

Delivery is at least once. If a stream breaks after the broker has stored a batch and before the
reply has arrived, the batch is sent again; the copies have the same message id (UNIQ_KEY), by which
a consumer can detect them. With `idempotent=True` batches are numbered, and a broker stores each
once: there are no copies. If the reply to a batch is lost and the batch then fails, the error says
that its messages may be stored.

Messages with an `ordering_key` or a `queue` always stay in order: their queue has one batch of them
in flight, and the producer sends a failed batch again before later ones. If a batch of other
messages fails, the producer may send it to another queue. An idempotent producer does so only if
the batch is certainly not stored.

A broker refuses a batch as a whole. `send` checks each message for the known reasons of a refusal
and raises for that message alone. If a broker refuses a batch for another reason (for example
because its limits are lower than RocketMQ's defaults), all messages of the batch fail with that
error.
"""

import asyncio
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rockoon.errors import BufferFull, InvalidArgument, RockoonError
from rockoon.net.forks import ClosedOnExit
from rockoon.net.routes import TopicRoute
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES, BatchQueue, message_bytes
from rockoon.producer.body_feed import (
    Bodies,
    Chunk,
    body_chunks,
    check_no_more,
    fits_one_batch,
    next_keys,
)
from rockoon.producer.message_router import MessageRouter, UnroutedMessages
from rockoon.producer.once import OnceMessage, check_once, once_id
from rockoon.producer.options import renamed_key
from rockoon.producer.outgoing import (
    BODY_BYTES_MAX,
    OWN_BYTES_MAX,
    SEQUENCED_BYTES_MAX,
    Body,
    Extras,
    body_too_large,
    check_keys,
    delay_section,
    encode_extras,
    to_body,
    with_section,
)
from rockoon.producer.queue_selectors import KeyHash, crc32_key_hash
from rockoon.producer.receipt import Receipt, SendResults, SentSpans, Span
from rockoon.producer.sender import Sender
from rockoon.producer.settings import ProducerSettings
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_core.message_queue import MessageQueue

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

__all__ = ["Producer", "ProducerSettings", "Receipt", "SendResults"]


class Producer(ClosedOnExit):
    """Sends messages. Created by `cluster.producer()`; closed with the cluster at the latest.

    Not thread-safe: may be used from the cluster's event loop only. Leaving it as a context manager
    closes it.

    Args:
        cluster: the connection, entered.
        settings: None: the defaults of `ProducerSettings`.
        key_hash: maps an ordering key to a queue; see `rockoon.producer.queue_selectors`.
        clock: epoch milliseconds.

    Raises:
        InvalidArgument: a setting is out of its bounds.
        Closed: the cluster is not entered, or is closed.
    """

    def __init__(
        self,
        cluster: "Connection",
        settings: ProducerSettings | None = None,
        *,
        key_hash: KeyHash = crc32_key_hash,
        clock: Clock = wall_clock_ms,
    ) -> None:
        self.settings = settings or ProducerSettings()
        self._cluster = cluster
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._hooks = hooks = None if cluster.hooks is None else cluster.hooks.for_producer()
        self._may_want_send = None if hooks is None else hooks.may_want
        self._sender = Sender(
            cluster, self.settings, clock, self._on_route, self._on_topic_dropped, hooks
        )
        self._accumulator = self._sender.accumulator
        self._router = MessageRouter(self._sender, key_hash)
        self._unrouted = UnroutedMessages(self._accumulator, self.settings, self._sender.resolve)
        # `send` reads it for every message; empty when the producer is closed.
        self._plain = self._accumulator.plain
        self._compacted: set[str] = set()
        self._index_max = self.settings.batch_messages_max - 1
        self._buffer_bytes_max = self.settings.buffer_bytes_max
        self._capacity_bytes = self.settings.capacity_bytes
        self._own_bytes = SEQUENCED_BYTES_MAX if self.settings.idempotent else OWN_BYTES_MAX
        self._is_closed = False
        cluster.adopt(self)

    def send(
        self,
        topic: str,
        body: Body,
        _: None = None,
        keys: str | Sequence[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        delay_level: int | None = None,
        delay_seconds: float | None = None,
        deliver_at: datetime | float | None = None,
        key: str | None = None,
    ) -> Receipt:
        """Accept a message for sending: `await` the receipt for the result, or call
        `wait_capacity()` regularly and `flush()` at the end.

        Args:
            body: at most 4 MiB; in a compacted topic, an empty body deletes its `keys`.
            keys: keys to find the message by: a sequence, or a text with spaces between them.
            tags: consumers can select messages by it.
            properties: with the properties that Rockoon adds, at most 31743 bytes by default.
            queue, ordering_key: messages of one queue, or with one key, stay in order.
            delay_level, delay_seconds, deliver_at: delivery time; see `rockoon.producer.outgoing`.

        Raises:
            InvalidTopicName, InvalidProperty, InvalidArgument, BodyTooLarge, PropertiesTooLarge,
            InvalidDelay, QueueNotFound, KeyMissing: this message cannot be sent.
            BufferFull, Closed: too many bytes of messages that no task awaits; producer closed.
        """
        # Each line costs. Keyword-only arguments would make a call a seventh slower.
        if _ is not None or key is not None:
            ordering_key = _by_name(_, key, ordering_key)
        try:
            batch_queue = self._plain.get(topic)
            if batch_queue is None or type(body) is not bytes or len(body) > BODY_BYTES_MAX:
                body = self._checked(topic, body, keys)
            size = len(body) + MESSAGE_OVERHEAD_BYTES
            extras = None
            if tags is not None or keys is not None or properties is not None:
                extras = encode_extras(keys, tags, properties, self._own_bytes)
                size += len(extras[0]) + len(extras[1])
            accumulator = self._accumulator
            unawaited = accumulator.unawaited_bytes + size
            if unawaited > self._buffer_bytes_max and unawaited > size:
                raise BufferFull(limit=self._buffer_bytes_max)
            if delay_level is not None or delay_seconds is not None or deliver_at is not None:
                section = delay_section(delay_level, delay_seconds, deliver_at)
                return self._send_delayed(topic, body, extras, queue, ordering_key, section)
            if queue is not None or ordering_key is not None:
                if (batch_queue := self._router.batch_queue(topic, queue, ordering_key)) is None:
                    return self._hold(topic, body, extras, ordering_key)
            elif batch_queue is None:
                batch_queue = self._round_robin(topic)
            batch = batch_queue.batch
            index = len(bodies := batch.bodies)
            bodies.append(body)
            if extras is not None:
                batch.extras[index] = extras
            batch.bytes = total = batch.bytes + size
            accumulator.unawaited_bytes = unawaited
            if total >= batch.close_bytes or index >= self._index_max:
                self._open_or_close(batch_queue)
            receipt = Receipt()
            receipt.batch, receipt.index = batch, index
            return receipt if self._hooks is None else self._record_sent(receipt)
        except RockoonError as failure:
            self._record_refused(topic, failure)
            raise

    def _round_robin(self, topic: str) -> BatchQueue:
        """Return the batch queue of messages that may go to any queue of a topic.

        Later sends find it in `_plain`, unless the topic is compacted: then `send` checks the keys.
        """
        batch_queue = self._router.round_robin(topic)
        if topic not in self._compacted:
            self._plain[topic] = batch_queue
        return batch_queue

    async def send_many(
        self,
        topic: str,
        bodies: Bodies,
        *,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        tags: str | None = None,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        key: str | None = None,
    ) -> SendResults:
        """Send many messages and wait until all are stored.

        Reads bodies only as fast as the brokers store them. If the call is cancelled, the messages
        accepted so far are still sent.

        Args:
            topic: the destination.
            bodies: iterable or async iterable; read while the buffer has room.
            keys: the keys of each message, one entry per body.
            tags: for all messages.
            ordering_key, queue: for all messages, as in `send`.
            key: deprecated: `ordering_key`.

        Returns:
            The results, in the order of the bodies.

        Raises:
            RockoonError: as `send`, or the error of a message that was not delivered. Other
                messages may have been stored.
        """
        if key is not None:
            ordering_key = renamed_key(key, ordering_key)
        self._router.check_open()
        many = None if self._hooks is None else self._hooks.on_send_many(topic)
        options = (keys, tags, ordering_key, queue)
        if many is None:
            return await self._send_many(topic, bodies, *options, by_chunk=keys is None)
        with many as record_stored:
            results = await self._send_many(topic, bodies, *options, by_chunk=False)
            record_stored(len(results))
            return results

    async def _send_many(
        self,
        topic: str,
        bodies: Bodies,
        keys: Iterable[str | Sequence[str] | None] | None,
        tags: str | None,
        ordering_key: str | None,
        queue: MessageQueue | None,
        *,
        by_chunk: bool,
    ) -> SendResults:
        """Send many messages, as `send_many`; `by_chunk`: a chunk of bodies may be added to a batch
        in one step."""
        self._sender.add_route(await self._cluster.route(topic))
        spans = SentSpans()
        keys_left = None if keys is None else iter(keys)
        async for chunk in body_chunks(bodies):
            if self._accumulator.buffered_bytes > self._capacity_bytes:
                await self._make_room()
            elif self._sender.must_yield():
                await asyncio.sleep(0)
            if by_chunk and fits_one_batch(chunk, self.settings):
                spans.add(*self._send_chunk(topic, chunk, tags, queue, ordering_key))
                continue
            for body in chunk.bodies:
                if self._accumulator.buffered_bytes > self._capacity_bytes:
                    await self._make_room()
                own_keys = None if keys_left is None else next_keys(keys_left)
                receipt = self.send(
                    topic, body, keys=own_keys, tags=tags, queue=queue, ordering_key=ordering_key
                )
                spans.add(receipt.batch, receipt.index, 1)
        if keys_left is not None:
            check_no_more(keys_left)
        return await spans.results()

    async def send_once(
        self, queue: MessageQueue, messages: Sequence[OnceMessage], scope: bytes
    ) -> SentSpans:
        """Accept messages as one batch, which the broker stores once for all calls with the same
        arguments, from any process; see `rockoon.producer.once`.

        Batches of one queue stay in order. Waits while the buffer is full, as `send_many` does.

        Args:
            queue: the destination.
            messages: in order; at most 65536, with at most 8 MiB in total.
            scope: distinguishes equal messages that are not repeats.

        Returns:
            The accepted messages; `results()` waits until they are stored. The results have no
            `message_id`: if an earlier call has stored the messages, they have its ids. Use
            `offset_message_id`.

        Raises:
            InvalidArgument: the producer is not idempotent, or the batch is too large.
            RockoonError: as `send`.
        """
        try:
            return await self._send_once(queue, messages, scope)
        except RockoonError as failure:
            self._record_refused(queue.topic, failure)
            raise

    async def _send_once(
        self, queue: MessageQueue, messages: Sequence[OnceMessage], scope: bytes
    ) -> SentSpans:
        if not self.settings.idempotent:
            raise InvalidArgument(reason="send_once needs a producer with idempotent=True")
        self._sender.add_route(await self._cluster.route(queue.topic))
        await self._wait_room()
        # No `await` from here on: the producer may be closed, or the queue removed, during a wait.
        batch_queue = self._router.batch_queue(queue.topic, queue, None)
        assert batch_queue is not None, "the queue is named"
        encoded = [
            (
                self._checked(queue.topic, each.body, each.keys),
                encode_extras(each.keys, each.tags, each.properties, self._own_bytes),
            )
            for each in messages
        ]
        size = sum(message_bytes(*each) for each in encoded)
        check_once(len(encoded), size)
        if batch_queue.batch.bodies:
            batch_queue.close_batch()
        batch = batch_queue.batch
        batch.open(self.settings, self._loop.time(), self._clock())
        batch.fixed_id = once_id(scope, encoded)
        batch.bodies = [body for body, _ in encoded]
        batch.extras = {index: extras for index, (_, extras) in enumerate(encoded) if any(extras)}
        batch.bytes = size
        self._accumulator.unawaited_bytes += size
        self._accumulator.pending[batch] = None
        if self._may_want_send is not None and self._may_want_send():
            for index in range(len(encoded)):
                receipt = Receipt()
                receipt.batch, receipt.index = batch, index
                self._record_sent(receipt)
        batch_queue.close_batch()
        self._sender.ready(batch_queue)
        spans = SentSpans()
        spans.add(batch, 0, len(encoded))
        return spans

    def _send_chunk(
        self,
        topic: str,
        chunk: Chunk,
        tags: str | None,
        queue: MessageQueue | None,
        key: str | None,
    ) -> Span:
        """Accept a chunk of bodies for sending in one step; return their span in a batch."""
        if topic in self._compacted:
            check_keys(topic, None)
        count = len(chunk.bodies)
        size = (chunk.plain_bytes or 0) + count * MESSAGE_OVERHEAD_BYTES
        extras = None if tags is None else encode_extras(None, tags, None, self._own_bytes)
        if extras is not None:
            size += count * len(extras[0])
        if self._accumulator.unawaited_bytes + size > self._buffer_bytes_max:
            raise BufferFull(limit=self._buffer_bytes_max)
        batch_queue = self._router.batch_queue(topic, queue, key)
        assert batch_queue is not None, "the route is known"
        batch = batch_queue.batch
        first = len(batch.bodies)
        too_large = batch.bytes + size > self.settings.batch_bytes_max
        if first and (too_large or first + count > self.settings.batch_messages_max):
            batch_queue.close_batch()
            batch, first = batch_queue.batch, 0
        batch.bodies += chunk.bodies
        if extras is not None:
            batch.extras.update(dict.fromkeys(range(first, first + count), extras))
        batch.bytes += size
        self._accumulator.unawaited_bytes += size
        if batch.bytes >= batch.close_bytes or first + count > self._index_max:
            self._open_or_close(batch_queue)
        return batch, first, count

    async def wait_capacity(self) -> None:
        """Wait until the buffer has room for more messages.

        Cancelling it is safe.

        Raises:
            RockoonError: a message that no task awaits was not delivered; the first failure since
                `wait_capacity`, `flush` or `close` last raised one.
        """
        self._sender.raise_unreported()
        await self._wait_room()

    async def drain(self) -> None:
        """Deprecated: `wait_capacity`."""
        warnings.warn("drain() is now wait_capacity()", DeprecationWarning, stacklevel=2)
        await self.wait_capacity()

    async def flush(self) -> None:
        """Wait until each message sent before the call is acknowledged or has failed.

        Cancelling it is safe.

        Raises:
            RockoonError: as `wait_capacity`.
        """
        had_unrouted = bool(self._accumulator.unrouted)
        await self._accumulator.wait_pending()
        if had_unrouted:
            # These messages have moved to new batches, which the first call did not wait for.
            await self._accumulator.wait_pending()
        self._sender.raise_unreported()

    async def close(self) -> None:
        """Flush, then end the streams; later sends raise Closed.

        If the call is cancelled, messages that are not acknowledged fail with Closed.

        Raises:
            RockoonError: as `wait_capacity`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # The router refuses messages after its `close`; `send` calls it for topics that are not
        # in `_plain`.
        self._plain = {}
        self._router.close()
        try:
            # Each batch ends at its deadline; the timeout is for a loop that is shutting down.
            if self._sender.is_running:
                async with asyncio.timeout(self.settings.delivery_timeout_seconds + 5):
                    await self._accumulator.wait_pending()
                    await self._accumulator.wait_pending()
        except TimeoutError:
            pass
        finally:
            await self._sender.close()
            self._cluster.release(self)
        self._sender.raise_unreported()

    def refuse_in_child(self, reason: str) -> None:
        """Refuse calls in a forked child; see `Forkable.refuse_in_child`."""
        self._is_closed = True
        self._plain = {}
        self._router.close(reason)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are not acknowledged, with 160 bytes added for each message."""
        return self._accumulator.buffered_bytes

    # Messages that `send` does not add to a batch itself

    def _checked(self, topic: str, body: Body, keys: str | Sequence[str] | None) -> bytes:
        """Check a message; return its body as `bytes` that the caller cannot modify."""
        body = to_body(body)
        if len(body) > BODY_BYTES_MAX:
            raise body_too_large(len(body))
        if topic in self._compacted:
            check_keys(topic, keys)
        return body

    def _send_delayed(
        self,
        topic: str,
        body: bytes,
        extras: Extras | None,
        queue: MessageQueue | None,
        key: str | None,
        delay: bytes,
    ) -> Receipt:
        extras = with_section(extras, delay)
        chosen = self._router.batch_queue(topic, queue, key)
        if chosen is None:
            return self._hold(topic, body, extras, key, delayed=True)
        receipt = Receipt()
        delayed = self._accumulator.delayed_batch_queue(topic, chosen.queue)
        self._append(receipt, delayed, body, extras)
        return self._record_sent(receipt)

    def _hold(
        self,
        topic: str,
        body: bytes,
        extras: Extras | None,
        key: str | None,
        *,
        delayed: bool = False,
    ) -> Receipt:
        """Hold a message whose queue is unknown until the route of its topic is known."""
        self._router.check_open()
        key_hash = self._router.hash_of(key or "")
        now = self._loop.time()
        receipt = self._unrouted.hold(topic, body, extras, key_hash, now, delayed=delayed)
        return self._record_sent(receipt)

    def _record_sent(self, receipt: Receipt) -> Receipt:
        if self._hooks is not None and self._may_want_send is not None and self._may_want_send():
            self._hooks.on_send(receipt)
        return receipt

    def _record_refused(self, topic: str, failure: RockoonError) -> None:
        if self._hooks is not None and self._may_want_send is not None and self._may_want_send():
            self._hooks.on_refused(topic, failure)

    def _open_or_close(self, batch_queue: BatchQueue) -> None:
        """Open a batch with its first message, or close it with its last."""
        batch = batch_queue.batch
        if not batch.close_bytes:
            batch.open(self.settings, self._loop.time(), self._clock())
            self._accumulator.pending[batch] = None
        if batch.bytes >= batch.close_bytes or len(batch.bodies) > self._index_max:
            batch_queue.close_batch()
        self._sender.ready(batch_queue)

    def _on_route(self, route: TopicRoute) -> None:
        """Apply a new route, and add the messages that waited for it to their batch queues."""
        if route.compacted:
            self._compacted.add(route.name)
            self._plain.pop(route.name, None)
        else:
            self._compacted.discard(route.name)
        self._router.drop_topic(route.name)
        for message in self._unrouted.release(route.name):
            batch_queue = self._router.by_hash(route, message.key_hash)
            if message.delayed:
                queue = batch_queue.queue
                batch_queue = self._accumulator.delayed_batch_queue(route.name, queue)
            self._append(message.receipt, batch_queue, message.body, message.extras)

    def _append(
        self, receipt: Receipt, batch_queue: BatchQueue, body: bytes, extras: Extras | None
    ) -> None:
        batch = batch_queue.batch
        size = message_bytes(body, extras)
        receipt.batch, receipt.index = batch, len(batch.bodies)
        batch.bodies.append(body)
        if extras is not None:
            batch.extras[receipt.index] = extras
        batch.bytes += size
        self._accumulator.unawaited_bytes += size
        if batch.bytes >= batch.close_bytes or receipt.index >= self._index_max:
            self._open_or_close(batch_queue)

    def _on_topic_dropped(self, topic: str) -> None:
        """Drop a topic that does not exist or is not writable; its messages have failed already."""
        self._compacted.discard(topic)
        self._router.drop_topic(topic)
        self._unrouted.drop_topic(topic)

    async def _wait_room(self) -> None:
        if self._sender.must_yield():
            await asyncio.sleep(0)
        if self._accumulator.buffered_bytes > self._capacity_bytes:
            await self._make_room()

    async def _make_room(self) -> None:
        completed = self._sender.completed
        self._sender.end_pauses()
        while self._accumulator.buffered_bytes > self._capacity_bytes // 2:
            await completed.wait(completed.count)


def _by_name(given: object, key: str | None, ordering_key: str | None) -> str | None:
    """Return the ordering key of a call of `send` with the deprecated `key` or a third positional
    argument, which is refused. Raises TypeError: the call has a third positional argument."""
    if given is not None:
        raise TypeError("only topic and body of send() are positional; pass the rest by name")
    return ordering_key if key is None else renamed_key(key, ordering_key)
