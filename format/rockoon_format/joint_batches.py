"""Batches of several queues, checked and stamped in one go.

The bytes that it makes are those of `check_batch` and `stamp_batch`, one batch after the other. It
takes what can be stored as it came, leaves out whatever is in doubt, and names no reason for it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rockoon_format import kernel
from rockoon_format.batch import stamp_batch
from rockoon_format.batch_checking import DELAYED_TOPICS, check_batch
from rockoon_format.batch_rules import SYS_FLAGS_ALLOWED, BatchError
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, EntryArray
from rockoon_format.index_entries import PackedKeys, packed_keys


class GivenBatch(NamedTuple):
    """One batch as its producer sent it, and where its queue goes on."""

    source: bytes
    """The records back to back, maybe within others' bytes."""
    lengths: bytes
    """Sizes of the records, packed little-endian u32."""
    topic: bytes
    queue_id: int
    first_queue_offset: int
    bounds: tuple[int, int] | None = None
    """Where in `source` the records are; None: everywhere."""

    @property
    def frames(self) -> bytes:
        """The records alone."""
        return self.source if self.bounds is None else self.source[slice(*self.bounds)]

    @property
    def frames_bytes(self) -> int:
        """How long the records are."""
        return len(self.source) if self.bounds is None else self.bounds[1] - self.bounds[0]


class Joint(NamedTuple):
    """Batches to be written one behind the other."""

    stored: memoryview
    """The bytes of all that were taken."""
    entries: list[EntryArray | None]
    """Queue entries of each batch given, None for one that was not taken."""
    keys: PackedKeys | None
    """What the index by key holds of them; None where nobody asked, or it is left open."""


class JointRules(NamedTuple):
    """What all batches of one store have in common."""

    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int
    """As of `check_batch`, like the two before."""
    with_room: bool
    """Take only batches whose records all have room for a checksum."""
    store_host: bytes
    """As of `stamp_batch`."""


def stamp_batches(
    batches: Sequence[GivenBatch],
    rules: JointRules,
    *,
    with_keys: bool = False,
    first_physical_offset: int,
    store_timestamp_ms: int,
) -> Joint:
    """Check batches and stamp those that are right, in their order.

    Args:
        batches: of different queues, none of a topic of delayed messages.
        rules: the store's.
        with_keys: look for keys, too.
        first_physical_offset, store_timestamp_ms: as of `stamp_batch`, of the first.
    """
    assert all(batch.topic not in DELAYED_TOPICS for batch in batches)
    if kernel.native is None:
        place = (first_physical_offset, store_timestamp_ms)
        made, entries = _stamp_by_numpy(batches, rules, place)
        keys = packed_keys(bytes(made), first_physical_offset) if with_keys else None
        return Joint(memoryview(made), entries, keys)
    stored, packed, counts, found = _stamp_by_kernel(
        list(batches), rules, with_keys, first_physical_offset, store_timestamp_ms
    )
    entries = []
    used = at = 0
    for batch, count in zip(batches, counts, strict=True):
        if not count:
            entries.append(None)
            continue
        entries.append(np.frombuffer(packed, ENTRY, count, at))
        at += count * ENTRY_BYTES
        used += batch.frames_bytes
    keys = None if found is None else PackedKeys(*found)
    return Joint(memoryview(stored)[:used], entries, keys)


def stamp_alone(
    batch: GivenBatch,
    rules: JointRules,
    *,
    with_keys: bool,
    first_physical_offset: int,
    store_timestamp_ms: int,
) -> tuple[bytes, EntryArray, PackedKeys | None] | None:
    """As `stamp_batches` of one batch, in fewer steps: its bytes, entries and keys, or None."""
    if kernel.native is None:
        joint = stamp_batches(
            [batch],
            rules,
            with_keys=with_keys,
            first_physical_offset=first_physical_offset,
            store_timestamp_ms=store_timestamp_ms,
        )
        (entries,) = joint.entries
        return None if entries is None else (bytes(joint.stored), entries, joint.keys)
    stored, packed, _, found = _stamp_by_kernel(
        [batch], rules, with_keys, first_physical_offset, store_timestamp_ms
    )
    if not packed:
        return None
    return stored, np.frombuffer(packed, ENTRY), None if found is None else PackedKeys(*found)


def _stamp_by_kernel(
    batches: list[GivenBatch],
    rules: JointRules,
    with_keys: bool,
    first_physical_offset: int,
    store_timestamp_ms: int,
) -> tuple[bytes, bytes, list[int], tuple[bytes, bytes] | None]:
    assert kernel.native is not None
    body_bytes_max, properties_bytes_max, record_bytes_max, with_room, store_host = rules
    made: tuple[bytes, bytes, list[int], tuple[bytes, bytes] | None]
    made = kernel.native.append_batches(
        batches,
        body_bytes_max,
        properties_bytes_max,
        record_bytes_max,
        SYS_FLAGS_ALLOWED,
        with_room,
        with_keys,
        first_physical_offset,
        store_timestamp_ms,
        store_host,
    )
    return made


def _stamp_by_numpy(
    batches: Sequence[GivenBatch], rules: JointRules, place: tuple[int, int]
) -> tuple[bytearray, list[EntryArray | None]]:
    offset, store_timestamp_ms = place
    stored = bytearray()
    entries: list[EntryArray | None] = []
    for batch in batches:
        entries.append(None)
        if len(batch.lengths) % 4:
            continue
        frames = batch.frames
        try:
            layout = check_batch(
                frames,
                np.frombuffer(batch.lengths, "<u4"),
                topic=batch.topic,
                queue_id=batch.queue_id,
                body_bytes_max=rules.body_bytes_max,
                properties_bytes_max=rules.properties_bytes_max,
                record_bytes_max=rules.record_bytes_max,
            )
        except BatchError:
            continue
        if rules.with_room and not layout.has_room.all():
            continue
        made, entries[-1] = stamp_batch(
            frames,
            layout,
            first_queue_offset=batch.first_queue_offset,
            first_physical_offset=offset + len(stored),
            store_timestamp_ms=store_timestamp_ms,
            store_host=rules.store_host,
        )
        stored += made.data
    return stored, entries
