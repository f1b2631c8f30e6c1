"""Batch: records of one queue that are to be appended to the log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.queues.consume_queue import QueueKey


class SequenceKey(NamedTuple):
    """Key of a sequence: a producer numbers its messages in each queue separately."""

    producer_id: int
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """The sequence numbers that an idempotent producer sent with a batch."""

    key: SequenceKey
    first_sequence: int
    first_sent_ms_ago: int
    """Milliseconds since the producer first sent this batch; 0 for a first attempt."""


@dataclass(slots=True, unsafe_hash=True)
class AppendBatch:
    """Records for one queue, either from a client request or made by the broker."""

    topic: str
    queue_id: int
    source: bytes
    """The records back to back. May be part of a larger message; see `bounds`."""
    lengths: bytes
    """Sizes of the records in bytes, packed little-endian u32."""
    sequenced: SequencedBatch | None = None
    """Sequence numbers of an idempotent producer; None for other producers. The broker appends only
    messages that are not stored yet; the store itself ignores this field."""
    internal: bool = False
    """True if the broker made these records from other records. They may refer to the originals,
    may carry the flag of a committed transaction, and may exceed the current limits for clients."""
    bounds: tuple[int, int] | None = None
    """Start and end of the records in `source`; None: all of `source`."""
    frames_bytes: int = field(init=False)
    """Total size of the records, bytes."""

    def __post_init__(self) -> None:
        # Each step of an append reads it; a property would add a call.
        bounds = self.bounds
        self.frames_bytes = len(self.source) if bounds is None else bounds[1] - bounds[0]

    @classmethod
    def of_records(cls, topic: str, queue_id: int, frames: Sequence[bytes]) -> "AppendBatch":
        """Return a batch of records that the broker has made."""
        lengths = np.fromiter(map(len, frames), "<u4", len(frames)).tobytes()
        return cls(topic, queue_id, b"".join(frames), lengths, internal=True)

    @property
    def frames(self) -> bytes:
        """The bytes of the records; a copy if the batch has `bounds`."""
        return self.source if self.bounds is None else self.source[slice(*self.bounds)]

    @property
    def queue(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def sizes(self) -> NDArray[np.uint32]:
        """Size of each record, bytes, uint32[n]."""
        return np.frombuffer(self.lengths, "<u4")


class RoutedBatch(NamedTuple):
    """A client's batch, and the revision of the route with which the client sent it; 0: no
    route."""

    batch: AppendBatch
    route_revision: int
