"""A group of batches is written to the log as if its batches were appended one after another."""

import errno
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.errors import StorageError
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.store import Store
from rockoon_format.batch import BatchError, encode_batch
from support.kernels import BOTH, using
from support.seeds import seeds
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    FailingDisk,
    Owner,
    batch_of,
    healthy,
    in_log,
    in_queues,
    settings,
)

TOPICS = ["T", "U", "New0", "New1", "SCHEDULE_TOPIC_XXXX"]
PROPERTIES = [b"", b"TAGS\x01A\x02", b"KEYS\x01k1 k2\x02TAGS\x01B\x02"]


def some_batch(rng: random.Random, *, is_right: bool) -> AppendBatch:
    topic, queue_id = rng.choice(["T", "T", *TOPICS]), rng.randrange(2)
    count = rng.choice([1, 1, 2, 8])
    batch = batch_of(
        topic,
        queue_id,
        *encode_batch(
            topic.encode(),
            queue_id,
            [rng.randbytes(rng.choice([0, 5, 600])) for _ in range(count)],
            [rng.choice(PROPERTIES) for _ in range(count)],
            NOW_MS - 1000,
            BORN_HOST,
            room=rng.random() < 0.8,
        ),
    )
    if is_right:
        return batch
    flipped = bytearray(batch.source)
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    within = (2, 2 + len(batch.source))
    return rng.choice([
        *[batch] * 6,
        replace(batch, source=bytes(flipped)),
        replace(batch, source=b"ab" + batch.source + b"c", bounds=within),
        replace(batch, lengths=bytes(4)),
        replace(batch, source=b"", lengths=bytes(4)),
    ])  # fmt: skip


def put(store: Store, batches: list[AppendBatch], now_ms: int, *, by_group: bool) -> list[Any]:
    """Return the position of each batch, or the reason of its refusal."""
    found: list[Any] = [None] * len(batches)
    try:
        if by_group:
            found = list(store.append_group(batches, now_ms))
        elif len(batches) > 1:
            found = [store.append_group([batch], now_ms)[0] for batch in batches]
    except StorageError as refusal:
        return [repr(refusal)]
    for index, batch in enumerate(batches):
        if found[index] is None:
            # Left to `append`, which raises the reason and creates queues.
            try:
                found[index] = store.append(batch, now_ms)
            except (StorageError, BatchError) as refusal:
                found[index] = repr(refusal)
    return found


def stored(root: Path, seed: int, *, by_group: bool) -> list[Any]:
    """Return replies and content of a store after the same batches and failures."""
    rng, disk = random.Random(seed), FailingDisk()
    # All in one file: if a group does not fit into a file, all of it goes to the next file.
    sizes = {"commit_log_file_bytes": 1 << 20, "tails_bytes_max": rng.choice([0, 100_000])}
    owner = Owner(settings(root, **sizes), disk)
    store = owner.store
    if rng.random() < 0.5:
        store.open_epoch(1, "a", NOW_MS)
    store._appender._found_keys.wanted = rng.random() < 0.5
    seen: list[Any] = []
    for _ in range(60):
        fails, writes = rng.random() < 0.2, [0]
        count = 1 if fails else rng.randrange(1, 5)
        batches = [some_batch(rng, is_right=fails) for _ in range(count)]
        owner.clock.time_ms += rng.choice([0, 1, -3, 1000])
        disk.write_bytes_max = rng.choice([None, None, 7, 100])
        place, healthy_writes = rng.choice([in_log, in_queues]), rng.randrange(3)

        def fail(path: Path, _: int) -> int:
            writes[0] += place(path)  # noqa: B023 - of this turn
            return errno.ENOSPC if place(path) and writes[0] > healthy_writes else 0  # noqa: B023

        disk.fail_write = fail if fails else healthy
        seen += put(store, batches, owner.clock.time_ms, by_group=by_group)
        disk.fail_write = healthy
        if fails:
            # Entries that could not be written are written now, or the store refuses all further
            # batches.
            store.tick(owner.clock.time_ms)
    disk.write_bytes_max = None
    store.tick(owner.clock.time_ms)
    for topic in TOPICS:
        for queue_id in (0, 1):
            if store.max_offset(topic, queue_id):
                seen.append(owner.bodies(topic, queue_id))
    for run in store._appender._found_keys._runs:
        keys = run.entries()
        columns = [keys.hashes.tolist(), keys.offsets.tolist(), keys.timestamps_ms.tolist()]
        seen += [(run.start, run.next_offset), columns]
    store.close()
    files = sorted((root / "commitlog").iterdir())
    return [*seen, *(path.read_bytes() for path in files)]


@pytest.mark.random
@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_group_is_stored_as_its_batches_one_after_the_other(
    tmp_path: Path, seed: int, choice: str
) -> None:
    with using(choice):
        group = stored(tmp_path / "group", seed, by_group=True)
        single = stored(tmp_path / "single", seed, by_group=False)
    assert group == single
    assert sum(hasattr(each, "first_queue_offset") for each in group) > 5
