"""Batches: back-to-back records of one message queue, handled a column at a time.

A producer encodes a batch in its final stored form, with zeros in the fields that only the broker
knows: queue offset, physical offset, store timestamp and store host (always IPv4). It reserves
space for a checksum. The broker checks every record, writes those fields and the checksum into all
of them at once, and appends the bytes. Consumers receive the bytes that the broker has appended.

`stamp_batches` checks batches of several queues and writes the broker's fields into them ("stamps"
them) in one call, with the result of `check_batch` and `stamp_batch` for one batch after the other.
It leaves out an invalid batch and gives no reason; the caller gets the reason from `check_batch`.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.batch_checking import (
    SYS_FLAGS_ALLOWED,
    BatchError,
    BatchFault,
    BatchLayout,
    check_batch,
)
from rockoon_format.batch_encoding import encode_batch
from rockoon_format.checksums import AT_DIGITS, PROPERTIES_CHECKED_BYTES_MAX, digits_of
from rockoon_format.columns import Columns, decode_columns
from rockoon_format.consume_queue import EntryArray, decode_entries, encode_entries
from rockoon_format.frames import crcs, slices, sliding
from rockoon_format.index_entries import PackedKeys
from rockoon_format.properties import PROPERTY_SEPARATOR
from rockoon_format.record import (
    AT_QUEUE_OFFSET,
    CRC_MASK,
    HOST_V4_BYTES,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_ROOM,
)
from rockoon_format.scan import Scan, ScanEnd, scan

__all__ = [
    "SYS_FLAGS_ALLOWED",
    "BatchError",
    "BatchFault",
    "BatchLayout",
    "Columns",
    "Scan",
    "ScanEnd",
    "check_batch",
    "decode_columns",
    "encode_batch",
    "patch_batch",
    "queue_entries",
    "scan",
    "stamp_batch",
    "with_checksums",
]

_SHORT = struct.Struct(">h")
_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
_STORE = np.dtype([("timestamp", ">i8"), ("host", f"V{HOST_V4_BYTES}")])


def with_checksums(frames: bytes, layout: BatchLayout) -> tuple[bytes, BatchLayout]:
    """Reserve space for a checksum in every record that has none and is not too long for it.

    These records become longer, so a producer cannot compute their physical offsets from the sizes
    that it sent.

    Args:
        frames: checked records.
        layout: result of `check_batch` for them.

    Returns:
        The records and their layout; unchanged if all records have space already.
    """
    if layout.has_room.all():
        return frames, layout
    ends = layout.starts + layout.lengths
    short = ~layout.has_room & (layout.properties_lengths <= PROPERTIES_CHECKED_BYTES_MAX)
    last = np.frombuffer(frames, np.uint8)[ends - 1]
    # A record without properties ends with their length, whose last byte may equal the separator.
    unfinished = short & (layout.properties_lengths > 0) & (last != PROPERTY_SEPARATOR[0])
    tails = (b"", PROPERTY_CRC_ROOM, PROPERTY_SEPARATOR + PROPERTY_CRC_ROOM)
    kinds = short.astype(np.int64) + unfinished
    added = np.array(list(map(len, tails)), np.int64)[kinds]
    pieces: list[bytes] = [b""] * (2 * layout.count)
    pieces[0::2] = slices(frames, layout.starts, layout.lengths)
    pieces[1::2] = map(tails.__getitem__, kinds.tolist())
    lengths = layout.lengths + added
    properties_lengths = layout.properties_lengths + added
    ends = np.cumsum(lengths)
    starts = ends - lengths
    longer = bytearray().join(pieces)
    data = np.frombuffer(longer, np.uint8)
    # The checksum covers both lengths, so they change here, before `patch_batch` computes it.
    sliding(data, ">i4")[starts] = lengths
    sliding(data, ">i2")[ends - properties_lengths - _SHORT.size] = properties_lengths
    return bytes(longer), replace(
        layout,
        starts=starts,
        lengths=lengths,
        store_positions=layout.store_positions - layout.starts + starts,
        properties_lengths=properties_lengths,
        has_room=layout.has_room | short,
        total_bytes=len(longer),
    )


def patch_batch(
    buffer: NDArray[np.uint8],
    layout: BatchLayout,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> None:
    """Write the fields that only the broker knows into every record, in place, and then its
    checksum, if it has space for one.

    Args:
        buffer: the checked records, writable, uint8[total_bytes].
        layout: from `check_batch` of the same frames.
        first_queue_offset: queue offset of the first record; the next records have the next ones.
        first_physical_offset: CommitLog position of the first record.
        store_timestamp_ms: epoch milliseconds.
        store_host: 8 bytes (`record.encode_host` of an IPv4 address).
    """
    if len(store_host) != HOST_V4_BYTES:
        raise ValueError(f"a store host of {len(store_host)} bytes, not {HOST_V4_BYTES}")
    if len(buffer) != layout.total_bytes:
        raise ValueError(f"a buffer of {len(buffer)} bytes for a batch of {layout.total_bytes}")
    count = layout.count
    offsets = np.empty(count, _OFFSETS)
    offsets["queue_offset"] = np.arange(first_queue_offset, first_queue_offset + count)
    offsets["physical_offset"] = layout.starts + first_physical_offset
    # Plain void items of 16 bytes are copied whole; structured ones would go field by field.
    items = sliding(buffer, "V16")
    # Queue offset and physical offset are neighbours in every record, and so are store timestamp
    # and store host: one copy for each pair.
    items[layout.starts + AT_QUEUE_OFFSET] = offsets.view("V16")
    store = np.zeros((), _STORE)
    store["timestamp"] = store_timestamp_ms
    store["host"] = np.void(store_host)
    items[layout.store_positions] = np.void(store.tobytes())
    # Last: the checksum covers what was just written.
    _write_checksums(buffer, layout)


def stamp_batch(
    frames: bytes,
    layout: BatchLayout,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> tuple[NDArray[np.uint8], EntryArray]:
    """Copy a batch, write the broker's fields into the copy, and make its queue entries.

    Args:
        frames: checked records, with the space for checksums that `layout` states.
        layout, first_queue_offset, first_physical_offset, store_timestamp_ms, store_host: as for
            `patch_batch` and `queue_entries`.

    Returns:
        The bytes to be written, uint8[total_bytes], and n structured entries.
    """
    if len(store_host) != HOST_V4_BYTES:
        raise ValueError(f"a store host of {len(store_host)} bytes, not {HOST_V4_BYTES}")
    made = kernel.native.stamp_batch(
        frames,
        _entry_codes(layout, store_timestamp_ms).tobytes(),
        first_queue_offset,
        first_physical_offset,
        store_timestamp_ms,
        store_host,
    )
    if made is not None:
        return np.frombuffer(made[0], np.uint8), decode_entries(made[1])
    buffer = np.frombuffer(bytearray(frames), np.uint8)
    patch_batch(
        buffer,
        layout,
        first_queue_offset=first_queue_offset,
        first_physical_offset=first_physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
    )
    return buffer, queue_entries(layout, first_physical_offset, store_timestamp_ms)


def _write_checksums(buffer: NDArray[np.uint8], layout: BatchLayout) -> None:
    starts, lengths = layout.starts, layout.lengths
    if not layout.has_room.all():
        starts, lengths = starts[layout.has_room], lengths[layout.has_room]
    if not len(starts):
        return
    lengths = lengths - PROPERTY_CRC_BYTES
    digits = digits_of(crcs(buffer, starts, lengths) & CRC_MASK)
    items = sliding(buffer, f"V{PROPERTY_CRC_DIGITS}")
    items[starts + lengths + AT_DIGITS] = digits.view(items.dtype)[:, 0]


def queue_entries(
    layout: BatchLayout, first_physical_offset: int, store_timestamp_ms: int | None = None
) -> EntryArray:
    """Return the batch's ConsumeQueue entries, structured, n of 20 bytes.

    Args:
        layout: from `check_batch`.
        first_physical_offset: CommitLog position of the first record.
        store_timestamp_ms: needed for SCHEDULE_TOPIC_XXXX, whose entries hold deliver times.
    """
    codes = _entry_codes(layout, store_timestamp_ms)
    return encode_entries(layout.starts + first_physical_offset, layout.lengths, codes)


def _entry_codes(layout: BatchLayout, store_timestamp_ms: int | None) -> NDArray[np.int64]:
    """Return the code in each entry: a tags code, or the due time of a delayed message."""
    if layout.delays_ms is None:
        return layout.tag_codes
    if store_timestamp_ms is None:
        raise ValueError("entries of delayed messages need the store timestamp")
    # As in RocketMQ, whose schedule service reads the due time from the entry.
    due_ms = store_timestamp_ms + layout.delays_ms
    return np.where(layout.delays_ms > 0, due_ms, layout.tag_codes)


class GivenBatch(NamedTuple):
    """One batch as its producer sent it."""

    source: bytes
    """The bytes that contain the records, back to back."""
    lengths: bytes
    """Sizes of the records, packed little-endian u32."""
    topic: str
    queue_id: int
    next_queue_offset: int
    """Next offset of its queue before the first batch of the group."""
    bounds: tuple[int, int] | None = None
    """Start and end of the records in `source`; None: all of `source`."""

    @property
    def frames(self) -> bytes:
        """The bytes of the records; a copy if the batch has `bounds`."""
        return self.source if self.bounds is None else self.source[slice(*self.bounds)]


class StampedGroup(NamedTuple):
    """Stamped batches, back to back, to be written together."""

    stored: bytes | memoryview
    """Records of the batches that passed all checks."""
    entries: list[bytes | None]
    """Queue entries of each batch; None: the batch is left out."""
    keys: PackedKeys | None
    """Entries for the index by key; None: not requested, or left to the indexer."""


class GroupAppendRules(NamedTuple):
    """Limits and fields that apply to all batches of a store."""

    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int
    """Like the two limits before: see `check_batch`."""
    sys_flags_allowed: int
    with_room: bool
    """Leave out batches that have a record without space for a checksum."""
    store_host: bytes
    """See `stamp_batch`."""


def stamp_batches(
    batches: Sequence[GivenBatch],
    rules: GroupAppendRules,
    *,
    with_keys: bool = False,
    first_physical_offset: int,
    store_timestamp_ms: int,
) -> StampedGroup:
    """Check batches, and stamp the valid batches in their order.

    Args:
        batches: not of topics of delayed messages. Batches of one queue get consecutive offsets; a
            batch that is left out uses none.
        rules: rules of the store.
        with_keys: also return entries for the index by key.
        first_physical_offset, store_timestamp_ms: physical offset and store time of the first
            record; see `stamp_batch`.
    """
    made = kernel.native.append_batches(
        batches, rules, with_keys, first_physical_offset, store_timestamp_ms
    )
    if made is None:
        return _stamp_one_by_one(batches, rules, first_physical_offset, store_timestamp_ms)
    stored, used, entries, found = made
    if used != len(stored):
        stored = memoryview(stored)[:used]
    keys = None if found is None else tuple.__new__(PackedKeys, found)
    return tuple.__new__(StampedGroup, (stored, entries, keys))


def _stamp_one_by_one(
    batches: Sequence[GivenBatch],
    rules: GroupAppendRules,
    first_physical_offset: int,
    store_timestamp_ms: int,
) -> StampedGroup:
    stored = bytearray()
    entries: list[bytes | None] = []
    # Next offset of each queue.
    following: dict[tuple[str, int], int] = {}
    for batch in batches:
        entries.append(None)
        queue = (batch.topic, batch.queue_id)
        first = following.setdefault(queue, batch.next_queue_offset)
        if len(batch.lengths) % 4:
            continue
        frames = batch.frames
        try:
            layout = check_batch(
                frames,
                np.frombuffer(batch.lengths, "<u4"),
                topic=batch.topic.encode(),
                queue_id=batch.queue_id,
                body_bytes_max=rules.body_bytes_max,
                properties_bytes_max=rules.properties_bytes_max,
                record_bytes_max=rules.record_bytes_max,
                sys_flags_allowed=rules.sys_flags_allowed,
            )
        except BatchError:
            continue
        if rules.with_room and not layout.has_room.all():
            continue
        following[queue] = first + len(batch.lengths) // 4
        made, own_entries = stamp_batch(
            frames,
            layout,
            first_queue_offset=first,
            first_physical_offset=first_physical_offset + len(stored),
            store_timestamp_ms=store_timestamp_ms,
            store_host=rules.store_host,
        )
        stored += made.data
        entries[-1] = own_entries.tobytes()
    return StampedGroup(bytes(stored), entries, None)
