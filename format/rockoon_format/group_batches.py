"""Batches of several queues, checked and stamped in one go.

The result is that of `check_batch` and `stamp_batch`, one batch after the other. A batch that is in
doubt is left out, without a reason.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rockoon_format import kernel
from rockoon_format.batch import stamp_batch
from rockoon_format.batch_checking import check_batch
from rockoon_format.batch_rules import BatchError
from rockoon_format.index_entries import PackedKeys, packed_keys


class GivenBatch(NamedTuple):
    """One batch as its producer sent it."""

    source: bytes
    """The bytes that contain the records, back to back."""
    lengths: bytes
    """Sizes of the records, packed little-endian u32."""
    topic: str
    queue_id: int
    next_queue_offset: int
    """Where its queue continues before the first batch of the group."""
    bounds: tuple[int, int] | None = None
    """Where in `source` the records are; None: everywhere."""

    @property
    def frames(self) -> bytes:
        """The records alone."""
        return self.source if self.bounds is None else self.source[slice(*self.bounds)]


class StampedGroup(NamedTuple):
    """Batches to be written one behind the other."""

    stored: bytes | memoryview
    """Records of the batches that are not left out."""
    entries: list[bytes | None]
    """Queue entries of each batch; None: it is left out."""
    keys: PackedKeys | None
    """Entries for the index by key; None: not wanted, or a text is not UTF-8."""


class GroupRules(NamedTuple):
    """What all batches of one store have in common."""

    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int
    """As of `check_batch`, like the two before."""
    sys_flags_allowed: int
    with_room: bool
    """Take only batches whose records all have room for a checksum."""
    store_host: bytes
    """As of `stamp_batch`."""


def stamp_batches(
    batches: Sequence[GivenBatch],
    rules: GroupRules,
    *,
    with_keys: bool = False,
    first_physical_offset: int,
    store_timestamp_ms: int,
) -> StampedGroup:
    """Check batches and stamp those that are right, in their order.

    Args:
        batches: none of a topic of delayed messages. Those of one queue follow one another in it,
            without a gap for one that is left out.
        rules: the store's.
        with_keys: look for keys, too.
        first_physical_offset, store_timestamp_ms: those of the first batch; see `stamp_batch`.
    """
    if kernel.native is None:
        place = (first_physical_offset, store_timestamp_ms)
        made, entries = _stamp_by_numpy(batches, rules, place)
        keys = packed_keys(bytes(made), first_physical_offset) if with_keys else None
        return StampedGroup(bytes(made), entries, keys)
    stored, used, entries, found = kernel.native.append_batches(
        batches, rules, with_keys, first_physical_offset, store_timestamp_ms
    )
    if used != len(stored):
        stored = memoryview(stored)[:used]
    keys = None if found is None else tuple.__new__(PackedKeys, found)
    return tuple.__new__(StampedGroup, (stored, entries, keys))


def _stamp_by_numpy(
    batches: Sequence[GivenBatch], rules: GroupRules, place: tuple[int, int]
) -> tuple[bytearray, list[bytes | None]]:
    offset, store_timestamp_ms = place
    stored = bytearray()
    entries: list[bytes | None] = []
    # Where each queue continues.
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
            first_physical_offset=offset + len(stored),
            store_timestamp_ms=store_timestamp_ms,
            store_host=rules.store_host,
        )
        stored += made.data
        entries[-1] = listed.tobytes()
    return stored, entries
