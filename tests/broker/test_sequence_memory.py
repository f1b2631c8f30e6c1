"""Memory of idempotent producers after a start, and the times of its snapshots; on a real store."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_broker.applying import apply_piece
from rockoon_broker.idempotence.ledger import RUNS_MAX, MemoryLimits, Run
from rockoon_broker.idempotence.memory import (
    FILE,
    SNAPSHOT_SECONDS,
    SequenceMemory,
    decode_snapshot,
)
from rockoon_broker.store.appender import Appended
from rockoon_broker.store.log.batch import SequenceKey
from rockoon_broker.store.settings import Flush
from rockoon_format.batch import encode_batch
from rockoon_format.record import encode_host
from rockoon_format.sequences import encode_sequences
from support.holding_disk import HoldingDisk
from support.seeds import seeds
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    FailingDisk,
    Owner,
    PowerCutDisk,
    batch_of,
    crashed_copy,
    settings,
)

FILE_BYTES = 65_536
HOUR_MS = 3_600_000
LIMITS = MemoryLimits(sequences_max=100, memory_ms=HOUR_MS, snapshot_log_bytes=32_000)


class SetClock:
    """The broker's clocks, which a test sets."""

    def __init__(self) -> None:
        self.time_ms = NOW_MS
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_seconds(self) -> float:
        return self.seconds

    def local_hour(self, at_ms: int) -> int:
        return at_ms // HOUR_MS % 24


class Bench:
    """A store, its memory of producers, and the clock of both."""

    def __init__(
        self, root: Path, flush: Flush = Flush.ASYNC, disk: FailingDisk | None = None
    ) -> None:
        self.clock = SetClock()
        self.config = root / "config"
        self.disk = disk or FailingDisk()
        configured = settings(root, commit_log_file_bytes=FILE_BYTES, flush=flush)
        self.owner = Owner(configured, disk=self.disk)
        self.memory = self.recall()

    @property
    def path(self) -> Path:
        return self.config / FILE

    def recall(self, limits: MemoryLimits = LIMITS) -> SequenceMemory:
        return SequenceMemory.recall(self.owner.store, self.config, self.disk, self.clock, limits)

    def append(self, producer: int, first: int, *bodies: bytes, topic: str = "T") -> Appended:
        """Store a batch and record it, as the broker does; producer 0 sends no numbers."""
        sections: list[bytes] = [b""] * len(bodies)
        if producer:
            sections = encode_sequences(producer, first, len(bodies)).tolist()
        frames, lengths = encode_batch(topic.encode(), 0, list(bodies), sections, 0, BORN_HOST)
        appended = self.owner.store.append(batch_of(topic, 0, frames, lengths), self.clock.time_ms)
        if producer:
            run = Run(
                first,
                len(bodies),
                appended.first_queue_offset,
                appended.first_physical_offset,
                appended.store_timestamp_ms,
                encode_host(*self.owner.store.settings.store_host),
            )
            self.memory.ledger.record(SequenceKey(producer, topic, 0), run)
        return appended

    def known(self, memory: SequenceMemory) -> dict[int, int]:
        """Return the next number of each producer."""
        return {key.producer_id: runs[-1].end for key, runs in memory.ledger.copy().items()}


def test_a_log_without_a_snapshot_tells_everything_the_ledger_knew(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(60):
        bench.append(number % 3 + 1, number // 3 * 2, bytes(1500), bytes(1500))
        bench.append(0, 0, bytes(700))
    assert bench.owner.store.visible_end > 3 * FILE_BYTES
    recalled = bench.recall()
    assert recalled.ledger.discarded_until_ms == 0
    assert recalled.ledger.copy() == bench.memory.ledger.copy()
    bench.owner.store.close()


def test_files_older_than_what_is_remembered_are_not_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(1, 0, b"long ago")
    for _ in range(3):
        bench.append(0, 0, bytes(FILE_BYTES // 2))
    bench.clock.time_ms += 2 * HOUR_MS
    bench.append(2, 0, b"of late")
    assert bench.known(bench.recall()) == {2: 1}
    assert bench.recall().ledger.discarded_until_ms == NOW_MS
    assert bench.known(bench.recall(replace(LIMITS, memory_ms=3 * HOUR_MS))) == {1: 1, 2: 1}
    bench.owner.store.close()


def test_a_copy_whose_clock_is_a_day_ahead_remembers_what_the_log_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(1, 0, b"old file")
    for _ in range(3):
        bench.append(0, 0, bytes(FILE_BYTES // 2))
    bench.append(2, 0, b"new file")
    bench.clock.time_ms += 24 * HOUR_MS
    assert bench.known(bench.recall()) == {1: 1, 2: 1}
    bench.memory.lead()
    assert bench.known(bench.memory) == {1: 1, 2: 1}
    bench.owner.store.close()


async def test_a_snapshot_waits_until_the_log_is_durable(tmp_path: Path) -> None:
    disk = HoldingDisk()
    bench = Bench(tmp_path, Flush.SYNC, disk)
    disk.hold()
    appended = bench.append(1, 0, b"a")
    bench.clock.seconds += SNAPSHOT_SECONDS
    await bench.memory.look()
    await bench.memory.look()
    assert not bench.path.exists()
    disk.release()
    bench.owner.confirm(appended.end_offset)
    await bench.memory.look()
    assert decode_snapshot(bench.path.read_bytes()).log_end == appended.end_offset
    bench.owner.store.close()


async def test_a_snapshot_is_due_after_10_seconds_with_changes_or_after_enough_log(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Flush.SYNC)

    async def written() -> bool:
        """Return whether a tick writes the file."""
        bench.path.unlink(missing_ok=True)
        await bench.memory.look()
        return bench.path.exists()

    async def append(producer: int, first: int, size: int = 1) -> None:
        bench.owner.confirm(bench.append(producer, first, bytes(size)).end_offset)

    bench.clock.seconds += SNAPSHOT_SECONDS
    assert await written()
    await append(0, 0)
    bench.clock.seconds += SNAPSHOT_SECONDS
    assert not await written()
    await append(1, 0)
    assert await written()
    await append(1, 1)
    assert not await written()
    await append(0, 0, 32_000)
    assert await written()
    await append(0, 0, 32_000)
    assert not await written()
    bench.clock.seconds += SNAPSHOT_SECONDS
    assert await written()
    bench.owner.store.close()


async def test_a_snapshot_that_cannot_be_written_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, Flush.SYNC)
    bench.owner.confirm(bench.append(1, 0, b"a").end_offset)
    bench.disk.fail_sync = lambda path: 5 if path.name.startswith(FILE) else 0
    bench.clock.seconds += SNAPSHOT_SECONDS
    await bench.memory.look()
    assert "retrying" in caplog.text
    bench.disk.fail_sync = lambda _: 0
    await bench.memory.look()
    assert not bench.path.exists()
    bench.clock.seconds += SNAPSHOT_SECONDS
    await bench.memory.look()
    assert decode_snapshot(bench.path.read_bytes()).sequences
    bench.owner.store.close()


async def test_what_was_stored_behind_the_snapshot_is_read_in_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Flush.SYNC)
    bench.owner.confirm(bench.append(1, 0, b"a", b"b").end_offset)
    bench.memory.write(bench.memory.snapshot())
    bench.append(2, 0, b"another's")
    bench.owner.confirm(bench.append(1, 2, b"c").end_offset)
    assert bench.recall().ledger.copy() == bench.memory.ledger.copy()
    assert bench.known(bench.recall()) == {1: 3, 2: 1}
    bench.owner.store.close()


async def test_a_topic_deleted_behind_the_snapshot_is_not_recalled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Flush.SYNC)
    bench.append(1, 0, b"a")
    bench.owner.confirm(bench.append(2, 0, b"kept", topic="Kept").end_offset)
    bench.memory.write(bench.memory.snapshot())
    bench.owner.store.drop_topics("T")
    assert bench.known(bench.recall()) == {2: 1}
    bench.owner.store.close()


def test_a_topic_made_anew_since_the_snapshot_has_its_own_sequences(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Flush.SYNC)
    bench.owner.confirm(bench.append(1, 0, b"a", b"b", b"c").end_offset)
    bench.memory.write(bench.memory.snapshot())
    bench.owner.store.drop_topics("T")
    bench.memory.ledger.drop_topics("T")
    bench.owner.confirm(bench.append(1, 0, b"anew").end_offset)
    assert bench.known(bench.memory) == bench.known(bench.recall()) == {1: 1}
    bench.owner.store.close()


def in_log(bench: Bench) -> dict[tuple[int, str], int]:
    """Return the number of messages of each producer in a topic; each body names its producer."""
    found: dict[tuple[int, str], list[int]] = {}
    for topic in "TU":
        for body in bench.owner.bodies(topic):
            producer, number, _ = body.split(b" ", 2)
            found.setdefault((int(producer), topic), []).append(int(number))
    assert all(numbers == list(range(len(numbers))) for numbers in found.values()), found
    return {key: len(numbers) for key, numbers in found.items()}


def in_ledger(bench: Bench) -> dict[tuple[int, str], int]:
    sequences = bench.memory.ledger.copy().items()
    return {(key.producer_id, key.topic): runs[-1].end for key, runs in sequences}


@pytest.mark.parametrize("seed", seeds(3))
async def test_through_power_cuts_kills_and_deletions_it_knows_what_the_log_has(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    root = tmp_path / "0"
    root.mkdir()
    for life in range(1, 5):
        disk = PowerCutDisk(root)
        bench = Bench(root, Flush.SYNC, disk)
        assert in_ledger(bench) == in_log(bench)
        for _ in range(chance.randrange(5, 60)):
            producer, topic = chance.randrange(1, 4), chance.choice("TU")
            first = in_ledger(bench).get((producer, topic), 0)
            bodies = [
                b"%d %d " % (producer, number) + bytes(chance.randrange(600))
                for number in range(first, first + chance.randrange(1, 5))
            ]
            end = bench.append(producer, first, *bodies, topic=topic).end_offset
            if chance.random() < 0.1:
                bench.owner.store.drop_topics(topic)
                bench.memory.ledger.drop_topics(topic)
            if chance.random() < 0.6:
                bench.owner.confirm(end)
            bench.clock.seconds += chance.choice([0.5, SNAPSHOT_SECONDS])
            bench.owner.clock.time_ms += 600
            bench.owner.store.tick(bench.owner.clock.time_ms)
            await bench.memory.look()
        root = tmp_path / str(life)
        if chance.random() < 0.7:
            disk.cut(root, chance)
        else:
            crashed_copy(bench.owner.store.settings.root, root)
        bench.owner.store.close()


def test_copies_in_topics_of_the_brokers_own_do_not_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for topic in ("%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "T"):
        bench.append(1, 0, b"a", topic=topic)
    assert list(bench.recall().ledger.copy()) == [SequenceKey(1, "T", 0)]
    bench.owner.store.close()


def test_a_batch_that_is_applied_in_pieces_is_remembered_as_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(RUNS_MAX):
        bench.append(1, 5 * number, *[bytes(300)] * 5)
    store = bench.owner.store
    memory = SequenceMemory.begin(store, bench.config, bench.disk, bench.clock, LIMITS)
    while apply_piece(store, [memory], bytes_max=1000) is not None:
        assert memory.lacks_from() <= store.visible_end
    memory.lead()
    assert memory.ledger.copy() == bench.memory.ledger.copy()
    store.close()
