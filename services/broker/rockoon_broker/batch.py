"""Batch: messages of one queue on their way into the log."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.idempotence.ledger import SequencedBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_core.errors import MalformedBatch
from rockoon_format.columns import Columns, decode_columns
from rockoon_format.record import RecordError


@dataclass(frozen=True, slots=True)
class Batch:
    """Records for one queue, as a request brought them or the broker made them."""

    topic: str
    queue_id: int
    frames: bytes
    """The records back to back."""
    lengths: bytes
    """Their sizes, packed little-endian u32."""
    sequenced: SequencedBatch | None = None
    """Of an idempotent producer: only what is not stored yet is appended."""
    internal: bool = False
    """The broker made the records out of others: limits for clients do not hold for them."""

    @classmethod
    def of_records(cls, topic: str, queue_id: int, frames: Sequence[bytes]) -> "Batch":
        """Records that the broker made."""
        lengths = np.fromiter(map(len, frames), "<u4", len(frames)).tobytes()
        return cls(topic, queue_id, b"".join(frames), lengths, internal=True)

    @property
    def queue(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def sizes(self) -> NDArray[np.uint32]:
        """Of the records, bytes, n."""
        return np.frombuffer(self.lengths, "<u4")

    def columns(self) -> Columns:
        """The records' fields, not checked.

        Raises:
            MalformedBatch: these are no records.
        """
        try:
            return decode_columns(self.frames, self.sizes)
        except (RecordError, ValueError) as failure:
            raise MalformedBatch(index=0, reason=str(failure)) from failure

    def whole_columns(self) -> Columns:
        """The records' fields, each record with its CRC and at least one.

        Raises:
            MalformedBatch: it is not so.
        """
        columns = self.columns()
        if len(columns) == 0:
            raise MalformedBatch(index=0, reason="the batch has no records")
        if len(columns.damaged):
            raise MalformedBatch(index=int(columns.damaged[0]), reason="it does not have its CRC")
        return columns
