"""Batches on their way into the log: placed in the order they come, answered when they are durable.

Invariants:
1. Placing a batch and noting who waits for it happen without a pause in between, so `_pending` is
   in the order of the log and one sync answers a prefix of it.
2. Nobody is answered by a sync that failed, nor afterwards.
3. What an idempotent producer's batch lacks is looked up, appended and noted without a pause in
   between: of two repeats on two streams the second finds the first, synced or not.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rockoon_broker.batch_columns import columns_of
from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import Run, Runs, SequenceLedger
from rockoon_broker.steady_clock import SteadyClock
from rockoon_broker.store import errors as store_errors
from rockoon_broker.store.appender import Appended
from rockoon_broker.store.log.batch import Batch, SequencedBatch, SequenceKey
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_broker.traffic import NORMAL, Flow, SyncWaits
from rockoon_core.errors import (
    PRESSURE,
    BodyTooLarge,
    InvalidArgument,
    InvalidTopicName,
    KeyMissing,
    MalformedBatch,
    NotReady,
    PropertiesTooLarge,
    RockoonError,
    StoreFailed,
    StoreNotWritable,
)
from rockoon_core.light_dataclass import light_dataclass
from rockoon_format.batch import BatchError, BatchFault
from rockoon_format.index_entries import have_keys
from rockoon_format.log_marks import TopicChange
from rockoon_format.record import RECORD_BYTES_MIN, encode_host
from rockoon_format.sequences import first_without_sequence
from rockoon_runtime.waking import Bell

What = TypeVar("What")
Placed = TypeVar("Placed")


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """What a batch must not exceed."""

    batch_bytes_max: int
    batch_messages_max: int
    body_bytes_max: int
    properties_bytes_max: int


class Durability(asyncio.Future["RockoonError | None"]):
    """Done when a batch is as durable as was promised: with None, or why it never will be.

    Attributes:
        told: called with that where it is known, a turn of the loop before who awaits it goes on;
            must not raise.
    """

    told: Callable[[RockoonError | None], None] | None = None

    def settle(self, refusal: RockoonError | None) -> None:
        """Say it, unless whoever waited has gone."""
        if not self.done():
            self.set_result(refusal)
            # It has what has this one.
            told, self.told = self.told, None
            if told is not None:
                told(refusal)


@light_dataclass
class AppendResult:
    """A batch in the log."""

    runs: Runs
    """Where its messages went, in their order: together unless they are a repeat of such as went
    apart, or wait for something."""
    durable: Durability | None
    """None when it is durable already."""

    @property
    def first(self) -> Run:
        """Where its first message went."""
        return self.runs[0]


GroupedBatch = tuple[Batch, list[AppendResult | None], int]
"""A batch of a group, the results of its sender, and the index of its result there."""


class Appends:
    """The way into a store. Used by the event loop's thread alone.

    Args:
        store: open.
        limits: of one batch.
        sequences: what idempotent producers have sent.
        clock: store timestamps.
        waits_for_sync: whether an answer has to wait for a sync (flush = sync).
        arrived: called for each queue that has new messages for its readers.
        store_changed: rung for each batch in the log, which its readers may not see yet.
        may_append: raises where nothing may be appended now; asked right before it is.

    Attributes:
        after_confirmed: within `confirmed`, functions to call once all waiting producers are
            answered; None outside it.
    """

    def __init__(
        self,
        store: Store,
        limits: AppendLimits,
        sequences: SequenceLedger,
        clock: Clock,
        *,
        waits_for_sync: bool,
        arrived: Callable[[QueueKey], None],
        store_changed: Bell,
        may_append: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._limits = limits
        self._batch_bytes_max = limits.batch_bytes_max
        self._lengths_bytes_max = 4 * limits.batch_messages_max
        self._sequences = sequences
        self._clock = clock
        self.store_clock = SteadyClock(clock, store.runs.newest_ms)
        self._waits_for_sync = waits_for_sync
        self._store_host = encode_host(*store.settings.store_host)
        self._arrived = arrived
        self._store_changed = store_changed
        self._may_append = may_append
        # End of each batch that waits for a sync, who waits, and since when.
        self._pending: deque[tuple[int, Durability, float]] = deque()
        self._loop = asyncio.get_running_loop()
        # Set whenever a sync has made room; whoever waits for room clears it first.
        self._room = asyncio.Event()
        self._failure: RockoonError | None = None
        self.after_confirmed: list[Callable[[], None]] | None = None
        self.messages = 0
        self.bytes = 0
        self.taken = Flow()
        self.sync_waits = SyncWaits()

    async def place(self, batch: Batch, check: Callable[[], None]) -> AppendResult:
        """Put a batch into the log; waits only while too much is unsynced.

        Cancelling it while it waits is safe: nothing was appended then.

        Args:
            batch: what to put there; what the broker made has no sequence numbers.
            check: raises when the queue may not be written. Asked again after every wait: what is
                appended to a topic deleted meanwhile would come back with the next of its name.

        Raises:
            RockoonError: the batch is refused, or the store takes none; nothing was appended.
        """
        if not batch.internal:
            self._check(batch)
        if batch.sequenced is not None:
            check_sequences(batch.sequenced, batch)
        while True:
            # Behind every wait: the topic may be gone by now.
            check()
            self._may_append()
            try:
                if batch.sequenced is not None:
                    return self._place_once(batch.sequenced, batch)
                return self._place(batch)
            except store_errors.StoreBusy:
                # Nothing awaits between the refusal and this, so no sync's `set` can be lost in
                # between.
                self._room.clear()
                await self._room.wait()

    def append_group(self, group: Sequence[GroupedBatch]) -> None:
        """Append clients' batches by one write, without a wait.

        A result that stays None is that of a batch that is not written: `place` waits or raises the
        reason. A second batch with the same sequence is not written either: whether it repeats the
        first one is known when the first one is in the log.

        Args:
            group: in the order of arrival, of queues that may be written. Each sender gets its own
                `Durability`: a sender that leaves cancels no other's.
        """
        if self._failure is not None:
            return
        sequences: set[SequenceKey] = set()
        fit: list[GroupedBatch] = []
        batches: list[Batch] = []
        try:
            self._may_append()
            now_ms = self.store_clock.now_ms()
            for each in group:
                batch = each[0]
                length_bytes, sequenced = len(batch.lengths), batch.sequenced
                if sequenced is not None:
                    if sequenced.key in sequences:
                        continue
                    sequences.add(sequenced.key)
                if (
                    0 < length_bytes <= self._lengths_bytes_max
                    and length_bytes % 4 == 0
                    and batch.frames_bytes <= self._batch_bytes_max
                    and (sequenced is None or self._is_new(sequenced, batch, now_ms))
                ):
                    fit.append(each)
                    batches.append(batch)
            appended = self._store.append_group(batches, now_ms) if batches else ()
        except (RockoonError, store_errors.StoreError):
            return
        end = 0
        for where in appended:
            if where is not None:
                end = where.end_offset
        if not end:
            return
        self._store_changed.ring()
        is_durable = self._is_durable(end)
        # By the results of a sender, which only it has.
        waits: dict[int, Durability] = {}
        for (batch, results, index), where in zip(fit, appended, strict=True):
            if where is None:
                continue
            durable = None
            if not is_durable and (durable := waits.get(id(results))) is None:
                durable = waits[id(results)] = self._wait_for(end)
            sequenced = batch.sequenced
            if sequenced is None:
                run = self._note_appended(batch, where, 0)
            else:
                run = self._note_appended(batch, where, sequenced.first_sequence)
                self._sequences.note(sequenced.key, run)
            results[index] = AppendResult((run,), durable)

    def _is_new(self, sequenced: SequencedBatch, batch: Batch, now_ms: int) -> bool:
        """Whether a batch has right sequence numbers, and nothing of it is stored."""
        try:
            check_sequences(sequenced, batch)
            return not self._sequences.stored(sequenced, len(batch.sizes), now_ms)
        except RockoonError:
            return False

    def change_topics(
        self, change: TopicChange
    ) -> tuple[int, "asyncio.Future[RockoonError | None]"]:
        """Append a record of which topics the log holds; see `Store.change_topics`.

        Returns:
            Where it ends, and what is done when it is durable; as of `AppendResult`.

        Raises:
            NotEnoughReplicas, StoreNotWritable: for now; nothing was appended.
            RockoonError: for good.
        """
        self._may_append()
        try:
            appended = self._appended(self._store.change_topics, change)
        except store_errors.BatchTooLarge as failure:
            raise StoreNotWritable(reason=str(failure)) from failure
        return appended.end_offset, self._wait_for(appended.end_offset)

    def confirmed(self, end: int) -> None:
        """The log is durable up to `end`: let readers see it, answer who waits."""
        if self._failure is not None:
            return
        try:
            # Before anybody is answered: whoever hears that a message is stored must be able to
            # read it.
            advanced = self._store.confirm(end)
        except (store_errors.StoreFailed, store_errors.StoreClosed):
            # A sync has failed since this one: `failed` is on its way, and nobody may be answered.
            return
        callbacks = self.after_confirmed = []
        try:
            self._notify(advanced, end)
        finally:
            self.after_confirmed = None
        for callback in callbacks:
            callback()

    def _notify(self, advanced: Sequence[QueueKey], end: int) -> None:
        """Notify readers of queues with new messages; answer producers up to `end`."""
        for queue in advanced:
            self._arrived(queue)
        pending = self._pending
        now = self._clock.monotonic_seconds()
        # Ends ascend: batches are appended one after the other, and repeats wait for the last of
        # them.
        while pending and pending[0][0] <= end:
            _, durable, placed_at = pending.popleft()
            self.sync_waits.note(now - placed_at, now)
            durable.settle(None)
        self._room.set()

    def failed(self, reason: RockoonError) -> None:
        """A sync failed, or another replica leads: whoever waits or comes is told."""
        # For good: the next sync would succeed without the pages that this one lost.
        self._failure = reason
        while self._pending:
            self._pending.popleft()[1].settle(reason)
        # Those that wait for room wait for a sync, and there will be none: woken, they are refused.
        self._room.set()

    def check_limits(self, batch: Batch) -> None:
        """Refuse what a client may not send: for batches that are not stored as they came.

        Raises:
            MalformedBatch, BodyTooLarge, PropertiesTooLarge.
        """
        self._check(batch)
        columns = columns_of(batch)
        limits = self._limits
        for found, limit, refusal in (
            (columns.body_lengths, limits.body_bytes_max, BodyTooLarge),
            (columns.sent_properties_lengths, limits.properties_bytes_max, PropertiesTooLarge),
        ):
            over = np.flatnonzero(found > limit)
            if len(over):
                raise refusal(index=int(over[0]), limit=limit)

    def check_accepted(self) -> None:
        """Refuse clients' messages while the disk is full: for batches that the broker stores in
        another form, for which the store would use its reserve. Raises StoreNotWritable."""
        if reason := self._store.client_refusal_reason:
            raise self._not_writable(reason)

    def _not_writable(self, reason: str) -> StoreNotWritable:
        cause = {"cause": PRESSURE} if self._store.is_under_pressure else {}
        return StoreNotWritable(reason=reason, **cause)

    def _check(self, batch: Batch) -> None:
        size, lengths = batch.frames_bytes, batch.lengths
        if not lengths or len(lengths) % 4:
            raise MalformedBatch(index=0, reason=f"{len(lengths)} bytes of record lengths")
        count = len(lengths) // 4
        if count > self._limits.batch_messages_max:
            most = self._limits.batch_messages_max
            raise MalformedBatch(index=0, reason=f"{count} messages, more than {most}")
        if size > self._limits.batch_bytes_max:
            most = self._limits.batch_bytes_max
            raise MalformedBatch(index=0, reason=f"{size} bytes, more than {most}")

    def _place(self, batch: Batch, first_sequence: int = 0) -> AppendResult:
        try:
            appended = self._appended(self._store.append, batch)
        except BatchError as failure:
            raise self._refusal(failure) from failure
        except store_errors.BatchTooLarge as failure:
            raise MalformedBatch(index=0, reason=str(failure)) from failure
        except store_errors.UnstorableTopic as failure:
            raise InvalidTopicName(topic=batch.topic, reason=str(failure)) from failure
        run = self._note_appended(batch, appended, first_sequence)
        end = appended.end_offset
        return AppendResult((run,), None if self._is_durable(end) else self._wait_for(end))

    def _note_appended(self, batch: Batch, appended: Appended, first_sequence: int) -> Run:
        """Count a batch in the log, and say where its messages are."""
        self.messages += appended.count
        self.bytes += appended.end_offset - appended.first_physical_offset
        if not batch.internal:
            self.taken.add(batch.topic, NORMAL, appended.count, batch.frames_bytes, batch.lengths)
        if not self._waits_for_sync:
            # Readers see it now. With flush = sync they do when it is durable: see `confirmed`.
            self._arrived((batch.topic, batch.queue_id))
        # Fields in their order: `Run(...)` would be another Python call.
        return tuple.__new__(
            Run,
            (
                first_sequence,
                appended.count,
                appended.first_queue_offset,
                appended.first_physical_offset,
                appended.store_timestamp_ms,
                self._store_host,
            ),
        )

    def _appended(self, append: Callable[[What, int], Placed], what: What) -> Placed:
        """Append something at the store's time.

        Raises:
            RockoonError: the store takes nothing.
        """
        if self._failure is not None:
            raise self._failure
        try:
            appended = append(what, self.store_clock.now_ms())
        except store_errors.StoreNotWritable as failure:
            raise self._not_writable(str(failure)) from failure
        except store_errors.AppendFailed as failure:
            raise StoreNotWritable(reason=str(failure)) from failure
        except store_errors.StoreFailed as failure:
            raise StoreFailed(reason=str(failure)) from failure
        except store_errors.StoreClosed as failure:
            raise NotReady(service="the broker", reason="it is stopping") from failure
        self._store_changed.ring()
        return appended

    def _place_once(self, sequenced: SequencedBatch, batch: Batch) -> AppendResult:
        """Append what is not stored yet of a batch."""
        if self._failure is not None:
            raise self._failure
        sizes = batch.sizes
        # From here to `note` nothing awaits: two streams with the same batch cannot both find it
        # new.
        runs = self._sequences.stored(sequenced, len(sizes), self.store_clock.now_ms())
        stored = sum(run.messages for run in runs)
        if stored == len(sizes):
            # Durable when all that is in the log now is: whether the sync under way covers this
            # batch is not known any more.
            whole_log = self._wait_for(self._pending[-1][0]) if self._pending else None
            return AppendResult(runs, whole_log)
        if stored:
            rest = batch.frames[int(sizes[:stored].sum()) :]
            batch = replace(batch, source=rest, bounds=None, lengths=batch.lengths[4 * stored :])
        placed = self._place(batch, sequenced.first_sequence + stored)
        # Not before the append: a batch that the log refused would count as stored, and its repeat
        # be acknowledged without being there.
        self._sequences.note(sequenced.key, placed.first)
        return replace(placed, runs=(*runs, *placed.runs)) if runs else placed

    def _is_durable(self, end: int) -> bool:
        """Whether the log is as durable as was promised up to `end`, right after an append."""
        if not self._waits_for_sync:
            return True
        if not self._store.inline_bytes_max or self._store.durable_end < end:
            return False
        # The append has synced it; the batches before it, if some wait, are durable as well.
        self.confirmed(end)
        self.sync_waits.note(self._store.last_sync_seconds, self._clock.monotonic_seconds())
        return True

    def _wait_for(self, end: int) -> Durability:
        durable = Durability(loop=self._loop)
        self._pending.append((end, durable, self._clock.monotonic_seconds()))
        return durable

    def _refusal(self, failure: BatchError) -> RockoonError:
        if failure.reason is BatchFault.BODY_TOO_LARGE:
            return BodyTooLarge(index=failure.index, limit=self._limits.body_bytes_max)
        if failure.reason is BatchFault.PROPERTIES_TOO_LARGE:
            return PropertiesTooLarge(index=failure.index, limit=self._limits.properties_bytes_max)
        return MalformedBatch(index=failure.index, reason=str(failure).partition(": ")[2])


def check_sequences(sequenced: SequencedBatch, batch: Batch) -> None:
    """Raise unless the records say the same of themselves: a later start goes by what they say."""
    frames, sizes = batch.frames, batch.sizes
    # Before the records are looked at, which the sizes lead to.
    if int(sizes.min()) < RECORD_BYTES_MIN or int(sizes.sum(dtype=np.int64)) != len(frames):
        raise MalformedBatch(index=0, reason="record lengths do not add up")
    try:
        wrong = first_without_sequence(
            frames, sizes, sequenced.key.producer_id, sequenced.first_sequence
        )
    except ValueError as failure:
        raise InvalidArgument(reason=str(failure)) from failure
    if wrong is not None:
        number = sequenced.first_sequence + wrong
        raise MalformedBatch(index=wrong, reason=f"it does not end with sequence {number}")


def check_keys(batch: Batch) -> None:
    """Refuse messages without a key, for a compacted topic: it could not tell which they replace.

    Args:
        batch: not checked yet.

    Raises:
        KeyMissing: the property KEYS of a message is missing or blank.
        MalformedBatch: these are no records.
    """
    columns = columns_of(batch)
    properties_lengths = np.maximum(columns.properties_lengths, 0)
    keyed = have_keys(
        batch.frames, np.cumsum(columns.lengths) - properties_lengths, properties_lengths
    )
    if not keyed.all():
        raise KeyMissing(index=int(keyed.argmin()), topic=batch.topic)
