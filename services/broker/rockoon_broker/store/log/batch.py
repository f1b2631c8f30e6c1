"""Batch: messages of one queue on their way into the log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.queues.consume_queue import QueueKey


class SequenceKey(NamedTuple):
    """Whose sequence numbers they are: every producer counts for each queue by itself."""

    producer_id: int
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """What an idempotent producer says of a batch."""

    key: SequenceKey
    first_sequence: int
    first_sent_ms_ago: int
    """How long ago it was first sent; 0 when this is the first time."""


@dataclass(slots=True, unsafe_hash=True)
class Batch:
    """Records for one queue, as a request brought them or the broker made them."""

    topic: str
    queue_id: int
    source: bytes
    """The records back to back; maybe within a message that brought other things, too."""
    lengths: bytes
    """Their sizes, packed little-endian u32."""
    sequenced: SequencedBatch | None = None
    """Of an idempotent producer: only what is not stored yet is appended. The store itself does
    not look at it."""
    internal: bool = False
    """The broker made the records out of others: they may name these and bear the flag of a
    committed transaction, and exceed limits for clients, which may have been lowered since."""
    bounds: tuple[int, int] | None = None
    """Where in `source` the records are; None: everywhere."""
    frames_bytes: int = field(init=False)
    """Length of all records together."""

    def __post_init__(self) -> None:
        # Each step of an append reads it; a property would be a call each time.
        bounds = self.bounds
        self.frames_bytes = len(self.source) if bounds is None else bounds[1] - bounds[0]

    @classmethod
    def of_records(cls, topic: str, queue_id: int, frames: Sequence[bytes]) -> "Batch":
        """Records that the broker made."""
        lengths = np.fromiter(map(len, frames), "<u4", len(frames)).tobytes()
        return cls(topic, queue_id, b"".join(frames), lengths, internal=True)

    @property
    def frames(self) -> bytes:
        """The records alone: a copy, where they have bounds."""
        return self.source if self.bounds is None else self.source[slice(*self.bounds)]

    @property
    def queue(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def sizes(self) -> NDArray[np.uint32]:
        """Of the records, bytes, n."""
        return np.frombuffer(self.lengths, "<u4")


class RoutedBatch(NamedTuple):
    """A client's batch, and which routes it has seen its queue in: their revision, 0 for none."""

    batch: Batch
    route_revision: int
