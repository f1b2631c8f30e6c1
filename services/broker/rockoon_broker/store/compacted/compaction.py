"""Adoption of compacted generations: the active one, the next one, and the log range to keep.

Invariants:
1. The file `current` names the active generation and is changed by one rename. After a crash at any
   point, either the former or the new generation is complete and active.
2. Every byte of a generation is verified before it becomes active; each start verifies manifest and
   entries again.
3. A start with a damaged generation, or one of another log, is refused: the log may no longer have
   its messages, and their loss would not be noticed.
4. A deleted topic is never served from a generation made before its deletion. The same holds for a
   topic that lost newer messages by retention while it was not compacted.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from rockoon_broker.store.compacted import takeover
from rockoon_broker.store.compacted.fitting import (
    StoreFacts,
    Unfit,
    check_copy,
    check_fit,
    check_log,
)
from rockoon_broker.store.compacted.in_force import refused_start, write_needed
from rockoon_broker.store.compacted.open_generation import OpenGeneration, open_generation
from rockoon_broker.store.compacted.served import ServedGeneration
from rockoon_broker.store.compacted.takeover import Candidate, Offer, Refusal, Worker
from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_core.disk import Disk
from rockoon_format.generation import MANIFEST_FILE, GenerationError, Manifest

SEARCH_INTERVAL_MS = 1000
RETRY_INTERVAL_MS = 10_000
# A replaced generation is kept this long for readers of its files.
REPLACED_KEPT_MS = 10 * 60_000
OFFERS_MAX = 16

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class Compaction(ServedGeneration):
    """Generations of an open store; owned by the store's thread.

    Constructed before recovery, which must know what the active generation needs; `open` follows
    when the log and queues are open. For arguments and errors see `ServedGeneration`.

    """

    def __init__(
        self, root: Path, disk: Disk, dropped: DroppedTopics, *, by_quorum: bool = False
    ) -> None:
        super().__init__(root, disk, dropped, by_quorum=by_quorum)
        self._worker = Worker()
        self.refusal: Refusal | None = None
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
        in_force = self._manifest.generation if self._manifest else 0
        # Listed now: anything that arrives later is not left over from an earlier run.
        for directory in takeover.stale(self.home, in_force):
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

    # What comes next.

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
            manifest: its manifest.
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
            now_ms: epoch milliseconds.
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
        self.refusal = Refusal(number, reason, self._now_ms)
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
