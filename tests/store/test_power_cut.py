"""The power is lost at random moments, repeatedly: all acknowledged messages exist afterwards."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_format.batch import decode_columns
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import Owner, PowerCutDisk, recovered, settings

Key = tuple[str, int]
TOPICS = "ABC"
KEYS = [(topic, queue_id) for topic in TOPICS for queue_id in range(2)]


@dataclass
class Journal:
    """Appended and acknowledged messages, by queue."""

    appended: dict[Key, list[tuple[bytes, str]]] = field(
        default_factory=lambda: {key: [] for key in KEYS}
    )
    """Bodies with their tags."""
    acknowledged: dict[Key, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    batches: int = 0

    def append(self, owner: Owner, choose: random.Random) -> None:
        self.batches += 1
        key = choose.choice(KEYS)
        body = b"%d " % self.batches + bytes(choose.randrange(250))
        tag = "t" * choose.choice((4, 100, 700))
        bodies = [body] * choose.randrange(1, 4)
        owner.append(*key, bodies, tag)
        self.appended[key] += [(body, tag) for body in bodies]

    def acknowledge(self) -> None:
        self.acknowledged = {key: len(messages) for key, messages in self.appended.items()}

    def drop(self, topics: list[str]) -> None:
        for key in KEYS:
            if key[0] in topics:
                self.appended[key], self.acknowledged[key] = [], 0

    def check(self, owner: Owner) -> None:
        """Check that queues have all acknowledged messages, and no messages that were not appended.

        Retention deletes messages from their beginning only.
        """
        store = owner.store
        for key, messages in self.appended.items():
            found = stored(owner, key)
            end = store.max_offset(*key)
            assert found == messages[end - len(found) : end], key
            assert self.acknowledged[key] <= end <= len(messages), key
            assert store.log_min_offset > 0 or len(found) == end, key
            self.appended[key] = messages[:end]


def stored(owner: Owner, key: Key) -> list[tuple[bytes, str]]:
    """Return all messages of a queue."""
    found: list[tuple[bytes, str]] = []
    offset = owner.store.min_offset(*key)
    while offset < owner.store.max_offset(*key):
        result = owner.store.get(*key, offset)
        if result.count:
            columns = decode_columns(result.frames, result.lengths)
            tags = [each["TAGS"] for each in columns.properties]
            found += zip(columns.bodies, tags, strict=True)
        offset = result.next_offset
    return found


def delete_old_files(owner: Owner, disk: PowerCutDisk) -> None:
    disk.usage_percent = 88
    owner.store.clean(owner.clock.time_ms)
    disk.usage_percent = 50


def run_until_cut(
    configured: StoreSettings, target: Path, journal: Journal, choose: random.Random
) -> None:
    """Append, confirm, tick, delete at random, and cut the power during one of these operations."""
    disk = PowerCutDisk(configured.root)
    disk.usage_percent = 50
    # The clock continues from the former start: store times must not decrease because of it.
    owner = Owner(configured, disk)
    store = owner.store
    journal.check(owner)
    for _ in range(choose.randrange(5, 40)):
        for _ in range(choose.randrange(1, 4)):
            journal.append(owner, choose)
        end = store.appended_end
        if choose.random() < 0.1:
            dropped = choose.sample(TOPICS, choose.randrange(1, 3))
            store.drop_topics(*dropped)
            journal.drop(dropped)
        if choose.random() < 0.7 and configured.flush is Flush.SYNC:
            owner.confirm(end)
            journal.acknowledge()
        owner.clock.time_ms += 600
        store.tick(owner.clock.time_ms)
        if choose.random() < 0.3:
            owner.wait_for_point()
        if choose.random() < 0.1:
            delete_old_files(owner, disk)
    disk.cut(target, choose)
    store.close()


@pytest.mark.parametrize("flush", [Flush.SYNC, Flush.ASYNC])
@pytest.mark.parametrize("seed", seeds(4))
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: Flush, seed: int) -> None:
    choose = random.Random(seed)
    journal = Journal()
    root = tmp_path / "0"
    root.mkdir()
    configured = settings(
        root,
        flush=flush,
        commit_log_file_bytes=choose.choice([4096, 16_384]),
        files_per_pass_max=choose.choice([1, 1000]),
    )
    for generation in range(1, 4):
        target = tmp_path / str(generation)
        run_until_cut(configured, target, journal, choose)
        configured = replace(configured, root=target)
    last = recovered(configured)
    journal.check(last)
    assert last.store.recovery.reason in ("recovery point", "clean stop"), last.store.recovery
    last.store.close()
    assert verify_store(configured.root) == []
