"""Both kernels check entries and their records with the same results."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from rockoon_broker.store.queues.consume_queue import (
    matching_count,
    plausible_count,
    records_to_read,
)
from rockoon_format.batch import encode_batch
from rockoon_format.consume_queue import FILLER_SIZE, EntryArray, encode_entries
from rockoon_format.record import RECORD_BYTES_MIN, encode_host
from support.kernels import needs_compiled, of_both, using

pytestmark = needs_compiled

LOG_MIN, LOG_END, FILE_BYTES = 3_000, 9_000, 4_000
Run = tuple[int, int]


class Read(NamedTuple):
    """Result of a read."""

    sizes: list[int]
    runs: list[Run]


def entries_of(chance: random.Random) -> EntryArray:
    """Return entries of a queue, some of them changed."""
    positions, sizes, at = [], [], chance.choice([LOG_MIN, LOG_MIN, LOG_MIN - 200])
    for _ in range(chance.randint(1, 20)):
        at += chance.choice([0, 0, 0, 0, 50, 700])
        size = chance.randint(RECORD_BYTES_MIN, 300)
        positions.append(at)
        sizes.append(size)
        at += size
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        changed = chance.randrange(len(sizes))
        if chance.random() < 0.5:
            sizes[changed] = chance.choice([FILLER_SIZE, 0, -1, RECORD_BYTES_MIN - 1, 5_000])
        else:
            positions[changed] = chance.choice([0, -1, 2**63 - 1, -(2**63), LOG_END, LOG_MIN])
    return encode_entries(positions, sizes, np.zeros(len(sizes)))


def expected(entries: EntryArray, messages_max: int, bytes_max: int) -> Read | None:
    """Return the result of `records_to_read`, by the rules of `plausible_count` entry by entry."""
    sizes: list[int] = []
    runs: list[Run] = []
    for position, size, _ in entries[:messages_max].tolist():
        end = position + size
        is_record = RECORD_BYTES_MIN <= size < FILLER_SIZE and position >= LOG_MIN
        is_placed = end <= LOG_END and position % FILE_BYTES + size <= FILE_BYTES
        if not (is_record and is_placed) or (runs and position < runs[-1][1]):
            return None
        if sizes and sum(sizes) + size > bytes_max:
            break
        sizes.append(size)
        if runs and runs[-1][1] == position:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((position, end))
    return Read(sizes, runs)


@pytest.mark.parametrize("seed", range(20))
def test_entries_lead_to_the_runs_that_numpy_leaves(seed: int) -> None:
    chance, found_some = random.Random(seed), 0
    for _ in range(100):
        entries = entries_of(chance)
        exactly = max(int(entries["size"][:3].astype(np.int64).sum()), 1)
        messages_max, bytes_max = chance.choice([1, 5, 100]), chance.choice([1, exactly, 10_000])
        bounds = (LOG_MIN, LOG_END, FILE_BYTES, messages_max, bytes_max)
        with using("compiled"):
            found = records_to_read(entries, *bounds)
        read = None if found is None else Read(found[0].tolist(), found[1])
        assert read == expected(entries, messages_max, bytes_max), (seed, entries)
        with using("numpy"):
            assert records_to_read(entries, *bounds) is None
        if read is not None:
            found_some += 1
            positions, sizes = (entries[name].astype(np.int64) for name in ("offset", "size"))
            taken = slice(len(read.sizes))
            plausible = plausible_count(positions[taken], sizes[taken], *bounds[:3])
            assert plausible == len(read.sizes)
    assert 20 < found_some < 90, seed


@pytest.mark.parametrize("seed", range(20))
def test_records_are_those_of_their_entries_by_both_kernels(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        count = chance.randint(1, 6)
        bodies = [bytes(chance.randint(0, 40)) for _ in range(count)]
        sections = [b"TAGS\x01t%d\x02" % number for number in range(count)]
        host = encode_host(chance.choice(["127.0.0.1", "::1"]), 1)
        frames, lengths = encode_batch(b"T", 3, bodies, sections, 1, host)
        damaged = bytearray(frames)
        # A stored batch has the assigned queue offsets: here all are 0.
        for _ in range(chance.choice([0, 1, 1, 2])):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        topic = chance.choice(["T", "T", "U", "%LMQ%T", "TT"])
        sizes, queue_id = lengths.astype(np.int64), chance.choice([3, 3, 3, 4])
        offsets = np.array([chance.choice([0] * 9 + [1]) for _ in range(count)], np.int64)
        given = (bytes(damaged), sizes, topic, queue_id, offsets)
        by_numpy, by_compiled = of_both(lambda given=given: matching_count(*given))  # type: ignore[misc]
        assert by_compiled == by_numpy, (seed, given)
