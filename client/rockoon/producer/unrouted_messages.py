"""Unrouted messages: messages with an ordering key or a delay that wait for their topic's route."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch, message_bytes
from rockoon.producer.outgoing import Extras, check_topic
from rockoon.producer.receipt import Receipt
from rockoon.producer.settings import ProducerSettings

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
        settings: the producer's settings.
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
            key_hash: hash of the ordering key; 0 for a message without one.
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
        self._accumulator.unclaimed_bytes += size
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
