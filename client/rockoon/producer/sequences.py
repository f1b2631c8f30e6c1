"""Sequence numbers of an idempotent producer's messages, by which a broker stores each once.

Pure: ids and times are arguments.

Invariants:
1. A queue has at most one numbered batch without a reply. So a repeated batch never has numbers
   below those that the broker stored last, and a refused batch returns its numbers.
2. A batch that may be stored keeps its numbers and its queue until it is stored or has failed.
3. A batch with a fixed id is the only one of its numbering, from 0; it never changes the numbering
   of other batches.
4. After a failed batch that may be stored, the next number is unknown: the numbering of the queue
   restarts at 0, with another producer id.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rockoon.errors import Internal, RockoonError, SequenceGap, SequenceUnknown, StoreFailed
from rockoon.net.large_replies import Appended
from rockoon_core.message_queue import MessageQueue

if TYPE_CHECKING:
    from rockoon.producer.accumulator import ProducerBatch

# After these errors the broker may have stored the batch, or expects other numbers.
_UNSURE = (StoreFailed, Internal, SequenceGap, SequenceUnknown)


class BatchSequence:
    """Sequence numbers of a batch: producer id and first number."""

    __slots__ = ("_first_sent", "first", "may_be_stored", "producer_id")

    def __init__(self, producer_id: int, first: int) -> None:
        self.producer_id = producer_id
        self.first = first
        self.may_be_stored = False
        """The broker may have stored the batch: its reply is lost or will not be read, or the
        broker is not the leader any more. The Sender sets it."""
        self._first_sent: float | None = None

    def sent(self, now: float) -> int:
        """Record an attempt; return the time since the first one, milliseconds, 0 for the first.
        `now`: seconds, on the event loop's clock."""
        if self._first_sent is None:
            self._first_sent = now
            return 0
        return max(int((now - self._first_sent) * 1000), 1)


class SequenceBook:
    """The next sequence number of each queue. `new_id`: returns an unused producer id, 1 to 2^64 -
    1."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self._id = new_id()
        # Producer id and next number; a queue without an entry starts with `_id` and 0.
        self._next: dict[MessageQueue, tuple[int, int]] = {}
        # The numbered batch without a reply.
        self._unanswered: dict[MessageQueue, ProducerBatch] = {}

    def awaits_reply(self, queue: MessageQueue, batch: "ProducerBatch") -> bool:
        """Return whether the queue has another numbered batch without a reply."""
        return self._unanswered.get(queue, batch) is not batch

    def assign(self, batch: "ProducerBatch", queue: MessageQueue) -> None:
        """Number a batch that is assigned to a queue, unless it has numbers already."""
        if batch.sequence is None:
            if batch.fixed_id is not None:
                producer_id, first = batch.fixed_id, 0
            else:
                producer_id, first = self._next.get(queue, (self._id, 0))
            batch.sequence = BatchSequence(producer_id, first)
            self._unanswered[queue] = batch

    def refused(self, batch: "ProducerBatch") -> bool:
        """Release the numbers of a batch that will be sent again. Returns true if the batch must go
        to the same queue, because it may be stored there."""
        assert batch.sequence is not None
        assert batch.queue is not None
        if batch.sequence.may_be_stored:
            return True
        batch.sequence = None
        del self._unanswered[batch.queue]
        return False

    def renew_if_unknown(self, batch: "ProducerBatch", error: RockoonError) -> bool:
        """Restart the numbering of a queue if its broker has discarded this producer's numbers.
        Returns true if the numbering was restarted: the broker cannot have the batch, which may be
        sent again."""
        sequence, queue = batch.sequence, batch.queue
        if not isinstance(error, SequenceUnknown) or sequence is None or sequence.may_be_stored:
            return False
        if batch.fixed_id is not None:
            return False
        assert queue is not None
        self.renew(queue)
        return True

    def completed(
        self, batch: "ProducerBatch", outcome: Appended | RockoonError
    ) -> Appended | RockoonError:
        """Record the outcome of a numbered batch; return the outcome for its receipts."""
        sequence, queue = batch.sequence, batch.queue
        assert sequence is not None
        assert queue is not None
        del self._unanswered[queue]
        if batch.fixed_id is not None:
            if isinstance(outcome, RockoonError) and sequence.may_be_stored:
                return unsure(outcome)
            return outcome
        if not isinstance(outcome, RockoonError):
            self._next[queue] = sequence.producer_id, sequence.first + len(batch.bodies)
            return outcome
        if sequence.may_be_stored or isinstance(outcome, _UNSURE):
            self.renew(queue)
        return unsure(outcome) if sequence.may_be_stored else outcome

    def renew(self, queue: MessageQueue) -> None:
        """Restart the numbering of a queue at 0, with another producer id."""
        self._next[queue] = self._new_id(), 0

    def drop_topic(self, topic: str) -> None:
        """Drop the numbers of a deleted topic."""
        # If the topic is created again, the broker may still have numbers of `_id` for its queues:
        # queues without an entry need another id.
        self._next = {queue: each for queue, each in self._next.items() if queue.topic != topic}
        self._id = self._new_id()


def unsure(error: RockoonError) -> RockoonError:
    """Return the error with the addition that the messages may be stored."""
    details = {**error.details, "stored": "unknown"}
    return type(error)(f"{error}; whether the messages are stored is not known", **details)
