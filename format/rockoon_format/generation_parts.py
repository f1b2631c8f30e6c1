"""Parts of a generation: records back to back, and the entries with their positions.

The `.records` file contains only CommitLog records, byte for byte, in order of (topic, queue, queue
offset). Therefore its entries can be computed from it, or compared with it. The entries are in the
`.entries` file: see `generation_entries`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format.generation_entries import PART_BYTES_MAX, GenerationError, PartEntries
from rockoon_format.index_entries import key_hashes
from rockoon_format.record import Buffer
from rockoon_format.scan import Scan, ScanEnd, scan

_RECORDS_PER_SCAN = 65_536
_KEYS_STEP = 1 << 20


def part_entries(records: Buffer, kept_since_ms: ArrayLike) -> PartEntries:
    """Compute the entries of a part from its records.

    Args:
        records: the whole `.records` file; wrap an mmap in a memoryview. Read once, in chunks.
        kept_since_ms: int64[n], see `PartEntries`.

    Raises:
        GenerationError: a record is damaged, out of order, or of a kind that no queue lists; the
            text names its byte. Or the length of `kept_since_ms` is not the number of records.
    """
    view = memoryview(records)
    if len(view) > PART_BYTES_MAX:
        raise GenerationError(f"a part of {len(view)} bytes, more than {PART_BYTES_MAX}")
    kept = np.array(kept_since_ms, "<i8")
    topics: dict[bytes, int] = {}
    scans: list[Scan] = []
    numbers: list[NDArray[np.int64]] = []
    hashes: list[NDArray[np.int64]] = []
    rows: list[NDArray[np.int64]] = []
    count = 0
    for found in _scans(view):
        known = [topics.setdefault(topic, len(topics)) for topic in found.topics]
        numbers.append(np.array(known, np.int64)[found.topic_numbers])
        keyed, key_hash = _keys(view, found)
        rows.append(keyed + count)
        hashes.append(key_hash)
        scans.append(found)
        count += found.count
    if kept.shape != (count,):
        raise GenerationError(f"{count} records, and {kept.size} values of kept_since_ms")
    all_hashes = _joined(hashes, "<i4")
    order = np.argsort(all_hashes, kind="stable")
    ranks = np.argsort(np.argsort(np.array(list(topics), object), kind="stable"), kind="stable")
    topic_numbers = ranks[_joined(numbers, np.int64)]
    queue_ids = _joined([found.queue_ids for found in scans], np.int64)
    if (queue_ids < 0).any():
        raise GenerationError("a record has a negative queue id")
    starts = _slice_starts(topic_numbers, queue_ids)
    entries = PartEntries(
        topics=tuple(topic.decode() for topic in sorted(topics)),
        slice_topics=topic_numbers[starts].astype("<u4"),
        slice_queues=queue_ids[starts].astype("<u4"),
        slice_starts=np.append(starts, count).astype("<i8"),
        queue_offsets=_joined([found.queue_offsets for found in scans], "<i8"),
        positions=_joined([found.offsets for found in scans], "<i8"),
        store_timestamps_ms=_joined([found.store_timestamps_ms for found in scans], "<i8"),
        tag_codes=_joined([found.tag_codes for found in scans], "<i8"),
        physical_offsets=_joined([found.physical_offsets for found in scans], "<i8"),
        kept_since_ms=kept,
        sizes=_joined([found.sizes for found in scans], "<u4"),
        key_hashes=all_hashes[order],
        key_rows=_joined(rows, "<u4")[order],
    )
    entries.check()
    return entries


def check_part(records: Buffer, entries: PartEntries) -> None:
    """Compare entries with their records; checks the CRC of every record.

    Args:
        records: the whole `.records` file.
        entries: the content of its `.entries` file; only `kept_since_ms` is not checked.

    Raises:
        GenerationError: the records are damaged, or the entries differ; the text names the
            position.
    """
    for _ in part_checks(records, entries):
        pass


def part_checks(records: Buffer, entries: PartEntries) -> Iterator[int]:
    """`check_part` in steps of some MiB; yields the position up to which the part is right.

    Needs the memory of one step.
    """
    entries.check()
    numbers = {topic.encode(): number for number, topic in enumerate(entries.topics)}
    row = keys = fingerprint = 0
    for found in _scans(memoryview(records)):
        end = row + found.count
        if end > len(entries):
            byte = int(found.offsets[len(entries) - row])
            raise GenerationError(f"byte {byte}: a record without an entry")
        rows = np.arange(row, end)
        which = np.searchsorted(entries.slice_starts, rows, "right") - 1
        topics = np.array([numbers.get(topic, -1) for topic in found.topics], np.int64)
        for name, stated, true in (
            ("position", entries.positions[row:end], found.offsets),
            ("size", entries.sizes[row:end], found.sizes),
            ("topic", entries.slice_topics[which], topics[found.topic_numbers]),
            ("queue", entries.slice_queues[which], found.queue_ids),
            ("queue offset", entries.queue_offsets[row:end], found.queue_offsets),
            ("physical offset", entries.physical_offsets[row:end], found.physical_offsets),
            ("store time", entries.store_timestamps_ms[row:end], found.store_timestamps_ms),
            ("tag code", entries.tag_codes[row:end], found.tag_codes),
        ):
            if (stated != true).any():
                index = int((stated != true).argmax())
                raise GenerationError(
                    f"byte {found.offsets[index]}: the {name} of the record differs "
                    f"from row {row + index}"
                )
        keyed, hashes = _keys(memoryview(records), found)
        keys += len(keyed)
        fingerprint += _fingerprint(hashes, keyed + row)
        row = end
        yield found.position
    if row != len(entries):
        raise GenerationError(f"{len(entries)} entries, and {row} records")
    stated_fingerprint = sum(
        _fingerprint(
            entries.key_hashes[at : at + _KEYS_STEP], entries.key_rows[at : at + _KEYS_STEP]
        )
        for at in range(0, len(entries.key_hashes), _KEYS_STEP)
    )
    if (keys, fingerprint % 2**64) != (len(entries.key_hashes), stated_fingerprint % 2**64):
        raise GenerationError("the keys' hashes do not match the records")


def _fingerprint(hashes: NDArray[Any], rows: NDArray[Any]) -> int:
    """Hash of a set of pairs: the sum of the pairs, each mixed as in SplitMix64."""
    mixed = hashes.astype(np.uint64) << np.uint64(32) | rows.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


def _keys(view: memoryview, found: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Record number and hash of each key of some records."""
    start = int(found.offsets[0])
    return key_hashes(
        np.frombuffer(view[start : found.position], np.uint8),
        found.properties_starts - start,
        found.properties_lengths,
        found.sys_flags,
        [_topic_text(topic, found) for topic in found.topics],
        found.topic_numbers,
    )


def _scans(view: memoryview) -> Iterator[Scan]:
    """The records, checked, in chunks of at least one."""
    at = 0
    while at < len(view):
        found = scan(view, at, len(view), records_max=_RECORDS_PER_SCAN)
        if found.end not in (ScanEnd.LIMIT, ScanEnd.END):
            raise GenerationError(f"byte {found.position}: not a whole record: {found.end.value}")
        if not found.has_queue_entry.all():
            odd = int(found.offsets[int(found.has_queue_entry.argmin())])
            raise GenerationError(f"byte {odd}: a record that no queue lists")
        yield found
        at = found.position


def _slice_starts(
    topic_numbers: NDArray[np.int64], queue_ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rows at which the topic or queue changes."""
    other = np.ones(len(queue_ids), np.bool_)
    other[1:] = (topic_numbers[1:] != topic_numbers[:-1]) | (queue_ids[1:] != queue_ids[:-1])
    return np.flatnonzero(other)


def _joined(columns: Sequence[NDArray[np.int64]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, np.int64), *columns]).astype(dtype, copy=False)


def _topic_text(topic: bytes, found: Scan) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise GenerationError(f"chunk at byte {found.offsets[0]}: a topic is not UTF-8") from error
