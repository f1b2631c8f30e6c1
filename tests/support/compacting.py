"""A store with compacted topics, compaction runs on it, and checks of their results."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rockoon_broker.store.compacted.compaction import SEARCH_INTERVAL_MS
from rockoon_format.batch import encode_batch
from rockoon_format.config_json import TopicConfig, TopicConfigs, write_topics
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    Manifest,
    PartEntries,
    check_order,
    check_part,
    encode_current,
    generation_name,
)
from rockoon_spark.compaction.directory_target import DirectoryTarget
from rockoon_spark.jobs.compact import ALWAYS, CompactReport, Worthwhile, compact_on
from support.compaction import compact_store, compacted_topics, dropped_marks, generation_records
from support.store_directory import BORN_HOST, Owner, batch_of, settings
from support.task_exchange import OneProcess
from support.waiting import wait_until

SPLIT_BYTES = 1500
PART_BYTES = 2500
RETENTION_MS = 5_000
COMPACTED = ("C", "D")
TOPICS = (*COMPACTED, "plain")
START_MS = 1_700_000_000_000


class Compacting(Owner):
    """Owner of a store in which some topics are compacted."""

    def __init__(
        self, root: Path, topics: tuple[str, ...] = COMPACTED, now_ms: int = START_MS
    ) -> None:
        super().__init__(
            settings(root, commit_log_file_bytes=4096, reserved_hours=72), now_ms=now_ms
        )
        self.root = root
        self.name_compacted(topics)

    def name_compacted(self, topics: tuple[str, ...], retention_ms: int = RETENTION_MS) -> None:
        """Set the compacted topics, as a broker does when its routes change."""
        attributes = {"cleanup.policy": "COMPACTION", "delete.retention.ms": str(retention_ms)}
        found = {
            topic: TopicConfig(topic=topic, attributes=attributes if topic in topics else {})
            for topic in TOPICS
        }
        path = self.root / "config" / "topics.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(write_topics(TopicConfigs(found)))
        self.store.set_compacted_topics(topics)

    def send(
        self, key: str | None, body: bytes = b"body", topic: str = "C", queue_id: int = 0
    ) -> None:
        """Append a message; its store time is one millisecond after that of the previous
        message."""
        self.clock.time_ms += 1
        keys = f"KEYS\x01{key}\x02" if key is not None else ""
        frames, lengths = encode_batch(
            topic.encode(),
            queue_id,
            [body],
            [f"TAGS\x01TagA\x02{keys}".encode()],
            self.clock.time_ms,
            BORN_HOST,
            room=True,
        )
        self.store.append(batch_of(topic, queue_id, frames, lengths), self.clock.time_ms)

    def send_random(self, choose: random.Random, count: int, keys: int = 20) -> None:
        """Append messages to all topics; some are tombstones, some have no key or a long key."""
        for _ in range(count):
            number = choose.randrange(keys)
            key = choose.choice([f"key {number}", f"key {number}", number * "long " + "key", None])
            self.send(
                key if choose.random() < 0.95 else None,
                b"" if choose.random() < 0.3 else choose.randbytes(choose.randrange(1, 90)),
                choose.choice(TOPICS),
                choose.randrange(3),
            )

    @property
    def in_force(self) -> int:
        """Number of the generation in use; 0: none."""
        manifest = self.store.compaction.manifest
        return manifest.generation if manifest else 0

    def take_over(self, number: int) -> None:
        """Run the store's ticks until it uses the generation of a run."""
        before = self.store.compaction.refusal
        self.clock.time_ms += SEARCH_INTERVAL_MS

        def is_in_force() -> bool:
            self.store.tick(self.clock.time_ms)
            assert self.store.failure is None
            refusal = self.store.compaction.refusal
            assert refusal is before, refusal
            return self.in_force >= number

        wait_until(is_in_force, f"generation {number}")


def place(root: Path, now_ms: int) -> DirectoryTarget:
    """Return the target of a compaction of a store at a time."""
    return DirectoryTarget(root, clock_ns=lambda: now_ms * 1_000_000)


def run(
    store: DirectoryTarget,
    *,
    retries: int = 0,
    lag_ms: int = 0,
    part_bytes: int = PART_BYTES,
    worthwhile: Worthwhile = ALWAYS,
) -> CompactReport:
    """Compact a store in this process."""
    return compact_on(
        OneProcess(retries=retries),
        store,
        lag_ms,
        worthwhile=worthwhile,
        split_bytes=SPLIT_BYTES,
        part_bytes=part_bytes,
    )


def manifest(root: Path, number: int) -> Manifest:
    """Return the manifest of a generation."""
    directory = root / GENERATIONS_DIRECTORY / generation_name(number)
    return Manifest.from_json((directory / MANIFEST_FILE).read_bytes())


def kept(root: Path) -> Mapping[int, tuple[bytes, int | None]]:
    """Return the records of the generation in use by physical offset, each with the time since
    which it is kept."""
    found = list(generation_records(root))
    kept = {each.record.physical_offset: (each.frame, each.kept_since_ms) for each in found}
    assert len(kept) == len(found)
    return kept


def check(root: Path, number: int) -> None:
    """Check the properties that every generation must have."""
    directory = root / GENERATIONS_DIRECTORY / generation_name(number)
    found = manifest(root, number)
    parts = []
    for part in found.parts:
        records, entries, *superseded = (
            (directory / each.name).read_bytes() for each in part.files
        )
        parts.append(PartEntries.decode(entries))
        check_part(records, parts[-1])
        if superseded:
            parts[-1] = parts[-1].with_superseded(superseded[0])
    check_order(found, parts)
    wanted = {MANIFEST_FILE, *(each.name for part in found.parts for each in part.files)}
    assert {path.name for path in directory.iterdir()} == wanted


def compare(root: Path, before: Path, number: int, now_ms: int) -> None:
    """Check that the generation in use equals the result of a compaction record by record.

    Args:
        root: the store.
        before: copy of the store before the run; it is compacted here.
        number: of the generation.
        now_ms: time of the run, epoch milliseconds.
    """
    check(root, number)
    found = manifest(root, number)
    marks = dropped_marks(before)
    topics = {
        topic: retention_ms
        for topic, retention_ms in compacted_topics(before).items()
        # If a topic was deleted after the end, no record before the end counts.
        if marks.get(topic, 0) <= found.log_end
    }
    compact_store(before, topics=topics, now_ms=now_ms, log_end=found.log_end)
    (before / GENERATIONS_DIRECTORY / CURRENT_FILE).write_bytes(encode_current(number))
    assert kept(root) == kept(before)
    expected = manifest(before, number)
    for made, wanted in zip(found.topics, expected.topics, strict=True):
        oldest_ms = made.oldest_tombstone_ms
        assert made == replace(wanted, oldest_tombstone_ms=oldest_ms)
        # A tombstone that this run has superseded may still count.
        assert bool(oldest_ms) >= bool(wanted.oldest_tombstone_ms)
        assert not wanted.oldest_tombstone_ms or oldest_ms <= wanted.oldest_tombstone_ms
    assert found.log_tail == expected.log_tail
    assert found.replaces == expected.replaces
