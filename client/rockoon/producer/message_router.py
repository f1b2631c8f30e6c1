"""Message router: chooses the batch queue of a message.

That is the round robin of the topic, or the batch queue of one queue: the one that the program
names, or that the ordering key selects. A key selects a queue once the topic's queues are known.
Until then, messages with an ordering key are unrouted and wait for their topic's route.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rockoon.errors import InvalidArgument, QueueNotFound
from rockoon.net.forks import closed
from rockoon.net.routes import TopicRoute
from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch, message_bytes
from rockoon.producer.outgoing import Extras, check_topic
from rockoon.producer.queue_selectors import KeyHash, for_keys
from rockoon.producer.receipt import Receipt
from rockoon.producer.sender import Sender
from rockoon.producer.settings import ProducerSettings
from rockoon_core.message_queue import MessageQueue


class MessageRouter:
    """Chooses batch queues for one producer, and opens them.

    Args:
        sender: has the routes; its accumulator has the batch queues.
        key_hash: returns a number for an ordering key; the number selects the queue.
    """

    def __init__(self, sender: Sender, key_hash: KeyHash) -> None:
        self._sender = sender
        self._accumulator = sender.accumulator
        self._key_hash = key_hash
        self._is_closed = False
        self._refused_in_child: str | None = None
        # By topic: the batch queues for ordering keys, in the order of the route's queues.
        self._keyed: dict[str, list[BatchQueue]] = {}

    def close(self, reason: str | None = None) -> None:
        """Refuse messages from now on; `reason`: the error text in a forked child."""
        self._is_closed, self._refused_in_child = True, reason
        # `batch_queue` calls `check_open` only for topics that are not in this dict.
        self._keyed = {}

    def check_open(self) -> None:
        """Raises Closed after `close`."""
        if self._is_closed:
            raise closed(self._refused_in_child, "the producer")

    def round_robin(self, topic: str) -> BatchQueue:
        """Return the batch queue of messages that may go to any queue of a topic. Raises Closed:
        the producer is closed; InvalidTopicName: the name is invalid, or the topic is internal to
        the broker."""
        self.check_open()
        batch_queue = self._accumulator.round_robin.get(topic)
        if batch_queue is None:
            check_topic(topic)
            batch_queue = self._accumulator.open_round_robin(topic)
        return batch_queue

    def batch_queue(
        self, topic: str, queue: MessageQueue | None, key: str | None
    ) -> BatchQueue | None:
        """Return the batch queue of a message; None if it depends on a route that is not known.

        Raises:
            InvalidArgument: queue and key are both given, the queue belongs to another topic, or
                the key is not a str.
            QueueNotFound: the topic does not have the queue.
            Closed, InvalidTopicName: as `round_robin`.
        """
        if queue is not None:
            if key is not None:
                raise InvalidArgument(reason="give a queue or an ordering_key, not both")
            return self._named(topic, queue)
        if key is not None:
            batch_queues = self._keyed.get(topic) or self._open_keyed(topic)
            return batch_queues[self.hash_of(key) % len(batch_queues)] if batch_queues else None
        return self.round_robin(topic)

    def hash_of(self, key: str) -> int:
        """Return the number that selects the queue of a key; raises InvalidArgument."""
        # Hashed in `send`, not when the route is known: an exception must reach the caller. In a
        # background task it would end the connection.
        if not isinstance(key, str):
            raise InvalidArgument(reason=f"an ordering key is text, not {key!r}")
        try:
            return self._key_hash(key)
        except UnicodeEncodeError:
            raise InvalidArgument(reason=f"the ordering key {key!r} is not valid Unicode") from None

    def by_hash(self, route: TopicRoute, key_hash: int) -> BatchQueue:
        """Return the batch queue that a key's hash selects, by a known route."""
        queues = for_keys(route.queues, self._sender.drained)
        return self._of_queue(queues[key_hash % len(queues)])

    def drop_topic(self, topic: str) -> None:
        """Drop a topic's cached batch queues, because its queues or drained brokers have
        changed."""
        self._keyed.pop(topic, None)

    def _open_keyed(self, topic: str) -> list[BatchQueue]:
        """Return the batch queues for ordering keys; an empty list while the route is unknown."""
        self.check_open()
        route = self._sender.routes.get(topic)
        if route is None:
            return []
        queues = for_keys(route.queues, self._sender.drained)
        batch_queues = self._keyed[topic] = [self._of_queue(queue) for queue in queues]
        return batch_queues

    def _named(self, topic: str, queue: MessageQueue) -> BatchQueue:
        """Return the batch queue of a queue that the program has named."""
        self.check_open()
        if topic != queue.topic:
            raise InvalidArgument(reason=f"queue {queue} is not one of topic {topic!r}")
        batch_queue = self._accumulator.by_queue.get(queue)
        if batch_queue is not None:
            return batch_queue
        check_topic(topic)
        route = self._sender.routes.get(topic)
        if route is not None and queue not in route.create_revisions:
            # The queue may have been added in a route that is not applied yet.
            route = self._sender.refresh_route(topic)
        if route is not None and queue not in route.create_revisions:
            raise QueueNotFound(topic=topic, queue=queue.queue_id, broker=queue.broker)
        return self._accumulator.open_by_queue(queue)

    def _of_queue(self, queue: MessageQueue) -> BatchQueue:
        return self._accumulator.by_queue.get(queue) or self._accumulator.open_by_queue(queue)


_OPEN_SECONDS_MAX = 1.0


class UnroutedBatch(ProducerBatch):
    """Unrouted messages of one topic; buffered bytes and deadlines apply as to other batches."""

    __slots__ = ("delayed", "key_hashes", "receipts")

    def __init__(self, batch_queue: BatchQueue) -> None:
        super().__init__(batch_queue)
        self.delayed: set[int] = set()
        """Indices of messages with a delay."""
        self.key_hashes: list[int] = []
        self.receipts: list[Receipt] = []


class UnroutedMessage(NamedTuple):
    """A message whose topic route has become known and that can be assigned to a queue."""

    receipt: Receipt
    key_hash: int
    body: bytes
    extras: Extras | None
    delayed: bool


class UnroutedMessages:
    """Unrouted messages of one producer.

    Args:
        accumulator: counts their bytes; its `unrouted` has their batch queues.
        resolve: starts a lookup of a topic's route.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        settings: ProducerSettings,
        resolve: Callable[[str], None],
    ) -> None:
        self._accumulator = accumulator
        self._settings = settings
        self._resolve = resolve
        # The open batch of each topic.
        self._open: dict[str, UnroutedBatch] = {}

    def hold(
        self,
        topic: str,
        body: bytes,
        extras: Extras | None,
        key_hash: int,
        now: float,
        *,
        delayed: bool,
    ) -> Receipt:
        """Hold a message in order.

        Args:
            topic, body, extras: as the producer has encoded them.
            key_hash: hash of the ordering key.
            now: seconds, on the loop's clock.
            delayed: the message has a delay.
        """
        batch = self._open.get(topic)
        # A batch has one deadline: in a batch that is open for long, the last messages would have
        # less time.
        if batch is None or batch.is_done or now >= batch.linger_end:
            check_topic(topic)
            batch = self._open_batch(topic, now)
        receipt = Receipt()
        receipt.batch = batch
        receipt.index = len(batch.bodies)
        batch.bodies.append(body)
        if extras is not None:
            batch.extras[receipt.index] = extras
        if delayed:
            batch.delayed.add(receipt.index)
        size = message_bytes(body, extras)
        batch.bytes += size
        batch.key_hashes.append(key_hash)
        batch.receipts.append(receipt)
        self._accumulator.unawaited_bytes += size
        return receipt

    def _open_batch(self, topic: str, now: float) -> UnroutedBatch:
        accumulator = self._accumulator
        batch_queue = accumulator.unrouted.get(topic)
        if batch_queue is None:
            batch_queue = accumulator.unrouted[topic] = BatchQueue(accumulator, topic, None)
        batch = self._open[topic] = UnroutedBatch(batch_queue)
        batch.linger_end = now + _OPEN_SECONDS_MAX
        batch.deadline = now + self._settings.delivery_timeout_seconds
        batch_queue.waiting.append(batch)
        accumulator.pending[batch] = None
        self._resolve(topic)
        return batch

    def release(self, topic: str) -> Iterator[UnroutedMessage]:
        """Remove and yield a topic's messages in order; the caller must add each to a batch."""
        self._open.pop(topic, None)
        batch_queue = self._accumulator.unrouted.pop(topic, None)
        for batch in batch_queue.remove_all() if batch_queue is not None else ():
            assert isinstance(batch, UnroutedBatch)
            self._accumulator.move(batch)
            messages = zip(batch.receipts, batch.key_hashes, batch.bodies, strict=True)
            for index, (receipt, key_hash, body) in enumerate(messages):
                extras = batch.extras.get(index)
                yield UnroutedMessage(receipt, key_hash, body, extras, index in batch.delayed)

    def drop_topic(self, topic: str) -> None:
        """Drop a topic that does not exist or is not writable; its messages have failed already."""
        self._open.pop(topic, None)
