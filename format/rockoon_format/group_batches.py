"""Checks batches of several queues and writes the broker's fields into them ("stamps" them), in one
call.

The result equals that of `check_batch` and `stamp_batch` for one batch after the other. A batch
that fails a check is left out, without a reason; the caller repeats `check_batch` to learn it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rockoon_format import kernel
from rockoon_format.batch import stamp_batch
from rockoon_format.batch_checking import BatchError, check_batch
from rockoon_format.index_entries import PackedKeys


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
        first_physical_offset, store_timestamp_ms: of the first record; see `stamp_batch`.
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
        made, listed = stamp_batch(
            frames,
            layout,
            first_queue_offset=first,
            first_physical_offset=first_physical_offset + len(stored),
            store_timestamp_ms=store_timestamp_ms,
            store_host=rules.store_host,
        )
        stored += made.data
        entries[-1] = listed.tobytes()
    return StampedGroup(bytes(stored), entries, None)
