"""`rockoon table sync`: append each message of a topic to an Iceberg table exactly once.

A step reads the offsets from the table, reads the messages that follow, and commits them with the
new offsets (`synced_table`). If a step fails at any point, the next one reads the offsets again.

If there is a second table, for undecodable bodies, a step commits to the second table first. A step
without undecodable bodies commits only to the first table. Each table has its own offsets. If a
writer dies between the two commits, the second table is ahead. The next step reads the positions of
the messages in the second table, and decodes only the other messages. So at every time, each
message below the offsets of the first table is in exactly one of the two tables.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Self, TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema

from rockoon.errors import RockoonError
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import redacted
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.log_source import (
    BrokerAway,
    DamagedRange,
    DataLost,
    rows,
)
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.options import StreamOptions
from rockoon_spark.stream.plan import (
    QueuePosition,
    StreamOffsets,
    StreamQueue,
    backlog,
    ends_after,
    messages_of_bytes,
    ranges,
    share,
)
from rockoon_spark.tables.rows import (
    ERROR,
    MESSAGE_COLUMNS,
    RAW,
    TableRows,
    Undecoded,
    by_store_date,
    raw_schema,
)
from rockoon_spark.tables.synced_table import (
    POSITION,
    UNDECODED,
    OtherCommit,
    Position,
    SyncedTable,
    TableError,
    is_temporary,
    open_catalog,
)

log = limited(logging.getLogger(__name__))

# Size of the rows of a commit, which are in memory together. A commit may exceed it by the rows of
# one reply of a broker.
COMMIT_BYTES_MAX = 64 << 20
ONCE_RETRY_SECONDS = 60.0

_AFTER_FENCE = (
    "The table's offsets decide where the next run continues; it commits them for the group. To"
    " continue at the group's progress, use a new table"
)


Result = TypeVar("Result")


class Stopped(Exception):
    """The caller has stopped the run; nothing of the current step was committed."""


class OutdatedPlan(Exception):
    """The log no longer has the offsets of a step; nothing of the step was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Settings of a run.

    Args:
        topic: its name.
        stream: further options of `spark.readStream`: endpoint, startingOffsets, consumerGroup.
        catalog: see `open_catalog`.
        properties: properties of the catalogue; see `open_catalog`.
        table: "namespace.table".
        errors_table: table for bodies that cannot be decoded; empty ends the run at one.
        form: RAW or JSON.
        creates: True to create missing tables.
        commit_messages_max: maximum number of messages in a commit.
        allows_data_loss: True to continue after lost or damaged messages.
    """

    topic: str
    stream: Mapping[str, str]
    catalog: str
    properties: Mapping[str, str]
    table: str
    errors_table: str = ""
    form: str = RAW
    creates: bool = False
    commit_messages_max: int = 1_000_000
    allows_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class TableCommit:
    """Messages that a step has committed.

    Args:
        messages: number of rows in the table.
        undecoded: number of rows in the table of undecoded bodies.
        offsets: next offset of each queue.
        losses: sentences about lost messages.
    """

    messages: int
    undecoded: int
    offsets: StreamOffsets
    losses: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TableQueueLag:
    """Messages of a queue that a table does not have.

    Args:
        queue: the queue.
        table_offset: offset up to which the table has the queue; None without any.
        end: offset after the newest message.
        lag: number of messages.
        lost: number of missing messages that retention has deleted.
        committed_ms: time of the last commit, epoch milliseconds; None if unknown.
    """

    queue: MessageQueue
    table_offset: int | None
    end: int
    lag: int
    lost: int
    committed_ms: int | None


@dataclass(slots=True)
class _Read:
    """Messages of a step.

    Args:
        end: next offset of each queue; lower than planned if the rows are larger than estimated.
        rows: of decoded messages.
        undecoded: rows of the other messages.
        size: of both kinds of rows, in bytes.
    """

    end: StreamOffsets
    rows: list[pa.Table]
    undecoded: list[pa.Table] = field(default_factory=list)
    size: int = 0

    def add(self, decoded: pa.Table, undecoded: pa.Table | None) -> None:
        self.rows.append(decoded)
        if undecoded is not None:
            self.undecoded.append(undecoded)
        self.size += sum(each.nbytes for each in (decoded, undecoded) if each is not None)

    def end_at(self, queue: MessageQueue, offset: int) -> None:
        """Set the next offset of a queue."""
        position = replace(self.end.queues[queue], offset=offset)
        self.end = StreamOffsets({**self.end.queues, queue: position})


class TableSync:
    """Synchronizes a table with a topic. Used by one thread.

    Args:
        settings: settings of the run.
        stop: ends the run when it is set.

    Raises:
        TableError: a table cannot be used.
        OptionError: an option is invalid.
        RockoonError: no nameserver answers.
    """

    def __init__(self, settings: SyncSettings, stop: Event) -> None:
        self._settings = settings
        self._stop = stop
        given = {**settings.stream, "topics": settings.topic}
        given["failOnDataLoss"] = "false" if settings.allows_data_loss else "true"
        self._options = StreamOptions.parse(given)
        self._errors: SyncedTable | None = None
        self._resources = ExitStack()
        self._losses: list[str] = []

    def __enter__(self) -> Self:
        self._cluster = StreamCluster(self._options, _AFTER_FENCE)
        self._resources.callback(self._cluster.close)
        try:
            self._cluster_id = self._cluster.cluster_id()
            queues = self._repeated(self._cluster.queues, ONCE_RETRY_SECONDS)
            self._cluster.check_names(queues)
            self._repeated(self._open_tables, ONCE_RETRY_SECONDS)
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _open_tables(self) -> None:
        settings = self._settings
        catalog = open_catalog(settings.catalog, dict(settings.properties))
        self._main = SyncedTable(catalog, settings.table, settings.topic)
        self._prepare(self._main, raw_schema(with_error=False), may_create=settings.form == RAW)
        if settings.errors_table:
            self._errors = SyncedTable(catalog, settings.errors_table, settings.topic, UNDECODED)
            self._prepare(self._errors, raw_schema(with_error=True), may_create=True)

    def _prepare(self, table: SyncedTable, schema: Schema, *, may_create: bool) -> None:
        if table.load_if_exists():
            return
        if not may_create:
            raise TableError(
                f"table {table.name} does not exist: create it with the columns of the bodies"
            )
        if not self._settings.creates:
            raise TableError(f"table {table.name} does not exist: create it, or add --create")
        table.create(schema, by_store_date(schema))
        table.load()

    def run(self, report: Callable[[TableCommit], None], *, interval_seconds: float | None) -> None:
        """Commit all messages that the topic has now, and later ones.

        Args:
            report: called after each commit.
            interval_seconds: seconds from one round to the next; None ends after one round. Each
                round commits the messages that the topic had at its start.

        Raises:
            Stopped: `stop` was set.
            UnusableTable, UnsupportedColumn, DataLost, TableError, RockoonError, Exception: the run
                cannot continue, or failures that may pass lasted for ONCE_RETRY_SECONDS. Without an
                end, they are repeated.
        """
        # Checked before the first message is there.
        TableRows(self._main.schema, self._settings.form)
        if self._errors is not None:
            self._errors.check_positions()
        patience = ONCE_RETRY_SECONDS if interval_seconds is None else math.inf
        while True:
            began = time.monotonic()
            self._round(report, patience)
            if interval_seconds is None:
                return
            self._pause(max(began + interval_seconds - time.monotonic(), 0))

    def lag(self) -> list[TableQueueLag]:
        """Return the lag of each queue of the topic.

        Raises:
            TableError, RockoonError, Exception: the table or the cluster cannot be read.
        """
        self._main.load()
        state = self._main.state(self._cluster_id)
        now = self._cluster.queues()
        found = []
        for queue, each in now.items():
            known = state.offsets.queues.get(queue)
            if known is not None and known.create_revision != each.create_revision:
                known = None
            at = each.min_offset if known is None else known.offset
            found.append(
                TableQueueLag(
                    queue,
                    None if known is None else at,
                    each.end,
                    max(each.end - at, 0),
                    max(each.min_offset - at, 0),
                    state.committed_ms,
                )
            )
        return found

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped

    def _round(self, report: Callable[[TableCommit], None], patience: float) -> None:
        targets = self._repeated(self._cluster.queues, patience)
        while (commit := self._repeated(lambda: self._step(targets), patience)) is not None:
            report(commit)

    def _repeated(self, attempt: Callable[[], Result], patience: float) -> Result:
        """Run `attempt`; repeat it after another writer's commits, and for some time after failures
        that may pass.

        Args:
            attempt: may have had its effect when it fails.
            patience: seconds.
        """
        deadline, backoff = time.monotonic() + patience, Backoff()
        while True:
            try:
                return attempt()
            except OtherCommit as error:
                log.info("%s: the offsets are read again", error)
            except Exception as error:
                if not _may_pass(error) or time.monotonic() > deadline:
                    raise
                log.warning(
                    "table %s: next attempt soon: %s", self._settings.table, redacted(error)
                )
            self._pause(backoff.next_seconds())

    def _step(self, targets: Mapping[MessageQueue, StreamQueue]) -> TableCommit | None:
        """Commit the next messages; return None if the table has all of `targets`."""
        self._refuse_stopped()
        self._main.load()
        start = self._main.state(self._cluster_id).offsets
        # Asked after the table: its offsets are never above the ends of the queues.
        now = self._cluster.queues()
        self._cluster.join_group(now)
        starting = self._cluster.starting(now) if start.is_initial else {}
        found = backlog(start, now, starting)
        self._losses = []
        for sentence in found.losses:
            self._report_loss(sentence)
        waiting = {
            queue: max(min(count, targets[queue].end - found.begins[queue].offset), 0)
            for queue, count in found.messages.items()
            if queue in targets
        }
        counts = self._limited(found.begins, waiting)
        end = ends_after(start, found, {**dict.fromkeys(found.begins, 0), **counts})
        if end is start:
            self._cluster.commit({queue: each.offset for queue, each in end.queues.items()})
            return None
        planned_losses = len(self._losses)
        read = self._read(start, end)
        end = read.end
        if len(self._losses) > planned_losses:
            self._check_exists(end)
        undecoded = self._commit_undecoded(read.undecoded, end)
        table = pa.concat_tables(read.rows)
        self._main.append(table, end, self._cluster_id, self._losses)
        self._cluster.commit({queue: each.offset for queue, each in end.queues.items()})
        return TableCommit(table.num_rows, undecoded, end, tuple(self._losses))

    def _limited(
        self, begins: Mapping[MessageQueue, QueuePosition], counts: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """Return the number of messages of each queue in the next commit."""
        offsets = {queue: begins[queue].offset for queue, count in counts.items() if count}
        if not offsets:
            return counts
        sizes = self._cluster.message_bytes(offsets)
        messages_max = messages_of_bytes(counts, sizes, COMMIT_BYTES_MAX)
        messages_max = min(messages_max, self._settings.commit_messages_max)
        return share(counts, messages_max, sum(offsets.values()))

    def _read(self, start: StreamOffsets, end: StreamOffsets) -> _Read:
        """Read the messages between two offsets of the stream, up to COMMIT_BYTES_MAX."""
        convert = TableRows(self._main.schema, self._settings.form)
        found = _Read(end, [convert.empty])
        columns = {*convert.columns, *POSITION}
        done: set[Position] = set()
        if self._errors is not None:
            columns |= {*MESSAGE_COLUMNS}
            self._errors.load()
            done = self._undecoded_before(start, end)
        for partition in self._cluster.partitions(ranges(start, end), sorted(columns)):
            queue = partition.range.queue
            if found.size >= COMMIT_BYTES_MAX:
                found.end_at(queue, partition.range.start)
                continue
            found_records = replace(partition, on_loss=self._report_loss).read()
            for batch in rows(found_records, EVERYTHING, sorted(columns), self._report_damage):
                self._refuse_stopped()
                messages = _without(batch, done)
                table, failed = convert.of(messages)
                found.add(table, self._undecoded(messages, failed) if failed else None)
                if found.size >= COMMIT_BYTES_MAX:
                    found.end_at(queue, batch.column("queue_offset")[-1].as_py() + 1)
                    break
        return found

    def _check_exists(self, end: StreamOffsets) -> None:
        """Check that the log still has the offsets of a step, after losses while it was read.

        Raises:
            OutdatedPlan: a queue was deleted, or ends at a lower offset. New messages would get the
                offsets that the step would commit.
        """
        now = self._cluster.queues()
        for queue, position in end.queues.items():
            found = now.get(queue)
            is_same = found is not None and found.create_revision == position.create_revision
            if found is None or not is_same or found.end < position.offset:
                raise OutdatedPlan(f"queue {queue} was deleted or cut while it was read")

    def _undecoded_before(self, start: StreamOffsets, end: StreamOffsets) -> set[Position]:
        """Return the next messages that the table of undecoded bodies has already."""
        assert self._errors is not None
        ahead = self._errors.state(self._cluster_id).offsets
        least, most = math.inf, 0
        for queue, position in end.queues.items():
            known = ahead.queues.get(queue)
            before = start.queues.get(queue)
            if known is None or known.create_revision != position.create_revision:
                continue
            first = position.first
            if first is None:
                first = 0 if before is None else before.offset
            if known.offset > first:
                least = min(least, first)
                most = max(most, min(known.offset, position.offset))
        return self._errors.positions(int(least), most) if most else set()

    def _undecoded(self, messages: pa.RecordBatch, failed: Sequence[Undecoded]) -> pa.Table:
        """Return rows for the table of undecoded bodies."""
        if self._errors is None:
            first = messages.slice(failed[0].index, 1).to_pylist()[0]
            raise TableError(
                f"message {first['queue_offset']} of queue {first['queue']} on {first['broker']}:"
                f" {failed[0].reason}. With --errors-table, such messages go to a second table"
            )
        chosen = messages.take(pa.array([each.index for each in failed], pa.int64()))
        found = pa.Table.from_batches([chosen]).select(list(MESSAGE_COLUMNS))
        reasons = pa.array([each.reason for each in failed], pa.string())
        return found.append_column(ERROR, reasons)

    def _commit_undecoded(self, undecoded: Sequence[pa.Table], end: StreamOffsets) -> int:
        """Commit undecoded messages, if there are any; return their number."""
        if not undecoded:
            return 0
        assert self._errors is not None
        messages = pa.concat_tables(undecoded)
        schema = self._errors.schema.as_arrow()
        absent = [name for name in schema.names if name not in messages.schema.names]
        for name in absent:
            messages = messages.append_column(
                name, pa.nulls(len(messages), schema.field(name).type)
            )
        before = self._errors.state(self._cluster_id).offsets
        self._errors.append(
            messages.select(schema.names).cast(schema), _furthest(before, end), self._cluster_id
        )
        return len(messages)

    def _report_damage(self, damage: DamagedRange) -> None:
        self._report_loss(str(damage))

    def _report_loss(self, sentence: str) -> None:
        if not self._settings.allows_data_loss:
            raise DataLost(f"{sentence}. --allow-data-loss continues without these messages")
        log.warning("%s", sentence)
        self._losses.append(sentence)

    def _refuse_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, RockoonError):
        return error.retriable
    return isinstance(error, BrokerAway | OutdatedPlan) or is_temporary(error)


def _without(batch: pa.RecordBatch, done: set[Position]) -> pa.RecordBatch:
    """Return the messages of a batch that are not in `done`."""
    if not done:
        return batch
    positions = zip(*(batch.column(name).to_pylist() for name in POSITION), strict=True)
    return batch.filter(pa.array([each not in done for each in positions], pa.bool_()))


def _furthest(before: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return for each queue of `end` the higher one of two offsets."""
    found = {}
    for queue, position in end.queues.items():
        known = before.queues.get(queue)
        found[queue] = QueuePosition(position.offset, position.create_revision)
        if known is not None and known.create_revision == position.create_revision:
            offset = max(known.offset, position.offset)
            found[queue] = replace(found[queue], offset=offset)
    return StreamOffsets(found)
