"""The newest messages of a queue are served from memory, and equal those of the log."""

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rockoon_broker.store.queues.consume_queue import ConsumeQueue
from rockoon_broker.store.queues.tails import TAIL_BYTES_MAX, QueueTailCache
from rockoon_broker.store.reading.reader import GetStatus
from rockoon_format.batch import decode_columns, encode_batch
from rockoon_format.consume_queue import encode_entries
from rockoon_format.hashes import tags_code
from support.seeds import seeds
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    FailingDisk,
    Owner,
    batch_of,
    settings,
)

IN_MEMORY = {"tails_bytes_max": 100_000}


class CountingReads(FailingDisk):
    """Counts the reads of files."""

    reads = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, count, position)


def test_what_was_just_appended_is_read_without_the_disk(tmp_path: Path) -> None:
    disk = CountingReads()
    owner = Owner(settings(tmp_path, **IN_MEMORY), disk)
    for number in range(5):
        owner.append("T", 0, [b"%d" % number, b"more"])
    owner.store.get("T", 0, 0)
    before = disk.reads
    for offset in range(10):
        found = owner.store.get("T", 0, offset)
        assert (found.status, found.next_offset, found.count) == (GetStatus.FOUND, 10, 10 - offset)
    assert disk.reads == before
    owner.store.close()


def test_what_came_with_batches_of_other_queues_is_read_without_the_disk(tmp_path: Path) -> None:
    disk = CountingReads()
    owner = Owner(settings(tmp_path, record_checksums=False, **IN_MEMORY), disk)
    queues = [("T", 0), ("T", 1), ("U", 0)]
    for key in queues:
        owner.append(*key, [b"first"])
    batches = [
        batch_of(
            *key,
            *encode_batch(key[0].encode(), key[1], [b"%d" % n], [b""], NOW_MS - 1000, BORN_HOST),
        )
        for n, key in enumerate(queues)
    ]
    assert None not in owner.store.append_group(batches, owner.clock.time_ms)
    for key in queues:
        owner.store.get(*key, 0)
    before = disk.reads
    for n, key in enumerate(queues):
        found = owner.store.get(*key, 0)
        assert decode_columns(found.frames).bodies == [b"first", b"%d" % n]
    assert disk.reads == before
    owner.store.close()


@pytest.mark.parametrize("seed", seeds(2))
def test_from_wherever_and_within_whatever_limits_the_messages_are_those_sent(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    owner = Owner(settings(tmp_path, commit_log_file_bytes=1 << 20, **IN_MEMORY))
    sent: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    codes = np.array([tags_code("odd")], np.int64)
    for turn in range(400):
        key = (chance.choice("TU"), chance.randrange(3))
        if chance.random() < 0.01:
            owner.store.drop_topics(key[0])
            for dropped in [each for each in sent if each[0] == key[0]]:
                del sent[dropped]
        elif chance.random() < 0.5:
            size = TAIL_BYTES_MAX if chance.random() < 0.05 else chance.randrange(200)
            bodies = [b"%d;" % turn + bytes(size)] * chance.randrange(1, 5)
            tags = [chance.choice(["odd", "even"]) for _ in bodies]
            bodies = [tag.encode() + body for tag, body in zip(tags, bodies, strict=True)]
            owner.append(*key, bodies, tags)
            sent[key] += bodies
        elif sent[key]:
            offset = chance.randrange(max(0, len(sent[key]) - 30), len(sent[key]))
            limits = {"messages_max": chance.choice([1, 3, 1024])}
            if chance.random() < 0.3:
                limits["bytes_max"] = chance.randrange(1, 2000)
            is_filtered = chance.random() < 0.4
            wish = {"tag_codes": codes} if is_filtered else {}
            found = owner.store.get(*key, offset, **limits, **wish)
            bodies = decode_columns(found.frames, found.lengths).bodies
            passed = sent[key][offset : found.next_offset]
            assert bodies == [each for each in passed if each[:3] == b"odd" or not is_filtered]
            status = GetStatus.FOUND if bodies else GetStatus.NO_MATCHED_MESSAGE
            assert (found.status, len(passed) > 0) == (status, True)
            assert len(bodies) <= limits["messages_max"]
            assert found.count <= 1 or len(found.frames) <= limits.get("bytes_max", 1 << 20)
    owner.store.close()


def test_memory_is_bounded_and_the_queues_written_last_keep_theirs() -> None:
    tails = QueueTailCache(bytes_max=10_000)
    queues = [ConsumeQueue("T", number) for number in range(20)]
    entries = encode_entries(np.array([0]), np.array([1000]), np.array([0]))
    for number in (0, 1):
        for queue in queues:
            tails.add(queue, number, entries.tobytes(), bytes(1000))
    kept = [queue for queue in queues if tails.read(queue, 1, 1024) is not None]
    assert 5 <= len(kept) <= 10
    assert kept == queues[-len(kept) :]
    assert tails.read(queues[-1], 0, 1024) is None or len(kept) == 5


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(5))
def test_a_tail_has_its_queue_s_newest_messages_and_no_gap(seed: int) -> None:
    rng = random.Random(seed)
    tails = QueueTailCache(200_000)
    written: dict[ConsumeQueue, list[bytes]] = {ConsumeQueue("T", each): [] for each in range(9)}
    found = 0
    for _ in range(1000):
        queue = rng.choice(list(written)[: rng.choice([1, 9])])
        sizes = [rng.choice([50, 300, 3000, 6500]) for _ in range(rng.randrange(1, 6))]
        records = [rng.randbytes(size) for size in sizes]
        frames, none = b"".join(records), np.zeros(len(sizes), np.int64)
        kept = frames if len(frames) <= TAIL_BYTES_MAX else b""
        entries = encode_entries(none, np.array(sizes), none)
        tails.add(queue, len(written[queue]), entries.tobytes(), kept)
        written[queue] += records
        for tail in tails._tails.values():
            assert 0 < tail.bytes == sum(len(each[2]) for each in tail.batches) <= TAIL_BYTES_MAX
        assert tails._bytes == sum(each.bytes for each in tails._tails.values())
        offset = rng.randrange(len(written[queue]))
        read = tails.read(queue, offset, 10_000)
        if read is not None:
            found += 1
            assert read[1] == b"".join(written[queue][offset:])
            assert len(read[0]) == len(written[queue]) - offset
    assert found > 50


def test_what_goes_makes_room_for_more_than_one() -> None:
    tails, queue, none = QueueTailCache(1 << 20), ConsumeQueue("T", 0), np.zeros(1, np.int64)
    cuts = last = 0
    for offset in range(1000):
        entries = encode_entries(none, none + 1000, none).tobytes()
        tails.add(queue, offset, entries, bytes(1000))
        first = tails._tails[queue].first
        cuts, last = cuts + (first != last), first
    assert 0 < cuts < 150
