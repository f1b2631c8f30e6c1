"""The producer: takes messages one by one, sends them in batches, keeps their order.

Delivery is at least once. When a stream breaks after the broker has stored a batch and before its
answer arrived, the batch is sent again; the copies have the same message id (UNIQ_KEY), by which a
consumer can tell. With `idempotent=True` batches are numbered, and a broker stores each once: there
are no copies, and what is given up after its answer was lost fails with an error that says so.
Messages with an `ordering_key` or a `queue` stay in order through all of this: such a queue has one
batch out at a time, and a batch that failed goes first. Messages without either may go to another
queue when theirs fails (an idempotent producer's only when the broker has refused them).

A broker refuses a batch as a whole. What could make it refuse one message is checked by `send`,
which raises for that message alone; should a broker refuse a batch nevertheless (its limits are
lower than RocketMQ's defaults, say), all its messages fail with that error, none silently.
"""

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rockoon.deprecation import renamed_key
from rockoon.errors import BufferFull, Closed, InvalidArgument, QueueNotFound, RockoonError
from rockoon.net.routes import TopicRoute
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES, BatchQueue, ProducerBatch, fresh
from rockoon.producer.body_chunks import Bodies, body_chunks
from rockoon.producer.delay import delay_section
from rockoon.producer.outgoing import (
    BODY_BYTES_MAX,
    SEQUENCED_BYTES_MAX,
    Body,
    Extras,
    body_too_large,
    check_extras,
    check_keys,
    check_topic,
    encode_extras,
    to_body,
    with_section,
)
from rockoon.producer.queue_selectors import KeyHash, crc32_key_hash
from rockoon.producer.receipt import Receipt, SendResults, Span
from rockoon.producer.sender import Sender
from rockoon.producer.settings import ProducerSettings
from rockoon.producer.unrouted_messages import UnroutedMessages
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

__all__ = ["Producer", "ProducerSettings", "Receipt", "SendResults"]

log = logging.getLogger(__name__)

_NO_KEYS: tuple[str, ...] = ()


class Producer:
    """Sends messages. Made by `cluster.producer()`; closed with the cluster, or before.

    Not thread-safe: to be used from the cluster's event loop. Leaving it as a context manager
    closes it.

    Args:
        cluster: the connection, entered.
        key_hash: which queue a key goes to; see `rockoon.producer.queue_selectors`.
        clock: epoch milliseconds.
        settings: fields of `ProducerSettings`.

    Raises:
        InvalidArgument: a setting is out of its bounds.
        Closed: the cluster is not entered, or was left.
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
        self._key_hash = key_hash
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sender = Sender(
            cluster, self.settings, clock, self._route_unrouted, self._forget_topic
        )
        self._accumulator = self._sender.accumulator
        self._unrouted = UnroutedMessages(self._accumulator, self.settings, self._sender.resolve)
        # What `send` reads for every message; empty when closed.
        self._round_robin_queues = self._accumulator.round_robin
        self._keyed: dict[str, list[BatchQueue]] = {}
        self._compacted: set[str] = set()
        self._index_max = self.settings.batch_messages_max - 1
        self._buffer_bytes_max = self.settings.buffer_bytes_max
        own_bytes = SEQUENCED_BYTES_MAX if self.settings.idempotent else 0
        self._extras_bytes_max = PROPERTIES_BYTES_MAX - own_bytes
        self._is_closed = False
        # Says, for a producer that traces, whether there may be a present span.
        self._present_span: Callable[[], object] | None = None
        cluster.adopt(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except RockoonError as untold:
            if failure is None:
                raise
            # What the body raised comes first, and may well be why.
            log.warning("closing after a failure: %s", untold)

    def send(
        self,
        topic: str,
        body: Body,
        *,
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
        """Take a message for sending; `await` what is returned to know that it is stored.

        Without awaiting, messages are sent in the background: await `wait_capacity()` now and then
        so that they do not pile up, and `flush()` at the end.

        Args:
            topic: where to.
            body: at most 4 MiB; empty: of a compacted topic the `keys` are deleted.
            keys: what it can be found by: a sequence of keys, or a text with spaces between them.
            tags: what consumers select by.
            properties: the sender's own; at most 31743 bytes with all others, if no broker differs.
            queue: the queue to use; messages to it stay in order.
            ordering_key: messages with the same one go to one queue, in order (formerly `key`).
            delay_level: readers get it after a level's delay, from 1: 1s 5s 10s 30s 1m 2m ... 2h.
            delay_seconds, deliver_at: readers get it so long after it was stored, or then: a
                datetime with a time zone, or epoch seconds. One of the three at most. A delayed
                message is in order with no other and can be stored twice even by an idempotent
                producer; `offset_message_id` of its result cancels it.

        Returns: a receipt: `await receipt` gives a SendResult, or raises why there is none.

        Raises:
            InvalidTopicName, InvalidProperty, InvalidArgument, BodyTooLarge, PropertiesTooLarge,
            InvalidDelay, QueueNotFound, KeyMissing: this message cannot be sent.
            BufferFull, Closed: too much is buffered that nobody awaits; the producer is closed.
        """
        # This is the one function that runs per message: every line of it costs.
        if key is not None:
            ordering_key = renamed_key(key, ordering_key)
        if (look := self._present_span) is not None and look():
            choices = (keys, tags, properties, queue, ordering_key)
            delay = (delay_level, delay_seconds, deliver_at)
            return self._send_within_span(topic, body, *choices, *delay)
        if type(body) is not bytes:
            body = to_body(body)
        size = len(body)
        if size > BODY_BYTES_MAX:
            raise body_too_large(size)
        size += MESSAGE_OVERHEAD_BYTES
        if topic in self._compacted:
            check_keys(topic, keys)
        extras = None
        if tags is not None or keys is not None or properties is not None:
            extras = encode_extras(keys, tags, properties)
            size += (extras_bytes := len(extras[0]) + len(extras[1]))
            if extras_bytes > self._extras_bytes_max:
                check_extras(extras, SEQUENCED_BYTES_MAX)
        delayed = delay_level is not None or delay_seconds is not None or deliver_at is not None
        if delayed:
            size += len(section := delay_section(delay_level, delay_seconds, deliver_at))
            extras = with_section(extras, section)
        accumulator = self._accumulator
        unclaimed = accumulator.unclaimed_bytes + size
        if unclaimed > self._buffer_bytes_max and unclaimed > size:
            raise BufferFull(limit=self._buffer_bytes_max)
        if ordering_key is None and queue is None and not delayed:
            batch_queue = self._round_robin_queues.get(topic) or self._open_round_robin(topic)
        else:
            keyed = self._batch_queue(topic, queue, ordering_key)
            if keyed is None:
                message = (topic, body, extras, size, ordering_key or "")
                return self._hold_unrouted(*message, delayed=delayed)
            batch_queue = accumulator.delayed_batch_queue(topic, keyed.queue) if delayed else keyed
        batch = batch_queue.batch
        index = len(batch.bodies)
        batch.bodies.append(body)
        if extras is not None:
            batch.extras[index] = extras
        batch.bytes = total = batch.bytes + size
        accumulator.unclaimed_bytes = unclaimed
        if total >= batch.close_bytes or index >= self._index_max:
            self._open_or_close(batch_queue)
        receipt = Receipt()
        receipt.batch, receipt.index = batch, index
        return receipt

    def _send_within_span(self, topic: str, body: Body, *options: Any) -> Receipt:
        """For a producer that traces; the options of `send` in their order."""
        raise NotImplementedError

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
        """Send many messages and wait until all are stored, holding back as the brokers need it.

        Cancelling it leaves the messages taken so far on their way.

        Args:
            topic: where to.
            bodies: iterable or async iterable; it is asked for more as there is room.
            keys: the keys of each message, as many as there are bodies.
            tags: for all of them.
            ordering_key, queue: for all of them, as in `send`.
            key: deprecated: `ordering_key`.

        Returns:
            The results, in the order of the bodies.

        Raises:
            RockoonError: what `send` raises, at the body concerned, or why one could not be
                delivered. Other messages may have been stored.
        """
        if key is not None:
            ordering_key = renamed_key(key, ordering_key)
        self._check_open()
        self._sender.know(await self._cluster.route(topic))
        spans: list[Span] = []
        keys_left = None if keys is None else iter(keys)
        async for chunk in body_chunks(bodies):
            if self._accumulator.buffered_bytes > self.settings.drain_bytes:
                await self._make_room()
            elif self._sender.is_behind:
                await asyncio.sleep(0)
            if keys_left is None and self._is_plain(chunk):
                _note(spans, *self._send_plain(topic, chunk, tags, queue, ordering_key))
                continue
            for body in chunk:
                if self._accumulator.buffered_bytes > self.settings.drain_bytes:
                    await self._make_room()
                own_keys = None if keys_left is None else _next_keys(keys_left)
                receipt = self.send(
                    topic, body, keys=own_keys, tags=tags, queue=queue, ordering_key=ordering_key
                )
                _note(spans, receipt.batch, receipt.index, 1)
        if keys_left is not None and next(keys_left, _NO_KEYS) is not _NO_KEYS:
            raise InvalidArgument(reason="there are more keys than bodies")
        for batch, _, count in spans:
            batch.awaited += count
            self._accumulator.flush_now(batch)
        for batch, first, _ in spans:
            if not batch.is_done:
                await batch.waiter()
            if isinstance(batch.outcome, RockoonError):
                batch.result(first)
        return SendResults(spans)

    def _is_plain(self, bodies: list[Body]) -> bool:
        """Whether all are bytes and fit into one batch."""
        settings = self.settings
        size = sum(map(len, bodies)) + len(bodies) * MESSAGE_OVERHEAD_BYTES
        return (
            set(map(type, bodies)) == {bytes}
            and len(bodies) <= settings.batch_messages_max
            and size <= min(settings.batch_bytes_max, BODY_BYTES_MAX)
        )

    def _send_plain(
        self,
        topic: str,
        bodies: list[Any],
        tags: str | None,
        queue: MessageQueue | None,
        key: str | None,
    ) -> Span:
        """What `send` does, once for many bodies."""
        if topic in self._compacted:
            check_keys(topic, None)
        count = len(bodies)
        size = sum(map(len, bodies)) + count * MESSAGE_OVERHEAD_BYTES
        extras = None if tags is None else encode_extras(None, tags, None)
        if extras is not None:
            if len(extras[0]) > self._extras_bytes_max:
                check_extras(extras, SEQUENCED_BYTES_MAX)
            size += count * len(extras[0])
        if self._accumulator.unclaimed_bytes + size > self._buffer_bytes_max:
            raise BufferFull(limit=self._buffer_bytes_max)
        batch_queue = self._batch_queue(topic, queue, key)
        assert batch_queue is not None, "the route is known"
        batch = batch_queue.batch
        first = len(batch.bodies)
        too_large = batch.bytes + size > self.settings.batch_bytes_max
        if first and (too_large or first + count > self.settings.batch_messages_max):
            batch_queue.close_batch()
            batch, first = batch_queue.batch, 0
        batch.bodies += bodies
        if extras is not None:
            batch.extras.update(dict.fromkeys(range(first, first + count), extras))
        batch.bytes += size
        self._accumulator.unclaimed_bytes += size
        if batch.bytes >= batch.close_bytes or first + count > self._index_max:
            self._open_or_close(batch_queue)
        return batch, first, count

    async def wait_capacity(self) -> None:
        """Wait, if too much is on its way, until there is room for more.

        Cancelling it is safe.

        Raises:
            RockoonError: a message that nobody awaits could not be delivered; the first failure
                since this, `flush` or `close` last raised one.
        """
        self._raise_unreported()
        await self._yield()
        if self._accumulator.buffered_bytes > self.settings.drain_bytes:
            await self._make_room()

    async def drain(self) -> None:
        """Deprecated: `wait_capacity`."""
        warnings.warn("drain() is now wait_capacity()", DeprecationWarning, stacklevel=2)
        await self.wait_capacity()

    async def flush(self) -> None:
        """Wait until every message sent before the call is acknowledged or given up.

        Cancelling it is safe.

        Raises:
            RockoonError: as `wait_capacity`.
        """
        had_unrouted = bool(self._accumulator.unrouted)
        await self._wait_pending()
        if had_unrouted:
            # They were given to their queues meanwhile.
            await self._wait_pending()
        self._raise_unreported()

    async def close(self) -> None:
        """Flush, then end the streams; later sends raise Closed.

        Cancelling it gives up what is not acknowledged: those messages fail with Closed.

        Raises:
            RockoonError: as `wait_capacity`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._round_robin_queues = {}
        self._keyed = {}
        try:
            # No batch outlives its deadline; the bound is for a loop that is coming down.
            if self._sender.is_running:
                async with asyncio.timeout(self.settings.delivery_timeout_seconds + 5):
                    await self._wait_pending()
                    await self._wait_pending()
        except TimeoutError:
            pass
        finally:
            await self._sender.close()
            self._cluster.release(self)
        self._raise_unreported()

    @property
    def buffered_bytes(self) -> int:
        """What is taken and not acknowledged, with an allowance of 160 bytes per message."""
        return self._accumulator.buffered_bytes

    # Batch queues

    def _open_round_robin(self, topic: str) -> BatchQueue:
        self._check_open()
        check_topic(topic)
        return self._accumulator.open_round_robin(topic)

    def _batch_queue(
        self, topic: str, queue: MessageQueue | None, key: str | None
    ) -> BatchQueue | None:
        """Return where a message goes; None if that depends on queues not known yet."""
        if queue is not None:
            if key is not None:
                raise InvalidArgument(reason="give a queue or an ordering_key, not both")
            return self._named_batch_queue(topic, queue)
        if key is not None:
            batch_queues = self._keyed.get(topic) or self._open_keyed(topic)
            return batch_queues[self._hash_of(key) % len(batch_queues)] if batch_queues else None
        return self._round_robin_queues.get(topic) or self._open_round_robin(topic)

    def _hash_of(self, key: str) -> int:
        # Here and not when the route is known: what a hash raises is for the sender, not for a
        # background task, whose end would be that of the connection.
        if not isinstance(key, str):
            raise InvalidArgument(reason=f"an ordering key is text, not {key!r}")
        try:
            return self._key_hash(key)
        except UnicodeEncodeError:
            raise InvalidArgument(reason=f"the ordering key {key!r} is not valid Unicode") from None

    def _open_keyed(self, topic: str) -> list[BatchQueue]:
        """Return the batch queues that keys choose among; none while the queues are unknown."""
        self._check_open()
        route = self._sender.routes.get(topic)
        if route is None:
            return []
        batch_queues = self._keyed[topic] = [self._batch_queue_to(queue) for queue in route.queues]
        return batch_queues

    def _named_batch_queue(self, topic: str, queue: MessageQueue) -> BatchQueue:
        """Return the batch queue of a queue that the sender has named."""
        self._check_open()
        if topic != queue.topic:
            raise InvalidArgument(reason=f"queue {queue} is not one of topic {topic!r}")
        batch_queue = self._accumulator.by_queue.get(queue)
        if batch_queue is not None:
            return batch_queue
        check_topic(topic)
        route = self._sender.routes.get(topic)
        if route is not None and queue not in route.create_revisions:
            route = self._sender.look(topic)
        if route is not None and queue not in route.create_revisions:
            raise QueueNotFound(topic=topic, queue=queue.queue_id, broker=queue.broker)
        return self._accumulator.open_by_queue(queue)

    def _batch_queue_to(self, queue: MessageQueue) -> BatchQueue:
        return self._accumulator.by_queue.get(queue) or self._accumulator.open_by_queue(queue)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(what="the producer")

    def _open_or_close(self, batch_queue: BatchQueue) -> None:
        """A batch has got its first message, or its last."""
        batch = batch_queue.batch
        settings = self.settings
        if not batch.close_bytes:
            now = self._loop.time()
            batch.close_bytes = settings.batch_bytes_max
            batch.born_timestamp_ms = self._clock()
            batch.linger_end = now + settings.linger_ms / 1000
            batch.deadline = now + settings.delivery_timeout_seconds
            self._accumulator.pending[batch] = None
        if batch.bytes >= batch.close_bytes or len(batch.bodies) > self._index_max:
            batch_queue.close_batch()
        self._sender.ready(batch_queue)

    def _hold_unrouted(
        self,
        topic: str,
        body: bytes,
        extras: Extras | None,
        size: int,
        key: str,
        *,
        delayed: bool,
    ) -> Receipt:
        """Keep a message whose queue cannot be told before its topic's route is known."""
        self._check_open()
        key_hash = self._hash_of(key)
        now = self._loop.time()
        return self._unrouted.hold(topic, body, extras, size, key_hash, now, delayed=delayed)

    def _route_unrouted(self, route: TopicRoute) -> None:
        """A topic's queues are known: give the messages that waited to their batch queues."""
        if route.compacted:
            self._compacted.add(route.name)
        else:
            self._compacted.discard(route.name)
        self._keyed.pop(route.name, None)
        for message in self._unrouted.take(route.name):
            chosen = route.queues[message.key_hash % len(route.queues)]
            batch_queue = self._batch_queue_to(chosen)
            if message.delayed:
                batch_queue = self._accumulator.delayed_batch_queue(route.name, chosen)
            self._append(message.receipt, batch_queue, message.body, message.extras)

    def _append(
        self, receipt: Receipt, batch_queue: BatchQueue, body: bytes, extras: Extras | None
    ) -> None:
        batch = batch_queue.batch
        size = len(body) + MESSAGE_OVERHEAD_BYTES
        receipt.batch, receipt.index = batch, len(batch.bodies)
        batch.bodies.append(body)
        if extras is not None:
            size += len(extras[0]) + len(extras[1])
            batch.extras[receipt.index] = extras
        batch.bytes += size
        self._accumulator.unclaimed_bytes += size
        if batch.bytes >= batch.close_bytes or receipt.index >= self._index_max:
            self._open_or_close(batch_queue)

    def _forget_topic(self, topic: str) -> None:
        """A topic is not there, or not writable; what waited for it has been failed."""
        self._compacted.discard(topic)
        self._keyed.pop(topic, None)
        self._unrouted.forget(topic)

    # Waiting

    async def _yield(self) -> None:
        if self._sender.is_behind:
            await asyncio.sleep(0)

    async def _make_room(self) -> None:
        completed = self._sender.completed
        low = self.settings.drain_bytes // 2
        while self._accumulator.buffered_bytes > low:
            await completed.wait(completed.count)

    async def _wait_pending(self) -> None:
        pending = list(self._accumulator.pending)
        for batch in pending:
            self._accumulator.flush_now(batch)
        for batch in pending:
            # One whose messages were moved into others is never done, and not pending any more.
            if batch in self._accumulator.pending:
                await batch.waiter()

    def _raise_unreported(self) -> None:
        failed = self._sender.take_unreported()
        if not failed:
            return
        error = failed[0].outcome
        assert isinstance(error, RockoonError)
        raised = fresh(error)
        messages = sum(batch.unseen_failures for batch in failed)
        raised.add_note(f"{messages} messages that nobody awaited were not delivered")
        raise raised


def _next_keys(keys_left: Iterator[str | Sequence[str] | None]) -> str | Sequence[str] | None:
    keys = next(keys_left, _NO_KEYS)
    if keys is _NO_KEYS:
        raise InvalidArgument(reason="there are fewer keys than bodies")
    return keys


def _note(spans: list[Span], batch: ProducerBatch, first: int, count: int) -> None:
    """Add messages behind those noted before, as one span with the last if they follow it."""
    if spans:
        last, start, length = spans[-1]
        if last is batch and start + length == first:
            spans[-1] = (batch, start, length + count)
            return
    spans.append((batch, first, count))
