"""The first step: of each source, the keys' newest records, and how far its queues reach."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_format.index_entries import whole_keys
from rockoon_format.properties import KEY_SEPARATOR
from rockoon_spark.compaction.key_hash import Hashes, KeyHash
from rockoon_spark.compaction.newest import KeyRows, newest
from rockoon_spark.compaction.sources import CompactionError, Source, Wanted

QueueName = tuple[str, int]


@dataclass(slots=True)
class Span:
    """Offsets of one queue in one source."""

    first: int
    last: int
    records: int


@dataclass(slots=True)
class Survey:
    """What a source has."""

    records: int = 0
    """Of compacted topics."""
    bytes: int = 0
    keyless: int = 0
    seconds: float = 0.0
    """Of one processor."""
    spans: dict[QueueName, Span] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        spans = [[*queue, *asdict(span).values()] for queue, span in self.spans.items()]
        return asdict(self) | {"spans": spans}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Survey":
        spans = {
            (str(topic), int(queue)): Span(*numbers) for topic, queue, *numbers in content["spans"]
        }
        return cls(**{**content, "spans": spans})


def survey(
    source: Source, key_hash: KeyHash, retention_ms: Mapping[str, int], now_ms: int
) -> tuple[KeyRows, Survey]:
    """Look through a source once.

    Args:
        source: where the records are.
        key_hash: the run's.
        retention_ms: of each compacted topic, how long a tombstone stays.
        now_ms: when the generation to be is made, epoch milliseconds.

    Returns:
        A row for the newest record of each key, and of each record without one; ascending by hash.

    Raises:
        CompactionError: the source's, or a queue has no record where one is due.
    """
    began = time.process_time()
    found = Survey()
    rows: list[KeyRows] = []
    for wanted in source.read():
        if not len(wanted):
            continue
        hashes, keyed = _hashes(wanted, key_hash)
        leave_nothing = np.zeros(len(wanted), np.bool_)
        # A tombstone of the log stays, however short its time: it has to be in one generation at
        # least, or a reader of the one before never hears that the key is gone.
        if not source.is_log:
            limits = np.array([retention_ms.get(topic, 0) for topic in wanted.topics], np.int64)
            expired = now_ms - wanted.kept_since_ms >= limits[wanted.which]
            leave_nothing = keyed & wanted.are_empty & expired
        rows.append(KeyRows.of(hashes, wanted.column("physical_offset"), leave_nothing))
        found.records += len(wanted)
        found.bytes += int(wanted.sizes.sum())
        found.keyless += len(wanted) - int(keyed.sum())
        _note_queues(found.spans, wanted, is_log=source.is_log)
    together = KeyRows.joined(rows)
    together = together[newest(together)]
    found.seconds = time.process_time() - began
    return together, found


def _hashes(wanted: Wanted, key_hash: KeyHash) -> tuple[Hashes, NDArray[np.bool_]]:
    """Hashes of the records' topics and keys, or of their places; which of them have a key."""
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
        hashes[~keyed] = key_hash.of_places(wanted.column("physical_offset")[~keyed])
    return hashes, keyed


def _are_filled(data: NDArray[np.uint8], starts: IntArray, sizes: IntArray) -> NDArray[np.bool_]:
    """Which keys are more than spaces: a broker takes nothing else for a key."""
    filled: NDArray[np.bool_] = data[starts] != ord(KEY_SEPARATOR)
    for number in np.flatnonzero(~filled).tolist():
        start = int(starts[number])
        text = data[start : start + int(sizes[number])]
        filled[number] = bool((text != ord(KEY_SEPARATOR)).any())
    return filled


def _note_queues(spans: dict[QueueName, Span], wanted: Wanted, *, is_log: bool) -> None:
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
    for first, behind in bounds:
        name = wanted.topics[int(which[first])], int(queues[first])
        least, most = int(offsets[first]), int(offsets[behind - 1])
        known = spans.get(name)
        if known is None:
            spans[name] = Span(least, most, behind - first)
            continue
        if is_log and least != known.last + 1:
            raise _gap(*name, known.last + 1, least)
        known.last = most
        known.records += behind - first


def _gap(topic: str, queue: int, due: int, found: int) -> CompactionError:
    return CompactionError(
        f"queue {queue} of {topic}: the log has offset {found} where {due} is due"
    )
