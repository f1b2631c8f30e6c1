"""A batch alone goes into the log as it would with others: `append_alone` and `append_joint`."""

import errno
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.errors import StoreError
from rockoon_broker.store.log.batch import Batch
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


def some_batch(rng: random.Random) -> Batch:
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


def stored(root: Path, seed: int, *, alone: bool) -> list[Any]:
    """What a store answers and holds after the same batches and failures."""
    rng, disk = random.Random(seed), FailingDisk()
    # What is more than half a file `append_joint` leaves to `append`, which does the same.
    sizes = {"commit_log_file_bytes": 16_384, "tails_bytes_max": rng.choice([0, 100_000])}
    owner = Owner(settings(root, **sizes), disk)
    store = owner.store
    if rng.random() < 0.5:
        store.open_epoch(1, "a", NOW_MS)
    store._appender._found_keys.wanted = rng.random() < 0.5
    seen: list[Any] = []
    for _ in range(60):
        batch = some_batch(rng)
        owner.clock.time_ms += rng.choice([0, 1, -3, 1000])
        disk.write_bytes_max = rng.choice([None, None, 7, 100])
        place, healthy_writes = rng.choice([in_log, in_queues]), rng.randrange(3)
        fails, writes = rng.random() < 0.12, [0]

        def fail(path: Path, _: int) -> int:
            writes[0] += place(path)  # noqa: B023 - of this turn
            return errno.ENOSPC if place(path) and writes[0] > healthy_writes else 0  # noqa: B023

        disk.fail_write = fail if fails else healthy
        now_ms = owner.clock.time_ms
        try:
            if alone:
                seen.append(store.append_alone(batch, now_ms))
            else:
                seen += store.append_joint([batch], now_ms)
        except StoreError as refusal:
            seen.append(repr(refusal))
        disk.fail_write = healthy
        if seen[-1] is None:
            # Left to the way that refuses with a reason, and makes queues.
            with suppress(StoreError, BatchError):
                store.append(batch, now_ms)
    disk.write_bytes_max = None
    store.tick(owner.clock.time_ms)
    for topic in TOPICS:
        for queue_id in (0, 1):
            if store.max_offset(topic, queue_id):
                seen.append(owner.bodies(topic, queue_id))
    kept = [each for _, each in store._appender._found_keys._stretches]
    seen += [(each.start, each.end, each.keys) for each in kept]
    store.close()
    files = sorted((root / "commitlog").iterdir())
    return [*seen, *(path.read_bytes() for path in files)]


@pytest.mark.random
@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("seed", seeds(6))
def test_alone_a_batch_is_stored_as_with_others(tmp_path: Path, seed: int, choice: str) -> None:
    with using(choice):
        alone = stored(tmp_path / "alone", seed, alone=True)
        joint = stored(tmp_path / "joint", seed, alone=False)
    assert alone == joint
    assert sum(hasattr(each, "first_queue_offset") for each in alone) > 5
