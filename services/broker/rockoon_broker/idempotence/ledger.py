"""Ledger of idempotent producers: stored sequence numbers and their messages' offsets.

Pure: no clock, log or disk.

Invariants:
1. The messages of a run are adjacent in their queue and in the log, and of one batch. The runs of a
   sequence follow one another without gaps; the last ends at the next expected number.
2. The last RUNS_MAX runs of each sequence are kept. The `sequences_max` most recently used
   sequences with one batch are kept, and as many with several batches: processes that send one
   batch under each producer id do not displace producers that continue. Every discarded sequence
   was last used at `discarded_until_ms` or before.
3. Sequences are ordered by their last use, so that the first is the oldest.
4. The time since the last use is computed only from store times in the log, not from the machine's
   clock: all copies of a log discard the same sequences. Store times may jump with a leader's
   clock, so a step counts as at most GAP_MS_MAX, and a step back as zero.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rockoon_broker.store.log.batch import SequencedBatch, SequenceKey
from rockoon_core.errors import InvalidArgument, SequenceGap, SequenceUnknown
from rockoon_format.sequences import BATCH_MESSAGES_MAX, SEQUENCE_MAX

RUNS_MAX = 8
"""A batch has one run, or two if a crash has cut it. A sender with more batches of one
queue in flight may be refused when it repeats the oldest."""
REPEAT_MARGIN_MS = 60_000
"""Added to the age that a repeated request states, for its time on the network."""

GAP_MS_MAX = 600_000
"""The longest interval without records that counts in full. A clock jump by a day ages all
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

_UsedAtMs = OrderedDict[SequenceKey, int]


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    sequences_max: int
    """Number of sequences with one batch, and of sequences with several batches; a sequence is one
    producer's in one queue."""
    memory_ms: int
    """How long an unused sequence is kept, in store time of the log, milliseconds."""
    snapshot_log_bytes: int = 64 << 20
    """With this much log after the last snapshot, the next one is due before its interval."""


class SequenceLedger:
    """The sequences of all producers.

    Args:
        sequences: from a snapshot, least recently used first.
        discarded_until_ms: from the snapshot.
    """

    def __init__(
        self,
        limits: MemoryLimits,
        sequences: Mapping[SequenceKey, Runs] | None = None,
        discarded_until_ms: int = 0,
    ) -> None:
        self._limits = limits
        # Not a dict: there, finding the first key gets slower with each removed key before it.
        self._sequences = OrderedDict(sequences or {})
        self.discarded_until_ms = discarded_until_ms
        """Store time of the newest message of a discarded sequence, 0 if there is none."""
        self.changes = 0
        """Incremented by every change that a snapshot must include."""
        # The newest store time, and the log's time in milliseconds, from 0 on.
        self._newest_ms = 0
        self._age_ms = 0
        # Log time of the last use of each sequence, least recently used first.
        self._single: _UsedAtMs = OrderedDict()
        self._continued: _UsedAtMs = OrderedDict()
        for key, runs in self._sequences.items():
            self._use(key, runs)
        self._bound()

    def __len__(self) -> int:
        return len(self._sequences)

    def copy(self) -> dict[SequenceKey, Runs]:
        """Return a copy of the sequences, least recently used first."""
        # Shallow, so that another thread can write it: runs are immutable tuples.
        return dict(self._sequences)

    def stored(self, batch: SequencedBatch, messages: int, now_ms: int) -> Runs:
        """Return which messages of a batch are already stored.

        Args:
            now_ms: epoch milliseconds.

        Returns:
            The stored runs, from the batch's first message on; the rest must be appended.
            Empty for a new batch.

        Raises:
            InvalidArgument: the numbers are out of bounds, or a repeat has other boundaries.
            SequenceGap: messages before the batch are missing.
            SequenceUnknown: it may be stored, but the ledger has discarded that.
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
        # Appending it would be final: a later send of the missing messages would look like a
        # repeat of stored ones.
        if first > expected:
            raise SequenceGap(
                topic=batch.key.topic,
                queue=batch.key.queue_id,
                sequence=first,
                expected=expected,
            )
        # It was stored, but its offsets are discarded. Appended again it would be a duplicate, and
        # an answer needs the offsets.
        if first < runs[0].first_sequence:
            raise _unknown(batch, f"batches before sequence {runs[0].first_sequence}")
        end = first + messages
        found = [run for run in runs if first < run.end and run.first_sequence < end]
        # The answer consists of whole runs. A run that begins before the batch has another first
        # offset than the batch. The SDK repeats a batch unchanged.
        if found[0].first_sequence != first:
            reason = f"a batch with sequence {found[0].first_sequence} is sent again from {first}"
            raise InvalidArgument(reason=reason)
        # The last run may continue after the batch; the answer covers only the batch.
        found[-1] = found[-1]._replace(messages=min(found[-1].end, end) - found[-1].first_sequence)
        return tuple(found)

    def record(self, key: SequenceKey, run: Run, *, joins: bool = False) -> None:
        """Add messages of the log, in log order.

        Known messages are ignored. A run that does not continue its sequence restarts the sequence:
        the messages in between are no longer in the log.

        Args:
            joins: they are adjacent to the sequence's last run and of the same batch.
        """
        runs = self._sequences.get(key, ())
        if runs and run.end <= runs[-1].end:
            # Adding an old run again would replace later ones, and the next new batch would be
            # refused as a gap.
            return
        continues = bool(runs) and run.first_sequence == runs[-1].end
        if continues and joins:
            runs, last = runs[:-1], runs[-1]
            run = last._replace(messages=last.messages + run.messages)
        self._sequences[key] = runs = (*runs[1 - RUNS_MAX :], run) if continues else (run,)
        # `discard_unused` and `_bound` rely on this order: the first is the least recently used.
        self._sequences.move_to_end(key)
        self._use(key, runs)
        self.changes += 1
        self._bound()

    def drop_topics(self, *topics: str) -> None:
        """Remove the sequences of deleted topics."""
        gone = frozenset(topics)
        self.drop([key for key in self._sequences if key.topic in gone])

    def drop(self, keys: Collection[SequenceKey]) -> None:
        """Remove sequences whose messages were deleted with their topics."""
        for key in keys:
            if (runs := self._sequences.pop(key, None)) is not None:
                del self._used_at_ms(runs)[key]
        self.changes += bool(keys)

    def discard_unused(self, newest_ms: int) -> None:
        """Discard sequences that are unused for too long; the cost is proportional to their number.

        Args:
            newest_ms: store time of the newest record in the log, epoch milliseconds.
        """
        self._limit_discarded_until(newest_ms)
        age_ms = self._advance(newest_ms)
        while self._sequences:
            key, runs = next(iter(self._sequences.items()))
            if self._used_at_ms(runs)[key] > age_ms - self._limits.memory_ms:
                return
            self._discard(key)
            self._limit_discarded_until(newest_ms)

    def _use(self, key: SequenceKey, runs: Runs) -> None:
        """Record the use of a sequence at the store time of its last run."""
        # The last use may be in either: a sequence also changes its kind if a batch is lost.
        self._single.pop(key, None)
        self._continued.pop(key, None)
        self._used_at_ms(runs)[key] = self._advance(runs[-1].store_timestamp_ms)

    def _used_at_ms(self, runs: Runs) -> _UsedAtMs:
        """Return the times of last use of the sequences with as many batches: one, or several."""
        # By the runs alone: all copies of a log, and a restarted broker, discard the same ones.
        return self._single if len(runs) == 1 and not runs[0].first_sequence else self._continued

    def _advance(self, store_ms: int) -> int:
        """Add a store time of the log; return the log's time in milliseconds."""
        if self._newest_ms:
            self._age_ms += min(max(store_ms - self._newest_ms, 0), GAP_MS_MAX)
        self._newest_ms = store_ms
        return self._age_ms

    def extend_discarded(self, until_ms: int) -> None:
        """Record that sequences of messages stored until then may be unknown here."""
        if until_ms > self.discarded_until_ms:
            self.discarded_until_ms = until_ms
            self.changes += 1

    def _check_new(self, batch: SequencedBatch, now_ms: int) -> None:
        self._limit_discarded_until(now_ms)
        # It is not the first message of a sequence, and the sequence is unknown: a gap or a repeat.
        if batch.first_sequence:
            raise _unknown(batch, "this producer's messages to the queue")
        repeated = batch.first_sent_ms_ago > 0
        # Requests state ages instead of times, because the clocks of producer and broker may
        # differ.
        sent_ms = now_ms - batch.first_sent_ms_ago - REPEAT_MARGIN_MS
        if repeated and sent_ms <= self.discarded_until_ms:
            raise _unknown(batch, "producers of that time")

    def _limit_discarded_until(self, now_ms: int) -> None:
        """Lower `discarded_until_ms` to now, because discarded messages were stored before now."""
        if self.discarded_until_ms > now_ms:
            self.discarded_until_ms = now_ms
            self.changes += 1

    def _bound(self) -> None:
        for used_at_ms in (self._single, self._continued):
            while len(used_at_ms) > self._limits.sequences_max:
                self._discard(next(iter(used_at_ms)))

    def _discard(self, key: SequenceKey) -> None:
        runs = self._sequences.pop(key)
        del self._used_at_ms(runs)[key]
        # Older messages may belong to producers that are unknown here. Discarding is safe
        # because repeats of that time are refused.
        self.discarded_until_ms = max(self.discarded_until_ms, runs[-1].store_timestamp_ms)
        self.changes += 1


def _unknown(batch: SequencedBatch, what: str) -> SequenceUnknown:
    return SequenceUnknown(
        topic=batch.key.topic,
        queue=batch.key.queue_id,
        sequence=batch.first_sequence,
        what=what,
    )
