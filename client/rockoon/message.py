"""Message queues, what a send returns, and consumed messages.

Consumers keep what a broker sent as it came: one byte string of records and their sizes. `Batch`
reads whole columns out of it, `Message` is a view of one record in it; neither copies or parses
anything that nobody asks for.
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
    """Where a message went."""

    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    """Position of the record in the broker's CommitLog."""
    message_id: str
    """UNIQ_KEY: made by the producer, the same if the message was stored twice."""
    store_timestamp_ms: int
    store_host: bytes = field(repr=False)

    @property
    def offset_message_id(self) -> str:
        """RocketMQ's offsetMsgId: with it a broker finds the message without an index."""
        return encode_offset_id(self.store_host, self.physical_offset)


class Batch(Sequence["Message"]):
    """Consecutive messages of one queue, as pulled.

    Args:
        queue: where they come from.
        frames: back-to-back records.
        lengths: size of each record in bytes: integers, or packed little-endian u32.
        check_crcs: refuse a message that is not what was stored: by the record's checksum, or where
            it has none by the body's CRC.
        bounds: where in `frames` the records are, when other bytes came with them.

    Attributes:
        only: the record, if there is one and the kernel has read it without columns.

    Raises:
        RecordError: lengths and records do not agree.
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
            # Now, since it is what refuses them.
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
        """Some of the messages, by index, as a batch of their own; no record is copied."""
        lengths = self.columns.lengths
        start = self._bounds[0] + int(lengths[:first].sum())
        chosen = lengths[first:end]
        bounds = (start, start + int(chosen.sum()))
        return Batch(self.queue, self._source, chosen, check_crcs=self.check_crcs, bounds=bounds)

    @property
    def size_bytes(self) -> int:
        """How long all records are."""
        return self._bounds[1] - self._bounds[0]

    @property
    def frames(self) -> bytes:
        """The records, back to back: a copy, when other bytes came with them."""
        return self._source[slice(*self._bounds)]

    @cached_property
    def columns(self) -> Columns:
        """Every field of the records, as `rockoon_format.columns` has it."""
        lengths = self._lengths
        sizes = np.frombuffer(lengths, "<u4") if isinstance(lengths, bytes) else lengths
        # One that came alone is compared already.
        compared = self.check_crcs and self.only is None
        return decode_columns(self._source, sizes, self._bounds, compared=compared)

    def queue_offset_of(self, index: int) -> int:
        """Queue offset of one message."""
        return int(self.offsets[index]) if self.only is None else self.only.queue_offset

    @property
    def first_damaged(self) -> int | None:
        """Index of the first message that is not what was stored, if that is to be refused."""
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
        """Bodies, where each is as it was sent; None where one is damaged or compressed.

        Asked once a batch, so that `Message.body` has nothing else to ask.
        """
        if self.first_damaged is not None:
            return None
        if self.only is not None:
            return None if self.only.sys_flag & SYS_FLAG_COMPRESSED else [self.only.body]
        is_compressed = (self.columns.sys_flags & SYS_FLAG_COMPRESSED).any()
        return None if is_compressed else self.columns.bodies

    @property
    def bodies(self) -> list[bytes]:
        """Bodies as they were sent.

        Raises:
            StoreCorrupt: one is damaged; names its queue and offset.
            InvalidArgument: one cannot be unpacked, or not to `compression.UNPACKED_BYTES_MAX`.
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
        """KEYS as stored, several separated by spaces; raises StoreCorrupt as `bodies`."""
        return self._sound_columns.keys

    @property
    def tags(self) -> list[str | None]:
        """TAGS of each; raises StoreCorrupt as `bodies`."""
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
        """Return the error that says that a message is not what was stored."""
        offset = self.queue_offset_of(index)
        return damaged(self.queue, offset, "it does not have the checksum it was stored with")

    def to_arrow(self) -> "pa.RecordBatch":
        """Return the batch as Arrow columns; needs `pip install rockoon[arrow]`.

        Columns: topic, broker (dictionaries), queue_id, queue_offset, physical_offset, message_id,
        tags, keys, body, born_time and store_time (timestamps, ms, UTC), reconsume_times.
        """
        from rockoon.arrow import record_batch

        return record_batch(self)


class Message:
    """A consumed message: a view of one record of a batch, decoded as it is asked."""

    __slots__ = ("_batch", "_index", "_properties")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index
        self._properties: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Message({self.queue}, offset {self.queue_offset}, {self.message_id})"

    @property
    def queue(self) -> MessageQueue:
        """Where it was read from: for a redelivery a queue of the group's retry topic."""
        return self._batch.queue

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes back by way of a retry topic."""
        stored = self._batch.queue.topic
        if is_retry_topic(stored) or is_dlq_topic(stored):
            return self.properties.get(PROPERTY_RETRY_TOPIC, stored)
        return stored

    @property
    def body(self) -> bytes:
        """The body as it was sent; raises as `Batch.bodies`, but only for its own sake."""
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
        """All properties, also the system's (KEYS, TAGS, UNIQ_KEY...); raises as `body`."""
        if self._properties is None:
            self._properties = decode(self._sound_columns.properties_bytes[self._index])
        return self._properties

    @property
    def keys(self) -> list[str]:
        """The keys it can be found by, maybe none; raises as `body`."""
        return split_keys(self._sound_columns.keys[self._index] or "")

    @property
    def tags(self) -> str | None:
        return self._sound_columns.tags[self._index]

    @property
    def message_id(self) -> str:
        """UNIQ_KEY, which survives redelivery; the offset id when the producer set none."""
        return self._batch.columns.unique_keys[self._index] or self.offset_message_id

    @property
    def origin_message_id(self) -> str | None:
        """Offset id of the first delivery, on a message that came back by way of a retry topic."""
        return self.properties.get(PROPERTY_ORIGIN_MESSAGE_ID)

    @property
    def offset_message_id(self) -> str:
        """Offset id of this record: the broker's address and CommitLog position, in hex."""
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
        """Address and port of the sender, as it gave them."""
        return decode_host(self._batch.columns.born_hosts[self._index])

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker that stored it."""
        return decode_host(self._batch.columns.store_hosts[self._index])

    @property
    def flag(self) -> int:
        """The sender's own flag."""
        return int(self._batch.columns.flags[self._index])

    @property
    def sys_flag(self) -> int:
        return int(self._batch.columns.sys_flags[self._index])

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message that was committed as this one; 0 or less if none
        was."""
        return int(self._batch.columns.prepared_transaction_offsets[self._index])

    @property
    def reconsume_times(self) -> int:
        """How often a listener has failed on it before."""
        return int(self._batch.columns.reconsume_times[self._index])

    @property
    def attempt(self) -> int:
        """Which delivery this is: 1, and one more each time it came back from the retry topic."""
        return self.reconsume_times + 1

    @property
    def failure(self) -> str | None:
        """Why it failed last, as the consumer said that sent it back; None if none did."""
        return self.properties.get(PROPERTY_FAILURE)

    @property
    def traceparent(self) -> str | None:
        """W3C Trace Context of the span that sent it; None when it is not traced."""
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
    """Whether stored properties, or whole records, can bear a trace context: quick, without looking
    at anything message by message."""
    old, new = _TRACE_MARKS
    return old in raw or new in raw


def damaged(queue: MessageQueue, offset: int, reason: str) -> StoreCorrupt:
    """Return the error for a stored message that is not what it was."""
    return StoreCorrupt(
        path=f"message {offset} of {queue}", reason=reason, queue=queue, offset=offset
    )
