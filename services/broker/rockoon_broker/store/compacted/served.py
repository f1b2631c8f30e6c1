"""The active generation: covered ranges of queues, and the log range to keep."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from rockoon_broker.store.compacted.fitting import is_dropped_since, log_tail, lowest_marks
from rockoon_broker.store.compacted.hold import Hold, loses_uncompacted, oldest_uncompacted
from rockoon_broker.store.compacted.in_force import (
    active_manifest,
    identity_of,
    read_needed,
    write_needed,
)
from rockoon_broker.store.compacted.open_generation import Coverage, OpenGeneration
from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_core.disk import Disk
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.generation import GENERATIONS_DIRECTORY, LogTail, Manifest, generation_name

log = logging.getLogger(__name__)


class ServedGeneration:
    """The active generation of an open store; owned by the store's thread.

    Args:
        root: the store directory.
        disk: the file layer.
        dropped: marks of deleted topics.
        by_quorum: the log has other copies. Until this copy learns which topics are compacted it
            is a follower; its leader keeps the messages that no generation has.

    Attributes:
        by_quorum: as given.
        generation: open; None if there is none.
        coverages: covered range of each queue.
        identity: identity of the generation on all copies of the log; 0: there is none.
        needed_end: see `read_needed`.

    Raises:
        StoreDamaged: the generation cannot be read, or its log is missing.
        OSError: the disk.
    """

    _log: CommitLog
    _queues: ConsumeQueues

    def __init__(
        self, root: Path, disk: Disk, dropped: DroppedTopics, *, by_quorum: bool = False
    ) -> None:
        self.home = root / GENERATIONS_DIRECTORY
        self._disk = disk
        self._dropped = dropped
        self.by_quorum = by_quorum
        needed_end = read_needed(self.home)
        self.needed_end = needed_end or 0
        was_copy = by_quorum and needed_end is not None
        try:
            self._manifest = active_manifest(root, disk, copies=was_copy)
        except StoreDamaged as damage:
            self._discard_damaged(damage)
        self.identity = identity_of(self._manifest)
        self._need_marks(self._manifest)
        self._dropped.generation_queues = {
            (topic.topic, queue.queue)
            for topic in (self._manifest.topics if self._manifest else ())
            if not is_dropped_since(topic, self.marks)
            for queue in topic.queues
        }
        self._hold: Hold | None = None
        self.generation: OpenGeneration | None = None
        self.coverages: dict[QueueKey, Coverage] = {}
        self._known_topics: frozenset[str] | None = None

    def _discard_damaged(self, damage: StoreDamaged) -> None:
        """Discard a damaged generation if another copy of the log has one to copy from.

        Raises `damage` if this may be the only copy that had it.
        """
        if not self.by_quorum or not self.needed_end:
            raise damage
        log.error("the active generation is unusable, copying it again from the leader: %s", damage)
        self._manifest, self.identity = None, 0
        self._need_marks()

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the active generation."""
        return self._manifest

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which no compacted message is shown."""
        return self._dropped.generation_marks

    def directory_of(self, number: int) -> Path:
        """Return the directory of a generation, existing or not."""
        return self.home / generation_name(number)

    @property
    def topics(self) -> Collection[str]:
        """Compacted topics; before `set_topics`, those of the active generation.

        Empty on a follower: its leader decides which part of the log must be kept."""
        if self._known_topics is not None:
            return self._known_topics
        if self.by_quorum:
            return ()
        known = self._manifest.topics if self._manifest else ()
        return frozenset(topic.topic for topic in known)

    @property
    def knows_topics(self) -> bool:
        """Whether `set_topics` was called."""
        return self._known_topics is not None

    def set_topics(self, names: Collection[str]) -> None:
        """Set the compacted topics. Before this call, only copies of the leader's active generation
        are adopted."""
        self._known_topics = frozenset(names)

    def need(self, end: int) -> None:
        """Record durably that the log will begin after records that only a generation has.

        Args:
            end: log position up to which that generation must be made; 0: none is needed.

        Raises OSError.
        """
        write_needed(self.home, end, self._disk)
        self.needed_end = end

    def is_compacted(self, topic: str) -> bool:
        """Whether the log keeps the topic's messages until a generation holds them."""
        return topic in self.topics

    def covered_end(self, topic: str) -> int:
        """Return the physical offset up to which the active generation covers a topic; 0 if it does
        not."""
        if self._manifest is None or not any(key[0] == topic for key in self.coverages):
            return 0
        return self._manifest.log_end

    def offsets_with_key(
        self, topic: str, key_hash: int, begin_ms: int = 0, end_ms: int = OFFSET_MAX
    ) -> list[int]:
        """Return log offsets of records with a key of this hash, ascending; `Store.read_at` reads
        them.

        Args:
            topic: topic of the records.
            key_hash: `hashes.index_key_hash` of `topic#key`. Other keys may have the same hash.
            begin_ms, end_ms: store times, epoch milliseconds, inclusive.
        """
        if self.generation is None or not self.covered_end(topic):
            return []
        offsets: list[int] = self.generation.offsets_with_key(
            topic, key_hash, begin_ms, end_ms
        ).tolist()
        return offsets

    def overtake(self, log_min: int) -> None:
        """Record durably that retention is about to move the beginning of the log.

        A topic that is no longer compacted is deleted by age. When retention deletes its first
        message after the generation, the older messages in the generation are dropped as well.

        Args:
            log_min: new beginning of the log, physical offset.

        Raises:
            OSError: the disk; then nothing may be deleted.
        """
        over = [
            topic
            for topic in sorted({topic for topic, _ in self.coverages})
            if not self.is_compacted(topic)
            and loses_uncompacted(topic, log_min, self.coverages, self._queues, self._log)
        ]
        if not over:
            return
        self._dropped.overtake(over, log_min)
        for topic in over:
            log.info("%s is no longer compacted: retention deletes its compacted messages", topic)
            self.drop(topic)

    def drop(self, topic: str) -> None:
        """Stop serving a topic; its deletion mark is already durable."""
        self.coverages = {
            key: coverage for key, coverage in self.coverages.items() if key[0] != topic
        }

    def hold(self) -> Hold | None:
        """Return the oldest message that the log must keep until a generation has it; None if there
        is none. Raises OSError."""
        self._hold = oldest_uncompacted(
            self.topics, self.coverages, self._queues, self._log, self._hold
        )
        return self._hold

    def log_tail(self, log_end: int) -> LogTail:
        """Return the log fingerprint for the manifest of a generation made up to `log_end`.

        Raises:
            OSError: the disk.
        """
        return log_tail(self._log, log_end)

    def _number_queues(self, log_end: int) -> None:
        """Let queues continue after the offsets that the generation covers."""
        for (topic, queue_id), coverage in self.coverages.items():
            if coverage.covered_to:
                queue = self._queues.find_or_create(topic, queue_id)
                self._queues.skip_to(queue, coverage.covered_to, log_end)

    def _serve(self, generation: OpenGeneration) -> None:
        marks = self.marks
        served = {
            topic.topic
            for topic in generation.manifest.topics
            if not is_dropped_since(topic, marks)
        }
        self._manifest = generation.manifest
        self.identity = identity_of(self._manifest)
        self.generation = generation
        self.coverages = {
            key: coverage for key, coverage in generation.coverages.items() if key[0] in served
        }

    def _need_marks(self, *manifests: Manifest | None) -> None:
        self._dropped.needed = lowest_marks(each for each in manifests if each is not None)
