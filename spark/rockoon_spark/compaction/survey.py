"""First step of a compaction: newest record of each key and queue offsets, for each source."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_format.index_entries import whole_keys
from rockoon_format.properties import KEY_SEPARATOR
from rockoon_spark.compaction.newest import Hashes, KeyHash, KeyRows, newest
from rockoon_spark.compaction.sources import (
    NEVER_MS,
    CompactedRecords,
    CompactionError,
    Source,
)

QueueName = tuple[str, int]


@dataclass(slots=True)
class QueueOffsets:
    """First and last offset, and number of records, of one queue in one source."""

    first: int
    last: int
    records: int


@dataclass(slots=True)
class Survey:
    """Counts of a source's records, and the offsets of its queues."""

    records: int = 0
    """Number of records of compacted topics."""
    bytes: int = 0
    keyless: int = 0
    seconds: float = 0.0
    """CPU time of the survey."""
    oldest_ms: int = NEVER_MS
    """Store time of the oldest record, epoch milliseconds."""
    tombstones_ms: dict[str, int] = field(default_factory=dict)
    """The earliest `kept_since_ms` of a topic's tombstones that have not expired, by topic."""
    queues: dict[QueueName, QueueOffsets] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        queues = [[*name, *asdict(offsets).values()] for name, offsets in self.queues.items()]
        return asdict(self) | {"queues": queues}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Survey":
        queues = {
            (str(topic), int(queue)): QueueOffsets(*numbers)
            for topic, queue, *numbers in content["queues"]
        }
        return cls(**{**content, "queues": queues})


def survey(
    source: Source, key_hash: KeyHash, retention_ms: Mapping[str, int], now_ms: int
) -> tuple[KeyRows, Survey]:
    """Read a source once, and return the newest record of each key, with counts.

    Args:
        source: the source.
        key_hash: hash function of the run.
        retention_ms: retention of tombstones per compacted topic.
        now_ms: creation time of the new generation, epoch milliseconds.

    Returns:
        A row for the newest record of each key, and for each record without a key; ascending by
        hash.

    Raises:
        CompactionError: the source cannot be read, or the offsets of a queue have a gap.
    """
    began = time.process_time()
    found = Survey()
    rows: list[KeyRows] = []
    for wanted in source.read():
        if not len(wanted):
            continue
        hashes, keyed = _hashes(wanted, key_hash)
        are_expired = np.zeros(len(wanted), np.bool_)
        # A tombstone from the log is kept in at least one generation, even if its retention has
        # expired: otherwise a reader of the previous generation never sees that the key is deleted.
        if not source.is_log:
            limits = np.array([retention_ms.get(topic, 0) for topic in wanted.topics], np.int64)
            expired = now_ms - wanted.kept_since_ms >= limits[wanted.which]
            are_expired = keyed & wanted.are_empty & expired
        are_tombstones = keyed & wanted.are_empty
        physical = wanted.column("physical_offset")
        rows.append(KeyRows.of(hashes, physical, are_tombstones, are_expired))
        _add_tombstones(found.tombstones_ms, wanted, are_tombstones & ~are_expired)
        stored_ms = wanted.records.store_timestamps_ms[wanted.index]
        found.oldest_ms = min(found.oldest_ms, int(stored_ms.min()))
        found.records += len(wanted)
        found.bytes += int(wanted.sizes.sum())
        found.keyless += len(wanted) - int(keyed.sum())
        _add_queues(found.queues, wanted, is_log=source.is_log)
    together = KeyRows.joined(rows)
    together = together[newest(together)]
    found.seconds = time.process_time() - began
    return together, found


def _hashes(wanted: CompactedRecords, key_hash: KeyHash) -> tuple[Hashes, NDArray[np.bool_]]:
    """Hash each record by topic and key, or by physical offset; the mask has True for a key."""
    hashes = np.empty((len(wanted), 2), np.uint64)
    keyed = np.zeros(len(wanted), np.bool_)
    records, parts = wanted.records, wanted.records.parts
    starts = parts.properties_starts[wanted.index]
    lengths = np.maximum(parts.properties_lengths[wanted.index], 0)
    for numbers, data, at, sizes in whole_keys(records.buffer, starts, lengths):
        filled = _are_filled(data, at, sizes)
        if not filled.all():
            numbers, at, sizes = numbers[filled], at[filled], sizes[filled]
        hashes[numbers] = key_hash.of_keys(data, at, sizes, wanted.topics, wanted.which[numbers])
        keyed[numbers] = True
    if not keyed.all():
        hashes[~keyed] = key_hash.of_offsets(wanted.column("physical_offset")[~keyed])
    return hashes, keyed


def _are_filled(data: NDArray[np.uint8], starts: IntArray, sizes: IntArray) -> NDArray[np.bool_]:
    """Return a mask of the keys that do not consist only of spaces; brokers ignore such keys."""
    filled: NDArray[np.bool_] = data[starts] != ord(KEY_SEPARATOR)
    for number in np.flatnonzero(~filled).tolist():
        start = int(starts[number])
        text = data[start : start + int(sizes[number])]
        filled[number] = bool((text != ord(KEY_SEPARATOR)).any())
    return filled


def _add_tombstones(
    found: dict[str, int], wanted: CompactedRecords, chosen: NDArray[np.bool_]
) -> None:
    for number in np.unique(wanted.which[chosen]).tolist():
        oldest_ms = int(wanted.kept_since_ms[chosen & (wanted.which == number)].min())
        topic = wanted.topics[number]
        found[topic] = min(oldest_ms, found.get(topic, oldest_ms))


def _add_queues(
    found: dict[QueueName, QueueOffsets], wanted: CompactedRecords, *, is_log: bool
) -> None:
    queues, offsets = wanted.column("queue_id"), wanted.column("queue_offset")
    # Stable, so that each queue keeps the order of the log.
    order = np.lexsort((queues, wanted.which))
    which, queues, offsets = wanted.which[order], queues[order], offsets[order]
    other = np.append(True, (which[1:] != which[:-1]) | (queues[1:] != queues[:-1]))
    if is_log:
        gaps = np.flatnonzero(~other[1:] & (np.diff(offsets) != 1))
        if len(gaps):
            at = int(gaps[0])
            topic = wanted.topics[int(which[at])]
            raise _gap(topic, int(queues[at]), int(offsets[at]) + 1, int(offsets[at + 1]))
    firsts = np.flatnonzero(other)
    bounds = zip(firsts.tolist(), [*firsts[1:].tolist(), len(order)], strict=True)
    for first, stop in bounds:
        name = wanted.topics[int(which[first])], int(queues[first])
        least, most = int(offsets[first]), int(offsets[stop - 1])
        known = found.get(name)
        if known is None:
            found[name] = QueueOffsets(least, most, stop - first)
            continue
        if is_log and least != known.last + 1:
            raise _gap(*name, known.last + 1, least)
        known.last = most
        known.records += stop - first


def _gap(topic: str, queue: int, due: int, found: int) -> CompactionError:
    return CompactionError(
        f"queue {queue} of {topic}: the log has offset {found}, but {due} was expected"
    )
