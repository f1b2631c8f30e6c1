"""Adoption of compacted generations: the active one, the next one, and the log range to keep.

Invariants:
1. The file `current` names the active generation and is changed by one rename. After a crash at any
   point, either the former or the new generation is complete and active.
2. Every byte of a generation is verified before it becomes active, except in files that are hard
   links to verified files of the active one; each start verifies manifest and entries again.
3. A start with a damaged generation, or one of another log, is refused: the log may no longer have
   its messages, and their loss would not be noticed.
4. A deleted topic is never served from a generation made before its deletion. The same holds for a
   topic that lost newer messages by retention while it was not compacted.
"""

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from rockoon_broker.store.compacted import takeover
from rockoon_broker.store.compacted.fitting import (
    StoreFacts,
    Unfit,
    check_copy,
    check_fit,
    check_log,
    is_dropped_since,
    log_tail,
    lowest_marks,
)
from rockoon_broker.store.compacted.hold import Hold, loses_uncompacted, oldest_uncompacted
from rockoon_broker.store.compacted.open_generation import (
    OpenGeneration,
    QueueCoverage,
    open_generation,
)
from rockoon_broker.store.compacted.takeover import Candidate, GenerationRefusal, Offer, Worker
from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_core.disk import Disk
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    GenerationError,
    LogTail,
    Manifest,
    decode_current,
    generation_name,
)

LOG_DIRECTORY = "commitlog"
NEEDED_FILE = "needed"


def active_manifest(root: Path, disk: Disk, *, copies: bool = False) -> Manifest | None:
    """Return the manifest of the generation that `current` names; StoreDamaged if it is unreadable.

    Args:
        copies: generations are copied from the leader. Without an active one, a generation may be
            present that replaces another which was never here.
    """
    home = root / GENERATIONS_DIRECTORY
    path = home / CURRENT_FILE
    try:
        number = decode_current(path.read_bytes())
    except FileNotFoundError:
        if not copies:
            _check_none_was(home, disk)
        return None
    except GenerationError as error:
        raise refused_start(path, str(error)) from error
    directory = home / generation_name(number)
    try:
        manifest = takeover.read_manifest(directory, disk)
        if manifest.generation != number:
            raise GenerationError(f"it states number {manifest.generation}")
    except GenerationError as error:
        raise refused_start(directory / MANIFEST_FILE, str(error)) from error
    log_directory = root / LOG_DIRECTORY
    if manifest.log_end and not (log_directory.is_dir() and any(log_directory.iterdir())):
        raise refused_start(log_directory, f"the log of generation {number} is missing")
    return manifest


def identity_of(manifest: Manifest | None) -> int:
    """Return an identity of a generation that is the same on all copies of a log; 0: none."""
    if manifest is None:
        return 0
    return int.from_bytes(hashlib.sha256(manifest.to_json()).digest()[:8]) or 1


def read_needed(home: Path) -> int | None:
    """Return the log position up to which a generation must be made that this copy needs.

    The copy needs one if its log begins after records that only a generation has, or if it had a
    generation and may have deleted those records. 0: it needs none. None: no copy was ever made
    here. Raises StoreDamaged if the file cannot be read.
    """
    path = home / NEEDED_FILE
    try:
        return int(json.loads(path.read_bytes())["log_end"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StoreDamaged(path, 0, f"{path.name}: {error}") from error


def write_needed(home: Path, log_end: int, disk: Disk) -> None:
    """Write the value of `read_needed` durably; OSError for the disk."""
    for changed in disk.make_directory(home):
        disk.sync_directory(changed)
    disk.replace_file(home / NEEDED_FILE, json.dumps({"log_end": log_end}).encode())


def _check_none_was(home: Path, disk: Disk) -> None:
    """Raise StoreDamaged if `current` is missing but a generation was active before."""
    for number in takeover.numbered(home):
        try:
            replaces = takeover.read_manifest(home / generation_name(number), disk).replaces
        except GenerationError:
            continue
        if replaces:
            raise refused_start(
                home / CURRENT_FILE, f"the file is missing; generation {number} replaced {replaces}"
            )


def refused_start(path: Path, reason: str) -> StoreDamaged:
    """Return the error of a start that cannot serve the compacted messages."""
    return StoreDamaged(
        path,
        0,
        f"{reason}. The compacted messages may exist nowhere else. Restore the file from a copy, "
        f"or abandon them: move {GENERATIONS_DIRECTORY} away; "
        "then only messages in the log are served",
    )


SEARCH_INTERVAL_MS = 1000
RETRY_INTERVAL_MS = 10_000
# A replaced generation is kept this long for readers of its files.
REPLACED_KEPT_MS = 10 * 60_000
OFFERS_MAX = 16

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class Compaction:
    """Generations of an open store; owned by the store's thread.

    Constructed before recovery, which needs to know the log range that the active generation
    requires; `open` follows when the log and queues are open.

    Args:
        root: the store directory.
        dropped: marks of deleted topics.
        by_quorum: the log has other copies. Until this copy learns which topics are compacted it
            is a follower; its leader keeps the messages that no generation has.

    Attributes:
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
        self.coverages: dict[QueueKey, QueueCoverage] = {}
        self._known_topics: frozenset[str] | None = None
        self._worker = Worker()
        self.refusal: GenerationRefusal | None = None
        """The newest refusal; None after a newer generation became active."""
        self._now_ms = 0
        self._search_due_ms = 0
        self._busy = False
        self._waiting: Candidate | None = None
        self._verified: OpenGeneration | None = None
        self._offers: deque[Offer] = deque()
        self._offered: Offer | None = None
        self._replaced: deque[tuple[int, Path]] = deque()

    def open(self, commit_log: CommitLog, queues: ConsumeQueues) -> None:
        """Serve the active generation; its queues continue after the offsets that it covers.

        Raises:
            StoreDamaged: the generation is damaged or of another log; nothing was changed.
            OSError: the disk.
        """
        self._log = commit_log
        self._queues = queues
        try:
            self._open_active()
        except StoreDamaged as damage:
            self._discard_damaged(damage)
        active = self._manifest.generation if self._manifest else 0
        # Listed now: anything that arrives later is not left over from an earlier run.
        for directory in takeover.stale(self.home, active):
            self._remove(directory)

    def _open_active(self) -> None:
        if self._manifest is None:
            return
        directory = self.directory_of(self._manifest.generation)
        try:
            check_log(self._manifest, self._log)
        except Unfit as unfit:
            raise refused_start(directory / MANIFEST_FILE, str(unfit)) from unfit
        try:
            self._serve(open_generation(directory, self._manifest, self._disk))
        except GenerationError as error:
            raise refused_start(directory, str(error)) from error
        self._number_queues(self._manifest.log_end)

    def close(self) -> None:
        """Stop running work. A verified generation that is not active yet is verified again
        later."""
        self._worker.stop()
        for generation in (self.generation, self._verified):
            if generation is not None:
                generation.close()
        self.generation = self._verified = None
        self.coverages = {}

    # The next generation.

    @property
    def pending_number(self) -> int:
        """Number of the generation that waits for verification or activation; 0 if there is
        none."""
        if self._waiting is not None:
            return self._waiting.number
        return self._verified.manifest.generation if self._verified else 0

    def offer(
        self,
        directory: Path,
        manifest: Manifest,
        done: Callable[[str], None],
        leader_marks: Mapping[str, int] | None = None,
    ) -> None:
        """Offer a generation that is stored beside the others under a temporary name.

        Args:
            directory: complete, with `manifest.json`; it is renamed, or removed if refused.
            done: called once on the owner's thread, with the reason of the refusal or, when the
                generation is active, with an empty text.
            leader_marks: see `Offer`.

        Raises:
            ValueError: too many offers are waiting.
        """
        if len(self._offers) >= OFFERS_MAX:
            raise ValueError(f"{OFFERS_MAX} generations already wait for verification; retry later")
        self._offers.append(Offer(directory, manifest, done, leader_marks))

    def tick(self, now_ms: int, proven_end: int) -> None:
        """Continue pending work.

        Args:
            proven_end: physical offset up to which the log is durable and listed in its queues.
        """
        self._now_ms = now_ms
        self._worker.complete()
        # If the clock was set back, due times far in the future would delay everything.
        self._search_due_ms = min(self._search_due_ms, now_ms + RETRY_INTERVAL_MS)
        if self._replaced:
            due_ms, directory = self._replaced.popleft()
            if due_ms <= now_ms:
                self._remove(directory)
            else:
                self._replaced.appendleft((min(due_ms, now_ms + REPLACED_KEPT_MS), directory))
        if self._busy or not (self.knows_topics or self._is_copying):
            return
        if self._verified is not None:
            if now_ms >= self._search_due_ms:
                self._swap(self._verified)
        elif self._waiting is not None:
            self._verify_if_durable(self._waiting, proven_end)
        elif self._offers and self._offered is None:
            self._place(self._offers.popleft())
        elif now_ms >= self._search_due_ms:
            self._search()

    @property
    def _is_copying(self) -> bool:
        """Whether the next offer is a copy of the leader's generation."""
        offer = self._offered or (self._offers[0] if self._offers else None)
        return offer is not None and offer.leader_marks is not None

    def idle_ms(self, now_ms: int) -> int:
        """Return for how long `tick` has nothing to do, in ms; 0 while work is pending.

        A job may put a generation into the directory without a notification, so the directory
        is polled if topics are compacted.
        """
        under_way = self._waiting or self._verified or self._offers or self._offered
        if self._busy or under_way:
            return 0
        if self._known_topics or (self.knows_topics and self._manifest is not None):
            return max(self._search_due_ms - now_ms, 0)
        return RETRY_INTERVAL_MS

    def _search(self) -> None:
        self._search_due_ms = self._now_ms + SEARCH_INTERVAL_MS
        if not self.home.is_dir():
            return
        above = self._manifest.generation if self._manifest else 0
        self._post(lambda: takeover.next_candidate(self.home, above, self._disk), self._searched)

    def _searched(self, found: Candidate | Exception | None) -> None:
        if isinstance(found, OSError):
            log.warning("cannot search for new generations: %s; searching again", found)
        elif isinstance(found, Exception):
            raise found
        elif found is not None and found.manifest is None:
            self._refuse(found.number, found.fault)
        elif found is None and self._offered is not None:
            self._answer(
                self._offered.manifest.generation, "its directory was removed by another program"
            )
        else:
            self._waiting = found

    def _place(self, offer: Offer) -> None:
        """Rename an offered generation to its number."""
        number = offer.manifest.generation
        if offer.manifest == self._manifest:
            # Offered again because the answer was lost.
            self._remove(offer.directory)
            offer.done("")
            return
        if self._manifest is not None and number <= self._manifest.generation:
            self._remove(offer.directory)
            offer.done(f"generation {self._manifest.generation} is active")
            return
        self._offered = offer
        copied, needed_end = self._is_copying, self.needed_end

        def place() -> None:
            if copied:
                write_needed(self.home, needed_end, self._disk)
            takeover.place(offer.directory, self.home, number, self._disk, copied)

        self._post(place, self._placed)

    def _placed(self, outcome: Exception | None) -> None:
        if outcome is None and self._offered is not None and self._is_copying:
            # Other directories may exist that were never active on any leader.
            manifest = self._offered.manifest
            directory = self.directory_of(manifest.generation)
            self._waiting = Candidate(manifest.generation, directory, manifest)
            return
        if outcome is None:
            self._search()
            return
        offer, self._offered = self._offered, None
        if offer is not None:
            self._remove(offer.directory)
            offer.done(str(outcome))
        if not isinstance(outcome, OSError | GenerationError):
            raise outcome

    def _verify_if_durable(self, candidate: Candidate, proven_end: int) -> None:
        """Verify a generation once the log is durable up to the generation's end."""
        assert candidate.manifest is not None
        if proven_end < candidate.manifest.log_end <= self._log.end:
            return
        self._waiting = None
        if self._fits(candidate.manifest):
            log.info("verifying generation %d", candidate.number)
            self._waiting = candidate
            active = self.active
            self._post(
                lambda: takeover.verify(candidate, self._disk, self._worker, active), self._checked
            )

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
        elif not isinstance(outcome, takeover.TakeoverStopped):
            raise outcome

    def _fits(self, manifest: Manifest) -> bool:
        """Return whether a generation may become active; refuse it with a reason if not."""
        facts = StoreFacts(self._log, self._queues, self.marks, self._manifest, self.topics)
        copied = self._offered_copy(manifest) is not None
        try:
            (check_copy if copied else check_fit)(manifest, facts)
        except (Unfit, OSError) as reason:
            self._refuse(manifest.generation, str(reason))
            return False
        return True

    def _offered_copy(self, manifest: Manifest) -> Offer | None:
        """Return the offer if this manifest is that of the leader's active generation."""
        offer = self._offered
        return offer if self._is_copying and offer and offer.manifest == manifest else None

    def _swap(self, verified: OpenGeneration) -> None:
        # Until the switch is durable, keep the deletion marks that either generation depends on.
        self._verified = verified
        self._need_marks(self._manifest, verified.manifest)
        number = verified.manifest.generation
        if (offer := self._offered_copy(verified.manifest)) is not None:
            try:
                self._dropped.learn(offer.leader_marks or {}, self._log.min_offset)
            except OSError as failure:
                self._swapped(failure)
                return
        needed_end = verified.manifest.log_end if self.by_quorum else 0

        def activate() -> None:
            takeover.activate(self.home, number, self._disk)
            if needed_end:
                # Last: a generation of less of the log may be the only copy of its messages.
                write_needed(self.home, needed_end, self._disk)

        self._post(activate, self._swapped)

    def _swapped(self, failure: Exception | None) -> None:
        verified = self._verified
        assert verified is not None
        if isinstance(failure, OSError):
            # `current` may name either generation now, so that only a retry is possible.
            log.warning(
                "generation %d is not active yet, retrying: %s",
                verified.manifest.generation,
                failure,
            )
            self._search_due_ms = self._now_ms + RETRY_INTERVAL_MS
            return
        if failure is not None:
            raise failure
        self._verified = None
        replaced = self.generation
        self._serve(verified)
        if self.by_quorum:
            self.needed_end = verified.manifest.log_end
        # A copy may know a queue only from the generation.
        self._number_queues(verified.manifest.log_end)
        if replaced is not None:
            self._replaced.append((self._now_ms + REPLACED_KEPT_MS, replaced.directory))
            replaced.close()
        manifest = verified.manifest
        self._need_marks(manifest)
        self.refusal = None
        log.info(
            "generation %d is now active: %d messages of %d topics, made of the log up to %d",
            manifest.generation,
            manifest.records,
            len(manifest.topics),
            manifest.log_end,
        )
        self._answer(manifest.generation, "")

    def _refuse(self, number: int, reason: str) -> None:
        log.warning("generation %d refused: %s", number, reason)
        self.refusal = GenerationRefusal(number, reason, self._now_ms)
        self._post(
            lambda: takeover.move_refused(self.home, number, reason, self._disk),
            self._moved_refused,
        )
        self._answer(number, reason)

    def _moved_refused(self, failure: Exception | None) -> None:
        if isinstance(failure, OSError):
            # It will be found and refused again.
            log.warning("could not move away a refused generation: %s; retrying", failure)
            self._search_due_ms = self._now_ms + RETRY_INTERVAL_MS
        elif failure is not None:
            raise failure

    def _answer(self, number: int, reason: str) -> None:
        offer = self._offered
        if offer is not None and offer.manifest.generation == number:
            self._offered = None
            offer.done(reason)

    def _post(self, work: Callable[[], _T], then: Callable[[_T | Exception], None]) -> None:
        """Run work on the worker's thread; until it is done, nothing else is started."""
        self._busy = True

        def done(outcome: _T | Exception) -> None:
            self._busy = False
            then(outcome)

        self._worker.post(work, done)

    def _remove(self, directory: Path) -> None:
        self._worker.post(lambda: takeover.remove(directory, self._disk), self._removed)

    def _removed(self, outcome: Exception | None) -> None:
        if isinstance(outcome, OSError):
            log.warning("could not delete a former generation: %s", outcome)
        elif outcome is not None:
            raise outcome

    # The active generation.

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
        return self._manifest

    @property
    def active(self) -> takeover.Verified | None:
        """The active generation and its directory; None if there is none."""
        if self._manifest is None:
            return None
        return takeover.Verified(self.directory_of(self._manifest.generation), self._manifest)

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
        """Return the log fingerprint for the manifest of a generation made up to `log_end`. Raises
        OSError."""
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
