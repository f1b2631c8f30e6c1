"""The numbers of an idempotent producer's messages: what lets a broker store each of them once.

Pure: ids and times are given.

Invariants:
1. A queue owes an answer for one numbered batch at most. So a repeat never meets numbers behind its
   own, and a batch that was refused gives its numbers back.
2. A batch that may be stored keeps its numbers and its queue until it is stored or given up.
3. After a batch that was given up and may be stored nobody knows which number comes next: the queue
   begins again under another id.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rockoon.errors import (
    Internal,
    RockoonError,
    SequenceGap,
    SequenceUnknown,
    StoreFailed,
)
from rockoon.net.append_replies import Appended
from rockoon_core.message_queue import MessageQueue

if TYPE_CHECKING:
    from rockoon.producer.accumulator import ProducerBatch

# After these the broker may have the batch, or counts in another way than we do.
_UNSURE = (StoreFailed, Internal, SequenceGap, SequenceUnknown)


class BatchSequence:
    """The numbers of a batch."""

    __slots__ = ("_first_sent", "first", "may_be_stored", "producer_id")

    def __init__(self, producer_id: int, first: int) -> None:
        self.producer_id = producer_id
        self.first = first
        self.may_be_stored = False
        """It was sent, and an answer was lost or will not come. Written by the Sender."""
        self._first_sent: float | None = None

    def sent(self, now: float) -> int:
        """The batch is sent; return how long ago that was first, milliseconds, 0 if never.

        Args:
            now: seconds, of the event loop's clock.
        """
        if self._first_sent is None:
            self._first_sent = now
            return 0
        return max(int((now - self._first_sent) * 1000), 1)


class SequenceBook:
    """What number comes next, for each queue.

    Args:
        new_id: returns a producer id that nobody has, 1 to 2^64 - 1.
    """

    def __init__(self, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self._id = new_id()
        # Id and next number; a queue that is not here begins with `_id` and 0.
        self._next: dict[MessageQueue, tuple[int, int]] = {}
        self._owed: dict[MessageQueue, ProducerBatch] = {}

    def is_owed(self, queue: MessageQueue, batch: "ProducerBatch") -> bool:
        """Whether another batch must be answered for before this one may go to the queue."""
        return self._owed.get(queue, batch) is not batch

    def assign(self, batch: "ProducerBatch", queue: MessageQueue) -> None:
        """A batch goes to a queue: number it, unless it has its numbers."""
        if batch.sequence is None:
            producer_id, first = self._next.get(queue, (self._id, 0))
            batch.sequence = BatchSequence(producer_id, first)
            self._owed[queue] = batch

    def refused(self, batch: "ProducerBatch") -> bool:
        """A numbered batch came back; it will be tried again.

        Returns:
            Whether it must go to the same queue, because it may be stored there.
        """
        assert batch.sequence is not None
        assert batch.queue is not None
        if batch.sequence.may_be_stored:
            return True
        batch.sequence = None
        del self._owed[batch.queue]
        return False

    def begin_anew(self, batch: "ProducerBatch", error: RockoonError) -> bool:
        """A numbered batch was refused; begin its queue again if that is all it takes.

        Returns:
            Whether the broker has forgotten the queue's numbers, and cannot have the batch.
        """
        sequence, queue = batch.sequence, batch.queue
        if not isinstance(error, SequenceUnknown) or sequence is None or sequence.may_be_stored:
            return False
        assert queue is not None
        self.renew(queue)
        return True

    def completed(
        self, batch: "ProducerBatch", outcome: Appended | RockoonError
    ) -> Appended | RockoonError:
        """A numbered batch is stored or given up; returns the outcome to tell."""
        sequence, queue = batch.sequence, batch.queue
        assert sequence is not None
        assert queue is not None
        del self._owed[queue]
        if not isinstance(outcome, RockoonError):
            self._next[queue] = sequence.producer_id, sequence.first + len(batch.bodies)
            return outcome
        if sequence.may_be_stored or isinstance(outcome, _UNSURE):
            self.renew(queue)
        return unsure(outcome) if sequence.may_be_stored else outcome

    def renew(self, queue: MessageQueue) -> None:
        """A queue begins again."""
        self._next[queue] = self._new_id(), 0

    def forget_topic(self, topic: str) -> None:
        """A topic is gone; one of the same name will have other queues."""
        # Made again, its queues would begin under the id that the broker has counted by already:
        # hence another id, too.
        self._next = {queue: each for queue, each in self._next.items() if queue.topic != topic}
        self._id = self._new_id()


def unsure(error: RockoonError) -> RockoonError:
    """Return the error of messages that may be stored all the same."""
    details = {**error.details, "stored": "unknown"}
    return type(error)(f"{error}; whether the messages are stored is not known", **details)
