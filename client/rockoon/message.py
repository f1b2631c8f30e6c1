"""Results of sends, and consumed messages.

A consumer keeps a pulled reply unchanged: one byte string of records, and their lengths. `Batch`
decodes whole columns of it, `Message` is a view of one record. Fields are only copied or decoded
when they are read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rockoon.compression import unpack
from rockoon.errors import StoreCorrupt
from rockoon_core.light_dataclass import light_dataclass
from rockoon_core.message_queue import MessageQueue
from rockoon_format.columns import Columns, OnlyRecord, decode_columns, only_record
from rockoon_format.message_id import encode_offset_id
from rockoon_format.names import is_dlq_topic, is_retry_topic
from rockoon_format.properties import (
    PROPERTY_FAILURE,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRACE_CONTEXT,
    TRACEPARENT,
    decode,
    split_keys,
)
from rockoon_format.record import SYS_FLAG_COMPRESSED, decode_host

if TYPE_CHECKING:
    import pyarrow as pa

_TRACE_MARKS = tuple(f"{name}\x01".encode() for name in (TRACEPARENT, PROPERTY_TRACE_CONTEXT))


@light_dataclass
class SendResult:
    """Position and ids of a stored message."""

    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    """Position of the record in the broker's CommitLog."""
    message_id: str
    """UNIQ_KEY, created by the producer. If a message was stored twice, both copies have it. Empty
    for a message of `send_once`, which may have the id of an earlier call."""
    store_timestamp_ms: int
    store_host: bytes = field(repr=False)

    @property
    def offset_message_id(self) -> str:
        """RocketMQ's offsetMsgId, with which a broker finds the message without an index."""
        return encode_offset_id(self.store_host, self.physical_offset)


class Batch(Sequence["Message"]):
    """Consecutive messages of one queue, from one pull.

    Args:
        frames: back-to-back records.
        lengths: size of each record in bytes: integers, or packed little-endian u32.
        check_crcs: refuse damaged messages: compare the record's checksum, or the body's CRC if the
            record has no checksum.
        bounds: start and end of the records in `frames`; None: all of it.

    Attributes:
        only: the record, if there is one and the kernel has read it without columns.

    Raises:
        RecordError: lengths and records do not match.
    """

    def __init__(
        self,
        queue: MessageQueue,
        frames: bytes,
        lengths: bytes | Sequence[int] | NDArray[Any],
        *,
        check_crcs: bool = True,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        self.queue = queue
        self.check_crcs = check_crcs
        self._source = frames
        self._lengths = lengths
        self._bounds = start, end = bounds or (0, len(frames))
        self.only: OnlyRecord | None = None
        if isinstance(lengths, bytes) and lengths == (end - start).to_bytes(4, "little"):
            self.only = only_record(frames, start, end, compared=check_crcs)
        if self.only is None:
            # Decoded here, because decoding checks the lengths.
            self.columns  # noqa: B018

    def __len__(self) -> int:
        return len(self.columns) if self.only is None else 1

    def __repr__(self) -> str:
        return f"Batch({self.queue}, {len(self)} messages)"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [Message(self, i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return Message(self, index % len(self))

    def __iter__(self) -> Iterator["Message"]:
        for index in range(len(self)):
            yield Message(self, index)

    def part(self, first: int, end: int) -> "Batch":
        """Return the messages of an index range as a batch; no record is copied."""
        lengths = self.columns.lengths
        start = self._bounds[0] + int(lengths[:first].sum())
        chosen = lengths[first:end]
        bounds = (start, start + int(chosen.sum()))
        return Batch(self.queue, self._source, chosen, check_crcs=self.check_crcs, bounds=bounds)

    @property
    def size_bytes(self) -> int:
        """Total size of the records in bytes."""
        return self._bounds[1] - self._bounds[0]

    @property
    def frames(self) -> bytes:
        """The records, back to back; copied if `frames` has other bytes too."""
        return self._source[slice(*self._bounds)]

    @cached_property
    def columns(self) -> Columns:
        """All fields of the records; see `rockoon_format.columns`."""
        lengths = self._lengths
        sizes = np.frombuffer(lengths, "<u4") if isinstance(lengths, bytes) else lengths
        # A single record was compared by `only_record`.
        compared = self.check_crcs and self.only is None
        return decode_columns(self._source, sizes, self._bounds, compared=compared)

    def queue_offset_of(self, index: int) -> int:
        """Return the queue offset of one message."""
        return int(self.offsets[index]) if self.only is None else self.only.queue_offset

    @property
    def first_damaged(self) -> int | None:
        """Index of the first damaged message; None without `check_crcs`."""
        if not self.check_crcs:
            return None
        if self.only is not None:
            return 0 if self.only.is_damaged else None
        damaged = self.columns.damaged
        return int(damaged[0]) if len(damaged) else None

    @property
    def _sound_columns(self) -> Columns:
        if (damaged := self.first_damaged) is not None:
            raise self.damage(damaged)
        return self.columns

    @cached_property
    def plain_bodies(self) -> list[bytes] | None:
        """The bodies if none is damaged or compressed, else None.

        Cached per batch, so that `Message.body` needs no further check.
        """
        if self.first_damaged is not None:
            return None
        if self.only is not None:
            return None if self.only.sys_flag & SYS_FLAG_COMPRESSED else [self.only.body]
        is_compressed = (self.columns.sys_flags & SYS_FLAG_COMPRESSED).any()
        return None if is_compressed else self.columns.bodies

    @property
    def bodies(self) -> list[bytes]:
        """Decompressed bodies.

        Raises:
            StoreCorrupt: a message is damaged; the error has its queue and offset.
            InvalidArgument: a body cannot be decompressed, or exceeds
                `compression.UNPACKED_BYTES_MAX`.
        """
        if self.plain_bodies is not None:
            return self.plain_bodies
        columns = self._sound_columns
        bodies = list(columns.bodies)
        for index in np.flatnonzero(columns.sys_flags & SYS_FLAG_COMPRESSED).tolist():
            bodies[index] = unpack(bodies[index], int(columns.sys_flags[index]))
        return bodies

    @property
    def keys(self) -> list[str | None]:
        """KEYS of each message, separated by spaces; raises StoreCorrupt as `bodies`."""
        return self._sound_columns.keys

    @property
    def tags(self) -> list[str | None]:
        """TAGS of each message; raises StoreCorrupt as `bodies`."""
        return self._sound_columns.tags

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Queue offsets, int64[n]."""
        return self.columns.queue_offsets

    @property
    def store_times(self) -> NDArray[np.int64]:
        """Store times, epoch milliseconds, int64[n]."""
        return self.columns.store_timestamps_ms

    def damage(self, index: int) -> StoreCorrupt:
        """Return the error for a damaged message."""
        offset = self.queue_offset_of(index)
        return damaged(self.queue, offset, "its checksum differs from the stored one")

    def to_arrow(self) -> "pa.RecordBatch":
        """Return the batch as Arrow columns; needs `pip install rockoon[arrow]`.

        Columns: topic, broker (dictionaries), queue_id, queue_offset, physical_offset, message_id,
        tags, keys, body, born_time and store_time (timestamps, ms, UTC), reconsume_times.
        """
        from rockoon.arrow import record_batch

        return record_batch(self)


class Message:
    """A consumed message: a view of one record of a batch, decoded on access."""

    __slots__ = ("_batch", "_index", "_properties")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index
        self._properties: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Message({self.queue}, offset {self.queue_offset}, {self.message_id})"

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from; for a redelivery, a queue of the group's retry topic."""
        return self._batch.queue

    @property
    def topic(self) -> str:
        """The topic it was sent to, also for a redelivery from a retry topic."""
        stored = self._batch.queue.topic
        if is_retry_topic(stored) or is_dlq_topic(stored):
            return self.properties.get(PROPERTY_RETRY_TOPIC, stored)
        return stored

    @property
    def body(self) -> bytes:
        """The decompressed body. Raises as `Batch.bodies`, for this message only."""
        only = self._batch.only
        if only is not None and not (only.is_damaged or only.sys_flag & SYS_FLAG_COMPRESSED):
            return only.body
        plain = self._batch.plain_bodies
        if plain is not None:
            return plain[self._index]
        columns = self._sound_columns
        body = columns.bodies[self._index]
        flags = int(columns.sys_flags[self._index])
        return unpack(body, flags) if flags & SYS_FLAG_COMPRESSED else body

    @property
    def _sound_columns(self) -> Columns:
        batch = self._batch
        if batch.check_crcs and batch.columns.is_damaged(self._index):
            raise batch.damage(self._index)
        return batch.columns

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including the system's (KEYS, TAGS, UNIQ_KEY...); raises as `body`."""
        if self._properties is None:
            self._properties = decode(self._sound_columns.properties_bytes[self._index])
        return self._properties

    @property
    def keys(self) -> list[str]:
        """Keys for searches and compaction, possibly none; raises as `body`."""
        return split_keys(self._sound_columns.keys[self._index] or "")

    @property
    def tags(self) -> str | None:
        return self._sound_columns.tags[self._index]

    @property
    def message_id(self) -> str:
        """UNIQ_KEY, the same in all redeliveries; the offset id if the producer set none."""
        return self._batch.columns.unique_keys[self._index] or self.offset_message_id

    @property
    def origin_message_id(self) -> str | None:
        """For a redelivery, the offset id of the original message; else None."""
        return self.properties.get(PROPERTY_ORIGIN_MESSAGE_ID)

    @property
    def offset_message_id(self) -> str:
        """Offset id of this record: broker address and physical offset, in hex."""
        columns = self._batch.columns
        return encode_offset_id(columns.store_hosts[self._index], self.physical_offset)

    @property
    def queue_offset(self) -> int:
        return self._batch.queue_offset_of(self._index)

    @property
    def physical_offset(self) -> int:
        return int(self._batch.columns.physical_offsets[self._index])

    @property
    def born_timestamp_ms(self) -> int:
        return int(self._batch.columns.born_timestamps_ms[self._index])

    @property
    def store_timestamp_ms(self) -> int:
        return int(self._batch.columns.store_timestamps_ms[self._index])

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the sender, set by the sender."""
        return decode_host(self._batch.columns.born_hosts[self._index])

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker that stored it."""
        return decode_host(self._batch.columns.store_hosts[self._index])

    @property
    def flag(self) -> int:
        """The flag set by the sender."""
        return int(self._batch.columns.flags[self._index])

    @property
    def sys_flag(self) -> int:
        return int(self._batch.columns.sys_flags[self._index])

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message of a committed transaction; 0 or less for other
        messages."""
        return int(self._batch.columns.prepared_transaction_offsets[self._index])

    @property
    def reconsume_times(self) -> int:
        """Number of failed deliveries before this one."""
        return int(self._batch.columns.reconsume_times[self._index])

    @property
    def attempt(self) -> int:
        """Number of this delivery, starting at 1."""
        return self.reconsume_times + 1

    @property
    def failure(self) -> str | None:
        """Reason of the last failure, reported by the consumer; None if there was none."""
        return self.properties.get(PROPERTY_FAILURE)

    @property
    def traceparent(self) -> str | None:
        """W3C Trace Context of the span that sent it; None if it is not traced."""
        if not may_be_traced(self._batch.columns.properties_bytes[self._index]):
            return None
        return self.properties.get(TRACEPARENT) or self.properties.get(PROPERTY_TRACE_CONTEXT)

    @property
    def record(self) -> bytes:
        """The whole record as the broker stores it."""
        return self._batch.columns.frame(self._index)

    @property
    def stored_bytes(self) -> int:
        """Size of the whole record."""
        return int(self._batch.columns.lengths[self._index])


def may_be_traced(raw: bytes) -> bool:
    """Whether properties or whole records may contain a trace context. Fast: searches the bytes
    without decoding messages."""
    old, new = _TRACE_MARKS
    return old in raw or new in raw


def damaged(queue: MessageQueue, offset: int, reason: str) -> StoreCorrupt:
    """Return the error for a damaged stored message."""
    return StoreCorrupt(
        path=f"message {offset} of {queue}", reason=reason, queue=queue, offset=offset
    )
