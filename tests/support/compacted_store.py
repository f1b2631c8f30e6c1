"""A store with compacted topics, and the messages that its readers must see."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rockoon_broker.store.reading.reader import GetStatus, TimeBoundary
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk
from rockoon_format.batch import decode_columns, encode_batch
from rockoon_format.generation import generation_name
from rockoon_format.hashes import tags_code
from rockoon_format.properties import encode
from support.compaction import RECORDS_PER_PART, compact_store
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    Owner,
    batch_of,
    crashed_copy,
    settings,
)
from support.waiting import DEADLINE_SECONDS, wait_until

LOOK_SECONDS = 0.001
RETENTION_MS = 60_000
"""Milliseconds for which the tombstones of a test's topics are kept."""


@dataclass(frozen=True)
class Kept:
    """One message as the test sent it."""

    topic: str
    queue_id: int
    offset: int
    physical_offset: int
    stored_ms: int
    key: str | None
    tag: str
    body: bytes
    order: int
    """Position of this message in the order of all sent messages."""


class CompactedStore:
    """Owner of a store with compacted topics.

    Args:
        configured: settings of the store.
        topics: milliseconds for which tombstones are kept, by compacted topic.
    """

    def __init__(
        self,
        configured: StoreSettings,
        topics: Sequence[str] = ("C",),
        disk: Disk | None = None,
    ) -> None:
        self.configured = configured
        self.topics: Mapping[str, int] = dict.fromkeys(topics, RETENTION_MS)
        self.root: Path = configured.root
        self.disk = disk
        self.now_ms = NOW_MS
        self.sent: list[Kept] = []
        self._sent_count = 0
        self.open()

    def open(self, *, tell_topics: bool = True) -> None:
        self.owner = Owner(self.configured, self.disk, now_ms=self.now_ms)
        self.store = self.owner.store
        if tell_topics:
            self.store.set_compacted_topics(self.topics)

    def close(self) -> None:
        self.now_ms = self.owner.clock.time_ms
        self.store.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def crash(self, target: Path) -> None:
        """Continue with the files that a kill leaves, in another directory."""
        crashed_copy(self.root, target)
        self.close()
        self.root = target
        self.configured = replace(self.configured, root=target)
        self.open()

    def send(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[tuple[str | None, bytes]],
        tag: str = "TagA",
    ) -> list[Kept]:
        """Append messages, each a key and a body; an empty body is a tombstone."""
        properties = [
            encode({"TAGS": tag} | ({"KEYS": key} if key is not None else {}))
            for key, _ in messages
        ]
        bodies = [body for _, body in messages]
        frames, lengths = encode_batch(
            topic.encode(), queue_id, bodies, properties, NOW_MS - 1000, BORN_HOST, room=True
        )
        appended = self.store.append(
            batch_of(topic, queue_id, frames, lengths), self.owner.clock.time_ms
        )
        starts = np.cumsum(lengths) - lengths
        sent = [
            Kept(
                topic=topic,
                queue_id=queue_id,
                offset=appended.first_queue_offset + index,
                physical_offset=appended.first_physical_offset + int(starts[index]),
                stored_ms=appended.store_timestamp_ms,
                key=key,
                tag=tag,
                body=body,
                order=self._sent_count + index,
            )
            for index, (key, body) in enumerate(messages)
        ]
        self.sent += sent
        self._sent_count += len(sent)
        return sent

    def drop(self, topic: str) -> None:
        """Delete a topic that never had messages."""
        self.store.drop_topics(topic)
        self.sent[:] = [each for each in self.sent if each.topic != topic]

    def compact(self, records_per_part: int = RECORDS_PER_PART, *, links: bool = False) -> Path:
        """Make a generation of the whole store, and wait until the broker uses it.

        Args:
            records_per_part, links: see `compact_store`.
        """
        # Read by this process, not by the store: no file may be deleted while it is read.
        wait_until(
            lambda: not self.store.removals_pending or self.store.removal_failure, "files to go"
        )
        made = compact_store(
            self.root,
            topics=self.topics,
            now_ms=self.owner.clock.time_ms,
            records_per_part=records_per_part,
            links=links,
        )
        self.settle()
        assert self.store.compaction.refusal is None, self.store.compaction.refusal
        assert self.in_force == int(made.name)
        return made

    @property
    def in_force(self) -> int:
        manifest = self.store.compaction.manifest
        return manifest.generation if manifest else 0

    def settle(self) -> None:
        """Wait until the store has used or refused every generation in its directory."""
        home = self.store.compaction.home
        self.until(
            lambda: (
                not any(
                    path.name.isdigit() and int(path.name) > self.in_force
                    for path in home.iterdir()
                )
            )
        )

    def until(self, holds: Callable[[], object]) -> None:
        """Run the store's ticks until a condition is true."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "the store does not get there"
            self.tick()
            # The store's threads finish sooner if this thread does not spin.
            threading.Event().wait(LOOK_SECONDS)

    def tick(self) -> None:
        self.owner.clock.time_ms += 500
        self.store.tick(self.owner.clock.time_ms)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int = 0,
        chance: random.Random | None = None,
        tag: str | None = None,
    ) -> list[tuple[int, bytes]]:
        """Return offsets and bodies from an offset to the queue's end, by pulls of random sizes."""
        codes = None if tag is None else np.array([tags_code(tag)], np.int64)
        found: list[tuple[int, bytes]] = []
        while True:
            bounds = {}
            if chance is not None:
                bounds = {
                    "messages_max": chance.choice([1, 2, 7, 100]),
                    "bytes_max": chance.choice([1, 300, 10_000]),
                    "entries_max": chance.choice([1, 3, 50]),
                }
            pulled = self.store.get(topic, queue_id, offset, tag_codes=codes, **bounds)
            assert pulled.min_offset == self.store.min_offset(topic, queue_id)
            if pulled.count:
                assert pulled.status is GetStatus.FOUND
                assert pulled.count <= bounds.get("messages_max", pulled.count)
                assert pulled.count == 1 or len(pulled.frames) <= bounds.get("bytes_max", 1 << 20)
                columns = decode_columns(pulled.frames, pulled.lengths)
                found += zip(columns.queue_offsets.tolist(), columns.bodies, strict=True)
            if pulled.status is GetStatus.OFFSET_OVERFLOW_ONE:
                return found
            if pulled.status is GetStatus.OFFSET_TOO_SMALL:
                assert pulled.next_offset == pulled.min_offset
            else:
                assert pulled.status in (
                    GetStatus.FOUND,
                    GetStatus.NO_MATCHED_MESSAGE,
                    GetStatus.MESSAGE_WAS_REMOVING,
                    GetStatus.OFFSET_FOUND_NULL,
                ), pulled
            assert pulled.next_offset > offset
            offset = pulled.next_offset


def once_compacted(root: Path) -> CompactedStore:
    """Return a store with messages of two generations; it uses the first one."""
    kept = CompactedStore(settings(root), ("C", "D"))
    kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("a", b"3")])
    kept.send("D", 1, [("a", b"1"), ("b", b"2")])
    kept.compact()
    kept.send("C", 0, [("b", b"4"), ("c", b"5")])
    kept.send("D", 1, [("c", b"3")])
    return kept


def made(
    kept: CompactedStore, topics: Mapping[str, int] | None = None, *, links: bool = False
) -> Path:
    """Make the next generation in a directory where the store does not look."""
    return compact_store(
        kept.root,
        topics=kept.topics if topics is None else topics,
        now_ms=kept.owner.clock.time_ms,
        links=links,
        name=".incoming-made",
    )


def published(directory: Path, number: int = 2) -> Path:
    """Move a generation into the directory where the store looks."""
    return directory.rename(directory.with_name(generation_name(number)))


@dataclass
class Model:
    """Expected content for readers, derived from the sent messages and the times of compactions."""

    sent: list[Kept]
    topics: Mapping[str, int]
    covered: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Range of offsets of each queue that is in a generation."""
    dead: set[int] = field(default_factory=set)
    """Orders of superseded messages and of removed tombstones."""
    kept_since: dict[int, int] = field(default_factory=dict)
    log_min: int = 0

    def compact(self, now_ms: int) -> None:
        """Simulate a compaction at a time."""
        newest: dict[tuple[str, str], Kept] = {}
        for each in self.sent:
            if each.topic not in self.topics:
                continue
            key = (each.topic, each.queue_id)
            begin, _ = self.covered.get(key, (each.offset, 0))
            self.covered[key] = (begin, each.offset + 1)
            if each.order in self.dead:
                continue
            if each.key is None:
                continue
            former = newest.get((each.topic, each.key))
            if former is not None:
                self.dead.add(former.order)
            newest[each.topic, each.key] = each
        for each in newest.values():
            if each.body:
                continue
            since = self.kept_since.setdefault(each.order, now_ms)
            if since != now_ms and now_ms - since >= self.topics[each.topic]:
                self.dead.add(each.order)

    def drop(self, topic: str) -> None:
        """Simulate the deletion of a topic."""
        self.covered = {key: ends for key, ends in self.covered.items() if key[0] != topic}

    def alive(self, topic: str, queue_id: int) -> list[Kept]:
        begin, end = self.covered.get((topic, queue_id), (0, 0))
        return [
            each
            for each in self.sent
            if (each.topic, each.queue_id) == (topic, queue_id)
            and (
                (each.order not in self.dead)
                if begin <= each.offset < end
                else each.physical_offset >= self.log_min
            )
        ]

    def check(self, kept: CompactedStore, chance: random.Random) -> None:
        """Compare all queues of a store with this model."""
        self.log_min = kept.store.log_min_offset
        for topic, queue_id in sorted({(each.topic, each.queue_id) for each in self.sent}):
            self._check_queue(kept, topic, queue_id, chance)

    def _check_queue(
        self, kept: CompactedStore, topic: str, queue_id: int, chance: random.Random
    ) -> None:
        store = kept.store
        alive = self.alive(topic, queue_id)
        seen = [(each.offset, each.body) for each in alive]
        assert kept.read(topic, queue_id, 0, chance) == seen
        all_sent = [each for each in self.sent if (each.topic, each.queue_id) == (topic, queue_id)]
        end = all_sent[-1].offset + 1
        assert store.max_offset(topic, queue_id) == end
        offset = chance.randrange(end + 1)
        tag = chance.choice(["TagA", "TagB", "None"])
        wanted = [(each.offset, each.body) for each in alive if each.offset >= offset]
        assert kept.read(topic, queue_id, offset, chance) == wanted
        tagged = [
            (each.offset, each.body) for each in alive if each.offset >= offset and each.tag == tag
        ]
        assert kept.read(topic, queue_id, offset, chance, tag) == tagged
        status = store.queue_status(topic, queue_id, with_residency=True)
        assert status.min_offset == store.min_offset(topic, queue_id)
        if (topic, queue_id) in self.covered:
            assert status.min_offset == self.covered[topic, queue_id][0]
        else:
            assert status.min_offset == (alive[0].offset if alive else end)
        times = [each.stored_ms for each in alive]
        assert status.first_store_timestamp_ms == (times[0] if times else None)
        assert status.last_store_timestamp_ms == (times[-1] if times else None)
        for at_ms in {*times[:3], *times[-3:], chance.choice(all_sent).stored_ms, NOW_MS - 1}:
            for probe in (at_ms - 1, at_ms, at_ms + 1):
                self.check_search(kept, topic, queue_id, probe, alive)
        for each in chance.sample(alive, min(3, len(alive))):
            frame = store.read_at(each.physical_offset)
            assert decode_columns(frame, [len(frame)]).bodies == [each.body]
            stored = store.stored_at(topic, queue_id, each.offset)
            assert stored is not None
            assert (stored.physical_offset, stored.store_timestamp_ms) == (
                each.physical_offset,
                each.stored_ms,
            )
            assert stored.lasting == (topic in kept.topics)

    def check_search(
        self, kept: CompactedStore, topic: str, queue_id: int, at_ms: int, alive: list[Kept]
    ) -> None:
        """Compare the result of a search for a time in one queue with the remaining messages."""
        low, high = (
            call(topic, queue_id) for call in (kept.store.min_offset, kept.store.max_offset)
        )
        early = [number for number, each in enumerate(alive) if each.stored_ms < at_ms]
        # After all messages that are too early: if store times decrease, another may come before
        # it.
        later = [each.offset for each in alive[early[-1] + 1 if early else 0 :]]
        earlier = [each.offset for each in alive if each.stored_ms <= at_ms]
        lower = kept.store.search_offset(topic, queue_id, at_ms, TimeBoundary.LOWER)
        upper = kept.store.search_offset(topic, queue_id, at_ms, TimeBoundary.UPPER)
        assert lower == (later[0] if later else high)
        assert upper == (earlier[-1] if earlier else low)
