"""The generation in force, the next one, and what the log has to keep until there is one.

Invariants:
1. What is in force is what `current` says, and changes by one rename; whatever is killed on the
   way, the one before or the one after is whole and in force.
2. Nothing is served that was not verified: every byte when it was taken over, manifest and entries
   again at each start.
3. A start with a generation that is damaged, or not of this log, is refused: the log may no longer
   have what it held, and nobody would hear that messages are missing.
4. A topic that was deleted, or of which retention took newer messages while it was not compacted,
   is not served from a generation made before, ever.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rockoon_broker.store.compacted import takeover
from rockoon_broker.store.compacted.fitting import (
    StoreFacts,
    Unfit,
    check_fit,
    check_log,
    is_dropped_since,
    log_tail,
)
from rockoon_broker.store.compacted.hold import Hold, loses_uncompacted, oldest_uncompacted
from rockoon_broker.store.compacted.in_force import manifest_in_force, refused_start
from rockoon_broker.store.compacted.open_generation import (
    Coverage,
    OpenGeneration,
    open_generation,
)
from rockoon_broker.store.compacted.takeover import Candidate, Worker
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.queues.consume_queue import ConsumeQueues, QueueKey
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_core.disk import Disk
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.generation import (
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    GenerationError,
    LogTail,
    Manifest,
    generation_name,
)

LOOK_INTERVAL_MS = 1000
RETRY_INTERVAL_MS = 10_000
# So long a generation that was replaced stays, for who is reading its files.
REPLACED_KEPT_MS = 10 * 60_000
OFFERS_MAX = 16

_T = TypeVar("_T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A generation that was not taken."""

    generation: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Offer:
    directory: Path
    manifest: Manifest
    done: Callable[[str], None]


class Compaction:
    """Generations of an open store; owned by the thread that owns the store.

    Made before the log is recovered, which needs to know what a generation still counts on;
    `open` follows when log and queues are open.

    Args:
        root: the store directory.
        disk: the file layer.
        dropped: marks of deleted topics.

    Raises:
        StoreDamaged: the generation in force cannot be read, or its log is gone.
        OSError: the disk.
    """

    def __init__(self, root: Path, disk: Disk, dropped: DroppedTopics) -> None:
        self.home = root / GENERATIONS_DIRECTORY
        self._disk = disk
        self._dropped = dropped
        self._worker = Worker()
        self._manifest = manifest_in_force(root, disk)
        self._need_marks(self._manifest)
        self.generation: OpenGeneration | None = None
        self.coverages: dict[QueueKey, Coverage] = {}
        self.refusal: Refusal | None = None
        """Of the newest generation that was refused; None when a newer one was taken."""
        self._told_topics: frozenset[str] | None = None
        self._now_ms = 0
        self._look_due_ms = 0
        self._busy = False
        self._waiting: Candidate | None = None
        self._verified: OpenGeneration | None = None
        self._offers: deque[_Offer] = deque()
        self._offered: _Offer | None = None
        self._replaced: deque[tuple[int, Path]] = deque()

    def open(self, commit_log: CommitLog, queues: ConsumeQueues) -> None:
        """Serve the generation in force; its queues' numbers go on behind it.

        Raises:
            StoreDamaged: it is damaged or not of this log; nothing of it was changed.
            OSError: the disk.
        """
        self._log = commit_log
        self._queues = queues
        if self._manifest is not None:
            directory = self.directory_of(self._manifest.generation)
            try:
                check_log(self._manifest, commit_log)
            except Unfit as unfit:
                raise refused_start(directory / MANIFEST_FILE, str(unfit)) from unfit
            try:
                self._serve(open_generation(directory, self._manifest, self._disk))
            except GenerationError as error:
                raise refused_start(directory, str(error)) from error
            for (topic, queue_id), coverage in self.coverages.items():
                if not coverage.covered_to:
                    continue
                queue = queues.find_or_create(topic, queue_id)
                queues.skip_to(queue, coverage.covered_to, self._manifest.log_end)
        in_force = self._manifest.generation if self._manifest else 0
        # Listed now: what begins to come in from here on is not stale.
        for directory in takeover.stale(self.home, in_force):
            self._remove(directory)

    def close(self) -> None:
        """Stop what is under way; what was verified and is not in force is verified again."""
        self._worker.stop()
        for generation in (self.generation, self._verified):
            if generation is not None:
                generation.close()
        self.generation = self._verified = None
        self.coverages = {}

    # What is in force.

    @property
    def manifest(self) -> Manifest | None:
        """That of the generation in force."""
        return self._manifest

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which nothing that was compacted is shown."""
        return self._dropped.generation_marks

    def directory_of(self, number: int) -> Path:
        """Where a generation is, or would be."""
        return self.home / generation_name(number)

    @property
    def topics(self) -> Collection[str]:
        """Compacted topics; until they are told, those of the generation in force."""
        if self._told_topics is not None:
            return self._told_topics
        known = self._manifest.topics if self._manifest else ()
        return frozenset(topic.topic for topic in known)

    def set_topics(self, names: Collection[str]) -> None:
        """Say which topics are to be compacted. No generation is taken over before that."""
        self._told_topics = frozenset(names)

    def is_compacted(self, topic: str) -> bool:
        """Whether the log keeps the topic's messages until a generation holds them."""
        return topic in self.topics

    def covered_end(self, topic: str) -> int:
        """Below which physical offset the generation in force has what is left of a topic; 0 if it
        has none of it."""
        if self._manifest is None or not any(key[0] == topic for key in self.coverages):
            return 0
        return self._manifest.log_end

    def offsets_with_key(
        self, topic: str, key_hash: int, begin_ms: int = 0, end_ms: int = OFFSET_MAX
    ) -> list[int]:
        """Where records were in the log whose keys have a hash, ascending; `Store.read_at` reads
        them.

        Args:
            topic: theirs.
            key_hash: `hashes.index_key_hash` of `topic#key`. Others can have the same.
            begin_ms, end_ms: store times, epoch milliseconds, inclusive.
        """
        if self.generation is None or not self.covered_end(topic):
            return []
        offsets: list[int] = self.generation.offsets_with_key(
            topic, key_hash, begin_ms, end_ms
        ).tolist()
        return offsets

    def overtake(self, log_min: int) -> None:
        """Take note, durably, that retention is about to make the log begin elsewhere.

        A topic that is not compacted any more goes by its age: with the first of its messages
        behind the generation goes what the generation holds, which is older.

        Args:
            log_min: where the log is going to begin, physical offset.

        Raises:
            OSError: the disk; nothing may go.
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
            log.info("%s is not compacted any more: what was left of it goes by its age", topic)
            self.drop(topic)

    def drop(self, topic: str) -> None:
        """Serve a topic no more; its mark is durable already."""
        self.coverages = {
            key: coverage for key, coverage in self.coverages.items() if key[0] != topic
        }

    def hold(self) -> Hold | None:
        """What of the log has to stay until it is compacted; None if nothing. Raises OSError."""
        return oldest_uncompacted(self.topics, self.coverages, self._queues, self._log)

    def log_tail(self, log_end: int) -> LogTail:
        """What the manifest of a generation made up to a physical offset says of the log before it.

        Raises:
            OSError: the disk.
        """
        return log_tail(self._log, log_end)

    # What comes next.

    @property
    def looking_at(self) -> int:
        """Number of the generation that is being verified or waits for it; 0 if none is."""
        if self._waiting is not None:
            return self._waiting.number
        return self._verified.manifest.generation if self._verified else 0

    def offer(self, directory: Path, manifest: Manifest, done: Callable[[str], None]) -> None:
        """Take a generation over that lies beside the others under a name of no meaning.

        Args:
            directory: whole, `manifest.json` included; it is renamed, or removed when refused.
            manifest: its manifest.
            done: called once on the owner's thread with the reason why it was refused, or with
                an empty text when it is in force.

        Raises:
            ValueError: too many wait already.
        """
        if len(self._offers) >= OFFERS_MAX:
            raise ValueError(f"{OFFERS_MAX} generations wait to be looked at")
        self._offers.append(_Offer(directory, manifest, done))

    def tick(self, now_ms: int, proven_end: int) -> None:
        """Go on with what is under way.

        Args:
            now_ms: epoch milliseconds.
            proven_end: up to here the log is durable, and listed in its queues.
        """
        self._now_ms = now_ms
        self._worker.complete()
        # Dues in a future that only a clock set back can explain would put everything off.
        self._look_due_ms = min(self._look_due_ms, now_ms + RETRY_INTERVAL_MS)
        if self._replaced:
            due_ms, directory = self._replaced.popleft()
            if due_ms <= now_ms:
                self._remove(directory)
            else:
                self._replaced.appendleft((min(due_ms, now_ms + REPLACED_KEPT_MS), directory))
        if self._busy or self._told_topics is None:
            return
        if self._verified is not None:
            if now_ms >= self._look_due_ms:
                self._swap(self._verified)
        elif self._waiting is not None:
            self._begin(self._waiting, proven_end)
        elif self._offers and self._offered is None:
            self._place(self._offers.popleft())
        elif now_ms >= self._look_due_ms:
            self._look()

    def idle_ms(self, now_ms: int) -> int:
        """How long `tick` will find nothing to do; 0 while something is under way.

        Nothing tells of a generation that a job puts into the directory, so where topics are
        compacted it is looked for.
        """
        under_way = self._waiting or self._verified or self._offers or self._offered
        if self._busy or under_way:
            return 0
        if self._told_topics or self._manifest is not None:
            return max(self._look_due_ms - now_ms, 0)
        return RETRY_INTERVAL_MS

    def _look(self) -> None:
        self._look_due_ms = self._now_ms + LOOK_INTERVAL_MS
        if not self.home.is_dir():
            return
        above = self._manifest.generation if self._manifest else 0
        self._post(lambda: takeover.look(self.home, above, self._disk), self._looked)

    def _looked(self, found: Candidate | Exception | None) -> None:
        if isinstance(found, OSError):
            log.warning("generations cannot be looked for: %s", found)
        elif isinstance(found, Exception):
            raise found
        elif found is not None and found.manifest is None:
            self._refuse(found.number, found.fault)
        elif found is None and self._offered is not None:
            self._answer(self._offered.manifest.generation, "somebody removed its directory")
        else:
            self._waiting = found

    def _place(self, offer: _Offer) -> None:
        """Give an offered generation its number."""
        number = offer.manifest.generation
        if offer.manifest == self._manifest:
            # Its answer was lost.
            self._remove(offer.directory)
            offer.done("")
            return
        if self._manifest is not None and number <= self._manifest.generation:
            self._remove(offer.directory)
            offer.done(f"generation {self._manifest.generation} is in force")
            return
        self._offered = offer
        self._post(
            lambda: takeover.place(offer.directory, self.home, number, self._disk), self._placed
        )

    def _placed(self, outcome: Exception | None) -> None:
        if outcome is None:
            self._look()
            return
        offer, self._offered = self._offered, None
        if offer is not None:
            self._remove(offer.directory)
            offer.done(str(outcome))
        if not isinstance(outcome, OSError | GenerationError):
            raise outcome

    def _begin(self, candidate: Candidate, proven_end: int) -> None:
        """Verify a generation as soon as the log is durable as far as it goes."""
        assert candidate.manifest is not None
        if proven_end < candidate.manifest.log_end <= self._log.end:
            return
        self._waiting = None
        if self._fits(candidate.manifest):
            log.info("generation %d is being verified", candidate.number)
            self._waiting = candidate
            self._post(lambda: takeover.verify(candidate, self._disk, self._worker), self._checked)

    def _checked(self, outcome: OpenGeneration | Exception) -> None:
        candidate, self._waiting = self._waiting, None
        assert candidate is not None
        if isinstance(outcome, OpenGeneration):
            if self._fits(outcome.manifest):
                self._swap(outcome)
            else:
                outcome.close()
        elif isinstance(outcome, GenerationError | OSError):
            self._refuse(candidate.number, str(outcome))
        elif not isinstance(outcome, takeover.Stopped):
            raise outcome

    def _fits(self, manifest: Manifest) -> bool:
        """Whether a generation may be in force; says why not."""
        facts = StoreFacts(self._log, self._queues, self.marks, self._manifest, self.topics)
        try:
            check_fit(manifest, facts)
        except (Unfit, OSError) as reason:
            self._refuse(manifest.generation, str(reason))
            return False
        return True

    def _swap(self, verified: OpenGeneration) -> None:
        # Until it is in force for good, a deletion that either of the two depends on is remembered.
        self._verified = verified
        self._need_marks(self._manifest, verified.manifest)
        number = verified.manifest.generation
        self._post(lambda: takeover.put_in_force(self.home, number, self._disk), self._swapped)

    def _swapped(self, failure: Exception | None) -> None:
        verified = self._verified
        assert verified is not None
        if isinstance(failure, OSError):
            # `current` may say either by now, so there is no way but forward.
            log.warning(
                "generation %d is not in force yet: %s", verified.manifest.generation, failure
            )
            self._look_due_ms = self._now_ms + RETRY_INTERVAL_MS
            return
        if failure is not None:
            raise failure
        self._verified = None
        replaced = self.generation
        self._serve(verified)
        if replaced is not None:
            self._replaced.append((self._now_ms + REPLACED_KEPT_MS, replaced.directory))
            replaced.close()
        manifest = verified.manifest
        self._need_marks(manifest)
        self.refusal = None
        log.info(
            "generation %d is in force: %d messages of %d topics, up to %d of the log",
            manifest.generation,
            manifest.records,
            len(manifest.topics),
            manifest.log_end,
        )
        self._answer(manifest.generation, "")

    def _serve(self, generation: OpenGeneration) -> None:
        marks = self.marks
        served = {
            topic.topic
            for topic in generation.manifest.topics
            if not is_dropped_since(topic, marks)
        }
        self._manifest = generation.manifest
        self.generation = generation
        self.coverages = {
            key: coverage for key, coverage in generation.coverages.items() if key[0] in served
        }

    def _refuse(self, number: int, reason: str) -> None:
        log.warning("generation %d is refused: %s", number, reason)
        self.refusal = Refusal(number, reason, self._now_ms)
        self._post(
            lambda: takeover.set_aside(self.home, number, reason, self._disk), self._set_aside
        )
        self._answer(number, reason)

    def _set_aside(self, failure: Exception | None) -> None:
        if isinstance(failure, OSError):
            # Found again, and refused again.
            log.warning("a refused generation stays where it is: %s", failure)
            self._look_due_ms = self._now_ms + RETRY_INTERVAL_MS
        elif failure is not None:
            raise failure

    def _answer(self, number: int, reason: str) -> None:
        offer = self._offered
        if offer is not None and offer.manifest.generation == number:
            self._offered = None
            offer.done(reason)

    def _need_marks(self, *manifests: Manifest | None) -> None:
        needed: dict[str, int] = {}
        for manifest in manifests:
            for topic in manifest.topics if manifest else ():
                below = topic.dropped_below
                needed[topic.topic] = min(below, needed.get(topic.topic, below))
        self._dropped.needed = needed

    def _post(self, work: Callable[[], _T], then: Callable[[_T | Exception], None]) -> None:
        """Have something done, and do nothing else before it is."""
        self._busy = True

        def done(outcome: _T | Exception) -> None:
            self._busy = False
            then(outcome)

        self._worker.post(work, done)

    def _remove(self, directory: Path) -> None:
        self._worker.post(lambda: takeover.remove(directory, self._disk), self._removed)

    def _removed(self, outcome: Exception | None) -> None:
        if isinstance(outcome, OSError):
            log.warning("what is left of a generation is not deleted: %s", outcome)
        elif outcome is not None:
            raise outcome
