"""Append path: writes batches to the log in arrival order, acknowledges each once it is durable.

Invariants:
1. No `await` separates the append of a batch from its entry in `_pending`. So `_pending` has the
   order of the log, and one commit acknowledges a prefix.
2. After a failed sync no batch is acknowledged any more.
3. For a batch of an idempotent producer, no `await` separates the search for stored messages, the
   append and the entry in the ledger. If two streams repeat a batch, the second finds the first,
   synced or not.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rockoon_broker.batch_columns import columns_of
from rockoon_broker.clock import Clock, SteadyClock
from rockoon_broker.idempotence.ledger import Run, Runs, SequenceLedger
from rockoon_broker.store import errors as store_errors
from rockoon_broker.store.appender import Appended
from rockoon_broker.store.log.batch import AppendBatch, SequencedBatch, SequenceKey
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

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """Limits of one batch."""

    batch_bytes_max: int
    batch_messages_max: int
    body_bytes_max: int
    properties_bytes_max: int


class Durability(asyncio.Future["RockoonError | None"]):
    """Future of appended batches: None once they are durable, or the error that prevents it.

    Attributes:
        batches: number of batches.
        on_settled: callback, run as soon as the result is known and one loop iteration before
            awaiting tasks; must not raise.
    """

    batches = 1
    on_settled: Callable[[RockoonError | None], None] | None = None

    def settle(self, refusal: RockoonError | None) -> None:
        """Set the result, unless the waiting task has been cancelled."""
        if not self.done():
            self.set_result(refusal)
            # The callback refers to an object that refers to this future: break the cycle.
            on_settled, self.on_settled = self.on_settled, None
            if on_settled is not None:
                on_settled(refusal)


@light_dataclass
class AppendResult:
    """Positions of an appended batch."""

    runs: Runs
    """Positions of the messages in their order. Several runs: the batch repeats messages that were
    stored in several appends, or has delayed messages."""
    durable: Durability | None
    """None if the batch is durable already."""

    @property
    def first(self) -> Run:
        """The run with the first message."""
        return self.runs[0]


GroupedBatch = tuple[AppendBatch, list[AppendResult | None], int]
"""A batch of a group, the results of its shipment (the batches of one gRPC message), and the index
of its result there."""


class Appends:
    """Appends to a store. Used by the event loop's thread only.

    Args:
        store: open.
        limits: limits of one batch.
        sequences: stored sequences of idempotent producers.
        clock: store timestamps, and monotonic time for the waits.
        waits_for_sync: acknowledgements wait for a sync (flush = sync).
        arrived: called for each queue with new visible messages.
        store_changed: rung for each append, before readers see the batch.
        check_may_append: called right before each append; raises if appends are not allowed now.

    Attributes:
        after_confirmed: functions that `confirmed` calls after it has replied to all waiting
            producers; None while `confirmed` does not run.
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
        check_may_append: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self.use_limits(limits)
        self._sequences = sequences
        self._clock = clock
        self.store_clock = SteadyClock(clock, store.runs.newest_ms)
        self._waits_for_sync = waits_for_sync
        self._store_host = encode_host(*store.settings.store_host)
        self._arrived = arrived
        self._store_changed = store_changed
        self._check_may_append = check_may_append
        # Batches that wait for their commit: end offset, future, time of the append in seconds.
        self._pending: deque[tuple[int, Durability, float]] = deque()
        self._loop = asyncio.get_running_loop()
        # Set after each commit, which may have made room, and by `failed`. A task clears it before
        # it waits.
        self._room = asyncio.Event()
        self._failure: RockoonError | None = None
        self.after_confirmed: list[Callable[[], None]] | None = None
        self.messages = 0
        self.bytes = 0
        self.received = Flow()
        self.sync_waits = SyncWaits()

    async def append(self, batch: AppendBatch, check: Callable[[], None]) -> AppendResult:
        """Append a batch to the log; waits only while too many bytes wait to be committed.

        A call that is cancelled while it waits has appended nothing.

        Args:
            batch: the batch; batches of the broker itself have no sequence numbers.
            check: raises if the queue is not writable. Called again after each wait: messages that
                are appended to a deleted topic would reappear in a new topic of its name.

        Raises:
            RockoonError: the batch is refused, or the store is not writable; nothing was appended.
        """
        if not batch.internal:
            self._check(batch)
        if batch.sequenced is not None:
            check_sequences(batch.sequenced, batch)
        while True:
            # After each wait: the topic may be deleted now.
            check()
            self._check_may_append()
            try:
                if batch.sequenced is not None:
                    return self._append_sequenced(batch.sequenced, batch)
                return self._append_batch(batch)
            except store_errors.StoreBusy:
                # There is no `await` between the refusal and `clear`: no `set` of a commit is lost.
                self._room.clear()
                await self._room.wait()

    def append_group(self, group: Sequence[GroupedBatch]) -> None:
        """Append clients' batches by one write, without waiting.

        If a result stays None, the batch is not written: `append` waits or raises the reason. Of
        two batches with the same sequence key only the first is written: once it is in the log,
        `append` finds out whether the second is a repeat.

        Args:
            group: batches to writable queues, in the order of arrival. Each shipment gets its own
                `Durability`: if its stream is cancelled, the other shipments still get theirs.
        """
        if self._failure is not None:
            return
        sequences: set[SequenceKey] = set()
        fit: list[GroupedBatch] = []
        batches: list[AppendBatch] = []
        try:
            self._check_may_append()
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
        except (RockoonError, store_errors.StorageError):
            return
        end = count = 0
        for where in appended:
            if where is not None:
                end = where.end_offset
                count += 1
        if not end:
            return
        self._store_changed.ring()
        is_durable = self._confirm_if_synced(end, count)
        # By the id of the shipment's result list.
        waits: dict[int, Durability] = {}
        for (batch, results, index), where in zip(fit, appended, strict=True):
            if where is None:
                continue
            durable = None
            if not is_durable:
                durable = waits.get(id(results))
                if durable is None:
                    durable = waits[id(results)] = self._wait_for(end)
                else:
                    durable.batches += 1
            sequenced = batch.sequenced
            if sequenced is None:
                run = self._record_appended(batch, where, 0)
            else:
                run = self._record_appended(batch, where, sequenced.first_sequence)
                self._sequences.record(sequenced.key, run)
            results[index] = AppendResult((run,), durable)

    def _is_new(self, sequenced: SequencedBatch, batch: AppendBatch, now_ms: int) -> bool:
        """Return whether a batch has valid sequence numbers and no message that is stored."""
        try:
            check_sequences(sequenced, batch)
            return not self._sequences.stored(sequenced, len(batch.sizes), now_ms)
        except RockoonError:
            return False

    def change_topics(
        self, change: TopicChange
    ) -> tuple[int, "asyncio.Future[RockoonError | None]"]:
        """Append a record with a change of the log's topics; see `Store.change_topics`.

        Returns:
            The end offset of the record, and a future as in `AppendResult.durable`.

        Raises:
            NotEnoughReplicas, StoreNotWritable: retriable; nothing was appended.
            RockoonError: not retriable.
        """
        self._check_may_append()
        try:
            appended = self._append_now(self._store.change_topics, change)
        except store_errors.BatchTooLarge as failure:
            raise StoreNotWritable(reason=str(failure)) from failure
        return appended.end_offset, self._wait_for(appended.end_offset)

    def confirmed(self, end: int) -> None:
        """Commit the log up to `end`: make it visible to readers, and acknowledge its batches.

        Args:
            end: physical offset up to which this copy has synced the log, or a quorum has it.
        """
        if self._failure is not None:
            return
        try:
            # Before the acknowledgements: a producer must be able to read a message that it knows
            # is stored.
            advanced = self._store.confirm(end)
        except (store_errors.StoreSyncFailed, store_errors.StoreClosed):
            # A later sync has failed. `failed` will be called, and no batch may be acknowledged.
            return
        callbacks = self.after_confirmed = []
        try:
            self._notify(advanced, end)
        finally:
            self.after_confirmed = None
        for callback in callbacks:
            callback()

    def _notify(self, advanced: Sequence[QueueKey], end: int) -> None:
        """Notify readers of queues with new messages; acknowledge batches up to `end`."""
        for queue in advanced:
            self._arrived(queue)
        pending = self._pending
        now = self._clock.monotonic_seconds()
        # Ends in `_pending` ascend: a batch is appended at the end of the log, and a repeated batch
        # waits for the end of the log too.
        while pending and pending[0][0] <= end:
            _, durable, appended_at = pending.popleft()
            self.sync_waits.record(durable.batches, now - appended_at, now)
            durable.settle(None)
        self._room.set()

    def failed(self, reason: RockoonError) -> None:
        """Refuse all waiting and later batches: a sync has failed, or another replica leads."""
        # Permanent: the next sync would succeed although this one has lost pages.
        self._failure = reason
        while self._pending:
            self._pending.popleft()[1].settle(reason)
        # No later commit wakes the tasks that wait for room: now they raise the reason.
        self._room.set()

    def use_limits(self, limits: AppendLimits) -> None:
        """Use other limits for the following batches."""
        self._limits = limits
        self._batch_bytes_max = limits.batch_bytes_max
        self._lengths_bytes_max = 4 * limits.batch_messages_max

    def check_limits(self, batch: AppendBatch) -> None:
        """Check the limits of a client's batch whose records the broker encodes again: delayed
        messages and half messages.

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
        """Raise StoreNotWritable while the store refuses clients' messages.

        Called for delayed messages and half messages. The broker appends them as internal batches,
        which the store accepts even if only the reserve of a full disk is left.
        """
        if reason := self._store.client_refusal_reason:
            raise self._not_writable(reason)

    def _not_writable(self, reason: str) -> StoreNotWritable:
        cause = {"cause": PRESSURE} if self._store.is_under_pressure else {}
        return StoreNotWritable(reason=reason, **cause)

    def _check(self, batch: AppendBatch) -> None:
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

    def _append_batch(self, batch: AppendBatch, first_sequence: int = 0) -> AppendResult:
        try:
            appended = self._append_now(self._store.append, batch)
        except BatchError as failure:
            raise self._refusal(failure) from failure
        except store_errors.BatchTooLarge as failure:
            raise MalformedBatch(index=0, reason=str(failure)) from failure
        except store_errors.UnstorableTopic as failure:
            raise InvalidTopicName(topic=batch.topic, reason=str(failure)) from failure
        run = self._record_appended(batch, appended, first_sequence)
        end = appended.end_offset
        return AppendResult(
            (run,), None if self._confirm_if_synced(end, 1) else self._wait_for(end)
        )

    def _record_appended(self, batch: AppendBatch, appended: Appended, first_sequence: int) -> Run:
        """Count an appended batch; return the positions of its messages."""
        self.messages += appended.count
        self.bytes += appended.end_offset - appended.first_physical_offset
        if not batch.internal:
            flow = self.received
            flow.add(batch.topic, NORMAL, appended.count, batch.frames_bytes, batch.lengths)
        if not self._waits_for_sync:
            # The batch is visible now. With flush = sync it becomes visible in `confirmed`.
            self._arrived((batch.topic, batch.queue_id))
        # `Run(...)` would be another Python call.
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

    def _append_now(self, append: Callable[[Input, int], Output], value: Input) -> Output:
        """Call an append function of the store with the store's time.

        Raises:
            RockoonError: the store is not writable.
        """
        if self._failure is not None:
            raise self._failure
        try:
            appended = append(value, self.store_clock.now_ms())
        except store_errors.AppendRefused as failure:
            raise self._not_writable(str(failure)) from failure
        except store_errors.AppendFailed as failure:
            raise StoreNotWritable(reason=str(failure)) from failure
        except store_errors.StoreSyncFailed as failure:
            raise StoreFailed(reason=str(failure)) from failure
        except store_errors.StoreClosed as failure:
            raise NotReady(service="the broker", reason="it is stopping") from failure
        self._store_changed.ring()
        return appended

    def _append_sequenced(self, sequenced: SequencedBatch, batch: AppendBatch) -> AppendResult:
        """Append the messages of a batch that are not stored yet."""
        if self._failure is not None:
            raise self._failure
        sizes = batch.sizes
        # There is no `await` from here to `record`: two streams with the same batch cannot both
        # find it new.
        runs = self._sequences.stored(sequenced, len(sizes), self.store_clock.now_ms())
        stored = sum(run.messages for run in runs)
        if stored == len(sizes):
            # The repeat waits until the whole log is durable: the end offset of the stored batch is
            # not known any more.
            whole_log = self._wait_for(self._pending[-1][0]) if self._pending else None
            return AppendResult(runs, whole_log)
        if stored:
            rest = batch.frames[int(sizes[:stored].sum()) :]
            batch = replace(batch, source=rest, bounds=None, lengths=batch.lengths[4 * stored :])
        result = self._append_batch(batch, sequenced.first_sequence + stored)
        # After the append: a batch that the log refused must not count as stored, because its
        # repeat would be acknowledged.
        self._sequences.record(sequenced.key, result.first)
        return replace(result, runs=(*runs, *result.runs)) if runs else result

    def _confirm_if_synced(self, end: int, batches: int) -> bool:
        """Commit the log (`confirmed`) if an append has synced it; call it right after the append.

        Args:
            end: end offset of the appended batches.
            batches: number of batches.

        Returns:
            True if the batch up to `end` may be acknowledged now: it is durable, or `flush` is
            "async".
        """
        if not self._waits_for_sync:
            return True
        if not self._store.inline_bytes_max or self._store.durable_end < end:
            return False
        # Pending batches before this one are durable as well.
        self.confirmed(end)
        now = self._clock.monotonic_seconds()
        self.sync_waits.record(batches, self._store.last_sync_seconds, now)
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


def check_sequences(sequenced: SequencedBatch, batch: AppendBatch) -> None:
    """Check that the records contain the sequence numbers of the request.

    After a restart the broker knows only those in the records.

    Raises:
        MalformedBatch: a record has another number, or the sizes are wrong.
        InvalidArgument: the producer id or a number is out of its bounds.
    """
    frames, sizes = batch.frames, batch.sizes
    # Checked before the records are found by their sizes.
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


def check_keys(batch: AppendBatch) -> None:
    """Check that each message of a batch for a compacted topic has a key.

    Args:
        batch: not checked before.

    Raises:
        KeyMissing: the property KEYS of a message is missing or blank.
        MalformedBatch: the bytes are not valid records.
    """
    columns = columns_of(batch)
    properties_lengths = np.maximum(columns.properties_lengths, 0)
    keyed = have_keys(
        batch.frames, np.cumsum(columns.lengths) - properties_lengths, properties_lengths
    )
    if not keyed.all():
        raise KeyMissing(index=int(keyed.argmin()), topic=batch.topic)
