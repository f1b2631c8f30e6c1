"""Messages with a key, or a delay, whose topic's queues are not known yet: held in their order."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch, message_bytes
from rockoon.producer.outgoing import Extras, check_topic
from rockoon.producer.receipt import Receipt
from rockoon.producer.settings import ProducerSettings

_OPEN_SECONDS_MAX = 1.0


class UnroutedBatch(ProducerBatch):
    """Of one topic; its bytes count, and it has a deadline, as any batch."""

    __slots__ = ("delayed", "key_hashes", "receipts")

    def __init__(self, batch_queue: BatchQueue) -> None:
        super().__init__(batch_queue)
        self.delayed: set[int] = set()
        """Indices of messages with a delay."""
        self.key_hashes: list[int] = []
        self.receipts: list[Receipt] = []


class UnroutedMessage(NamedTuple):
    """What is to be given to its queue now."""

    receipt: Receipt
    key_hash: int
    body: bytes
    extras: Extras | None
    delayed: bool


class UnroutedMessages:
    """Those of one producer.

    Args:
        accumulator: counts them; its `unrouted` batch queues are these.
        settings: the producer's.
        resolve: has a topic's route be found.
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
        # The open batch per topic; the batch queues of all of them are `Accumulator.unrouted`.
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
        """Hold a message; `now` is the loop's time, the others are as the producer has them."""
        batch = self._open.get(topic)
        # A batch has one deadline, so one that is kept open for long would cut its last short.
        if batch is None or batch.is_done or now >= batch.linger_end:
            check_topic(topic)
            batch = self._begin(topic, now)
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

    def _begin(self, topic: str, now: float) -> UnroutedBatch:
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

    def take(self, topic: str) -> Iterator[UnroutedMessage]:
        """All of a topic, in their order, which no batch holds any more: place each at once."""
        self._open.pop(topic, None)
        batch_queue = self._accumulator.unrouted.pop(topic, None)
        for batch in batch_queue.take_all() if batch_queue is not None else ():
            assert isinstance(batch, UnroutedBatch)
            self._accumulator.move(batch)
            messages = zip(batch.receipts, batch.key_hashes, batch.bodies, strict=True)
            for index, (receipt, key_hash, body) in enumerate(messages):
                extras = batch.extras.get(index)
                yield UnroutedMessage(receipt, key_hash, body, extras, index in batch.delayed)

    def forget(self, topic: str) -> None:
        """The topic is not there, or not writable; what waited for it has been failed."""
        self._open.pop(topic, None)
