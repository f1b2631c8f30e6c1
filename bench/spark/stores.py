"""Generates stores for benchmarks: a CommitLog of 100-byte messages in the broker's format.

The format library encodes one block of records. The log repeats this block; offsets, times, keys
and unique keys differ in each repetition and are written column by column. So a gibibyte is
generated in seconds.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_format.batch import encode_batch
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.frames import IntArray, locate, sliding
from rockoon_format.record import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP_V4,
    HOST_V4_BYTES,
    encode_blank,
    encode_host,
)

TOPICS = 20
QUEUES = 8
BODY_BYTES = 100
VERSIONS = 4
"""Number of records per file with the same topic and key, a quarter of the file apart."""
_BATCH_RECORDS = 16
_ROUNDS_MAX = 25
_ROUND_BYTES = 800_000
_KEY_DIGITS = 10
_UNIQUE_DIGITS = 32
_TAG_PART = b"TAGS\x01TagA\x02"
_KEY_PART = b"KEYS\x01k" + b"0" * _KEY_DIGITS + b"\x02"
_UNIQUE_PART = b"UNIQ_KEY\x01" + b"0" * _UNIQUE_DIGITS + b"\x02"
_FIRST_TIME_MS = 1_760_000_000_000
_RECORDS_PER_MS = 200
_HOST = encode_host("127.0.0.1", 10911)
_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
_STORED = np.dtype([("time", ">i8"), ("host", f"V{HOST_V4_BYTES}")])
_BLANK_BYTES = 8
# Coprime to powers of ten, so that different numbers stay different.
_SPREAD = 2_654_435_761


def topic_name(number: int) -> str:
    return f"bench-{number:02}"


@dataclass(frozen=True, slots=True)
class StoreMade:
    """A generated store directory and its content."""

    path: Path
    log_bytes: int
    records: int
    keys: int
    """Number of distinct (topic, key) pairs."""


class _Block:
    """One encoded block with records of all queues, without the fields that depend on the
    position."""

    def __init__(self, rounds: int, topics: int) -> None:
        random = np.random.default_rng(1)
        frames, sizes, queues = [], [], []
        properties = [_TAG_PART + _KEY_PART + _UNIQUE_PART] * _BATCH_RECORDS
        for _ in range(rounds):
            for queue in random.permutation(topics * QUEUES).tolist():
                topic = topic_name(queue // QUEUES).encode()
                content = random.integers(32, 127, (_BATCH_RECORDS, BODY_BYTES), np.uint8)
                bodies = [row.tobytes() for row in content]
                batch, lengths = encode_batch(
                    topic, queue % QUEUES, bodies, properties, _FIRST_TIME_MS, _HOST
                )
                frames.append(batch)
                sizes.append(lengths)
                queues.append(np.full(_BATCH_RECORDS, queue))
        self.bytes = np.frombuffer(bytearray(b"".join(frames)), np.uint8)
        self.queues = np.concatenate(queues)
        sizes_all: IntArray = np.concatenate(sizes).astype(np.int64)
        self.ends: IntArray = np.cumsum(sizes_all)
        self.starts: IntArray = self.ends - sizes_all
        self._properties = locate(self.bytes, self.starts).properties_starts
        self._ranks = _ranks(self.queues)

    def fitting(self, remaining_bytes: int) -> int:
        """Return the number of the block's records that fit into the remaining bytes of a file."""
        return int(np.searchsorted(self.ends, remaining_bytes - _BLANK_BYTES, side="right"))

    def place(
        self, physical_offset: int, first_record: int, first_key: int, next_offsets: IntArray
    ) -> None:
        """Write the fields that depend on the position in the log into every record.

        Args:
            physical_offset: physical offset of the first record.
            first_record: number of records before it in the log.
            first_key: number of the first record's key; later records have ascending numbers.
            next_offsets: each queue's next offset, int64[queues].
        """
        count = len(self.starts)
        numbers = first_record + np.arange(count)
        offsets = np.empty(count, _OFFSETS)
        offsets["queue_offset"] = next_offsets[self.queues] + self._ranks
        offsets["physical_offset"] = physical_offset + self.starts
        self._scatter(self.starts + AT_QUEUE_OFFSET, offsets.view("V16"))
        stored = np.zeros(count, _STORED)
        stored["time"] = _FIRST_TIME_MS + numbers // _RECORDS_PER_MS
        stored["host"] = np.void(_HOST)
        self._scatter(self.starts + AT_STORE_TIMESTAMP_V4, stored.view("V16"))
        keys = (first_key + np.arange(count)) * _SPREAD % 10**_KEY_DIGITS
        at = self._properties + len(_TAG_PART) + _KEY_PART.index(b"0")
        self._scatter(at, _digits(keys, _KEY_DIGITS))
        at = self._properties + len(_TAG_PART) + len(_KEY_PART) + _UNIQUE_PART.index(b"0")
        self._scatter(at, _digits(numbers, _UNIQUE_DIGITS))

    def _scatter(self, at: IntArray, items: NDArray[np.void]) -> None:
        sliding(self.bytes, items.dtype)[at] = items


def _ranks(queues: IntArray) -> IntArray:
    """Return, for each element, the number of earlier elements of the same queue, int64[n]."""
    order = np.argsort(queues, kind="stable")
    counts = np.bincount(queues)
    ranks = np.empty(len(queues), np.int64)
    ranks[order] = np.arange(len(queues)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def _digits(numbers: IntArray, width: int) -> NDArray[np.void]:
    """Return the decimal digits of numbers below 10**_KEY_DIGITS, as items of `width` bytes."""
    found = np.full((len(numbers), width), ord("0"), np.uint8)
    rest = numbers.copy()
    for place in range(width - 1, width - 1 - _KEY_DIGITS, -1):
        rest, digit = np.divmod(rest, 10)
        found[:, place] += digit.astype(np.uint8)
    return found.view(f"V{width}").ravel()


def make_store(path: Path, file_bytes: int, files: int, *, topics: int = TOPICS) -> list[StoreMade]:
    """Write a store; return one store for each prefix of its files.

    Args:
        file_bytes: size of each CommitLog file.
        files: number of files; each is full except for a few bytes at its end.
        topics: number of topics.

    Returns:
        A store with the first file, one with the first two, ..., one with all; they share files.
    """
    log = path / "log"
    log.mkdir(parents=True)
    rounds = min(max(file_bytes // (8 * _ROUND_BYTES), 1), _ROUNDS_MAX)
    block = _Block(rounds, topics)
    block_records = len(block.starts)
    blocks_per_version = max(file_bytes // (len(block.bytes) * VERSIONS), 1)
    next_offsets = np.zeros(topics * QUEUES, np.int64)
    records = keys = 0
    made: list[StoreMade] = []
    for number in range(files):
        base = number * file_bytes
        with (log / offset_to_file_name(base)).open("wb") as file:
            position = blocks = 0
            while taken := block.fitting(file_bytes - position):
                first_key = keys + blocks % blocks_per_version * block_records
                block.place(base + position, records, first_key, next_offsets)
                length = int(block.ends[taken - 1])
                file.write(block.bytes[:length].data)
                next_offsets += np.bincount(block.queues[:taken], minlength=len(next_offsets))
                position += length
                records += taken
                blocks += 1
            file.write(encode_blank(file_bytes - position))
            file.truncate(file_bytes)
        before = made[-1].records if made else 0
        keys += min(blocks_per_version * block_records, records - before)
        store = path / f"files-{number + 1}"
        (store / "commitlog").mkdir(parents=True)
        for each in sorted(log.iterdir()):
            os.link(each, store / "commitlog" / each.name)
        made.append(StoreMade(store, base + file_bytes, records, keys))
    return made
