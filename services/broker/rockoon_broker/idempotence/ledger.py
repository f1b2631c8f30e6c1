"""Ledger of idempotent producers: which sequence numbers are stored, and where.

Pure: no clock, log or disk.

Invariants:
1. A run's messages are neighbours in their queue and in the log, and of one batch. Runs of one
   sequence follow one another without gaps; the last ends where the next number is expected.
2. Of each sequence the last RUNS_MAX runs are kept, and of the sequences the `sequences_max` that
   were used last. Every sequence forgotten was last used at `forgotten_until_ms` or before.
3. Sequences stand in the order in which they were last used, so the oldest is always the first.
4. How long a sequence was not used follows from store times in the log alone, not from the clock of
   the machine: all copies of a log forget alike. Store times may jump with a leader's clock, so a
   step from one to the next counts as GAP_MS_MAX at most, and a step back as nothing.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rockoon_broker.store.log.batch import SequencedBatch, SequenceKey
from rockoon_core.errors import InvalidArgument, SequenceGap, SequenceUnknown
from rockoon_format.sequences import BATCH_MESSAGES_MAX, SEQUENCE_MAX

RUNS_MAX = 8
"""A batch has one run, or two when a crash has cut it. A sender that keeps more batches of one
queue in flight than this may be refused a repeat of the oldest."""
REPEAT_MARGIN_MS = 60_000
"""How much older than its request says a repeat is taken to be: it may have been on its way."""

GAP_MS_MAX = 600_000
"""The longest time without a record that counts in full. A clock that jumps by a day ages all
sequences by this."""


class Run(NamedTuple):
    """Messages of one batch that were stored together."""

    first_sequence: int
    messages: int
    first_queue_offset: int
    first_physical_offset: int
    store_timestamp_ms: int
    store_host: bytes

    @property
    def end(self) -> int:
        return self.first_sequence + self.messages


Runs = tuple[Run, ...]
"""The newest runs of one sequence, at least one."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much is remembered."""

    sequences_max: int
    """Sequences, one for each producer and queue."""
    memory_ms: int
    """How long an unused sequence is remembered, in time of the log."""
    snapshot_log_bytes: int = 64 << 20
    """A snapshot is due, not waiting for its time, when there is so much log behind the last."""


class SequenceLedger:
    """The sequences of all producers.

    Args:
        limits: how much is remembered.
        sequences: what a snapshot holds, the least recently used first.
        forgotten_until_ms: the snapshot's.
    """

    def __init__(
        self,
        limits: MemoryLimits,
        sequences: Mapping[SequenceKey, Runs] | None = None,
        forgotten_until_ms: int = 0,
    ) -> None:
        self._limits = limits
        # Not a dict, in which to find the first takes longer with each one that went before it.
        self._sequences = OrderedDict(sequences or {})
        self.forgotten_until_ms = forgotten_until_ms
        """Store time of the newest message of a sequence that was forgotten, 0 if none was."""
        self.changes = 0
        """Grows whenever there is something new to write down."""
        # The newest store time seen, and the log's time in milliseconds, from 0 on.
        self._newest_ms = 0
        self._age_ms = 0
        # The log's time at which each sequence was used last.
        self._used_at_ms: dict[SequenceKey, int] = {}
        for key, runs in self._sequences.items():
            self._used_at_ms[key] = self._advance(runs[-1].store_timestamp_ms)
        self._bound()

    def __len__(self) -> int:
        return len(self._sequences)

    def copy(self) -> dict[SequenceKey, Runs]:
        """The sequences of this moment, the least recently used first; cheap, and the caller's."""
        # Shallow, so that another thread can write it down: runs are tuples, which never change.
        return dict(self._sequences)

    def stored(self, batch: SequencedBatch, messages: int, now_ms: int) -> Runs:
        """Which messages of a batch are stored already.

        Args:
            batch: what its sender says.
            messages: how many it has.
            now_ms: epoch milliseconds.

        Returns:
            Where they went, from the batch's first message on; the rest is to be appended now.
            Nothing for a new batch.

        Raises:
            InvalidArgument: the numbers are out of bounds, or a repeat is cut another way.
            SequenceGap: messages are missing before it.
            SequenceUnknown: it could be stored, and that, or where, is forgotten.
        """
        first = batch.first_sequence
        if not 0 <= first <= SEQUENCE_MAX - messages or messages > BATCH_MESSAGES_MAX:
            raise InvalidArgument(reason=f"{messages} messages with sequence {first}")
        runs = self._sequences.get(batch.key)
        if runs is None:
            self._check_new(batch, now_ms)
            return ()
        expected = runs[-1].end
        if first == expected:
            return ()
        # Appending it would be final: a later repeat of what is missing would look like a repeat of
        # something stored.
        if first > expected:
            raise SequenceGap(
                topic=batch.key.topic,
                queue=batch.key.queue_id,
                sequence=first,
                expected=expected,
            )
        # It was stored, but where is forgotten. Appended again it would be there twice, and
        # "stored" needs a place to answer with.
        if first < runs[0].first_sequence:
            raise _unknown(batch, f"batches before sequence {runs[0].first_sequence}")
        end = first + messages
        found = [run for run in runs if first < run.end and run.first_sequence < end]
        # The answer is made of whole runs: one that begins before the batch has its first offset,
        # not the batch's. The SDK sends a batch again exactly as it was.
        if found[0].first_sequence != first:
            reason = f"a batch with sequence {found[0].first_sequence} is sent again from {first}"
            raise InvalidArgument(reason=reason)
        # The last run may go on behind the batch: it is answered for its own messages only.
        found[-1] = found[-1]._replace(messages=min(found[-1].end, end) - found[-1].first_sequence)
        return tuple(found)

    def note(self, key: SequenceKey, run: Run, *, joins: bool = False) -> None:
        """Take note of messages in the log, in its order.

        Those that are known are passed over. A run that does not continue its sequence begins it
        again: what was between is not in the log any more.

        Args:
            key: whose they are.
            run: they.
            joins: they are neighbours of the sequence's last ones, and of one batch with these.
        """
        runs = self._sequences.get(key, ())
        if runs and run.end <= runs[-1].end:
            # Taken again, an old run would replace those behind it, and the next new batch be
            # refused as a gap.
            return
        continues = bool(runs) and run.first_sequence == runs[-1].end
        if continues and joins:
            runs, last = runs[:-1], runs[-1]
            run = last._replace(messages=last.messages + run.messages)
        self._sequences[key] = (*runs[1 - RUNS_MAX :], run) if continues else (run,)
        # `forget` and `_bound` take the first for the one that was not used for longest.
        self._sequences.move_to_end(key)
        self._used_at_ms[key] = self._advance(run.store_timestamp_ms)
        self.changes += 1
        self._bound()

    def drop_topics(self, *topics: str) -> None:
        """Topics were deleted: what was stored in them is as if it had never been."""
        gone = frozenset(topics)
        self.drop([key for key in self._sequences if key.topic in gone])

    def drop(self, keys: Collection[SequenceKey]) -> None:
        """These sequences' messages went with their topics."""
        for key in keys:
            self._sequences.pop(key, None)
            self._used_at_ms.pop(key, None)
        self.changes += bool(keys)

    def forget(self, newest_ms: int) -> None:
        """Forget sequences that were not used for too long; costs time for these only.

        Args:
            newest_ms: store time of the newest record in the log, epoch milliseconds.
        """
        self._come_back(newest_ms)
        age_ms = self._advance(newest_ms)
        while self._sequences:
            key = next(iter(self._sequences))
            if self._used_at_ms[key] > age_ms - self._limits.memory_ms:
                return
            self._forget(key)
            self._come_back(newest_ms)

    def _advance(self, store_ms: int) -> int:
        """Note a store time of the log; returns the log's time in milliseconds."""
        if self._newest_ms:
            self._age_ms += min(max(store_ms - self._newest_ms, 0), GAP_MS_MAX)
        self._newest_ms = store_ms
        return self._age_ms

    def forgotten(self, until_ms: int) -> None:
        """Messages stored until then may be unknown here: the log does not hold them any more."""
        if until_ms > self.forgotten_until_ms:
            self.forgotten_until_ms = until_ms
            self.changes += 1

    def _check_new(self, batch: SequencedBatch, now_ms: int) -> None:
        self._come_back(now_ms)
        # Not the first message of a sequence, and nothing known of those before: it may be a gap,
        # or a repeat.
        if batch.first_sequence:
            raise _unknown(batch, "this producer's messages to the queue")
        repeated = batch.first_sent_ms_ago > 0
        # Ages travel, not times: the clocks of producer and broker need not agree.
        sent_ms = now_ms - batch.first_sent_ms_ago - REPEAT_MARGIN_MS
        if repeated and sent_ms <= self.forgotten_until_ms:
            raise _unknown(batch, "producers of that time")

    def _come_back(self, now_ms: int) -> None:
        """What is forgotten was stored before now, whatever time it bears."""
        if self.forgotten_until_ms > now_ms:
            self.forgotten_until_ms = now_ms
            self.changes += 1

    def _bound(self) -> None:
        while len(self._sequences) > self._limits.sequences_max:
            self._forget(next(iter(self._sequences)))

    def _forget(self, key: SequenceKey) -> None:
        runs = self._sequences.pop(key)
        del self._used_at_ms[key]
        # What is older may have been stored for a producer unknown here. Refusing repeats of that
        # time is what makes it safe to forget.
        self.forgotten_until_ms = max(self.forgotten_until_ms, runs[-1].store_timestamp_ms)
        self.changes += 1


def _unknown(batch: SequencedBatch, what: str) -> SequenceUnknown:
    return SequenceUnknown(
        topic=batch.key.topic,
        queue=batch.key.queue_id,
        sequence=batch.first_sequence,
        what=what,
    )
