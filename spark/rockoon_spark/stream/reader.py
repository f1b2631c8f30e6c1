"""`spark.readStream.format("rockoon")`: topics of a live cluster as an endless DataFrame.

    spark.readStream.format("rockoon").option("endpoint", "127.0.0.1:9876")
        .option("topics", "orders").option("consumerGroup", "billing-export").load()
        .writeStream.option("checkpointLocation", "/data/checkpoints/billing")...

The rows are the same as with `spark.read`. The rules of consumers apply: write-only topics are not
read, and internal topics of the brokers only with an option. Queues that are created while the
stream runs are read from their beginning.

Options:
    endpoint: nameservers, "host:port" separated by commas.
    topics (or topic, subscribe), topicPattern, subscribePattern, or assign: as for `spark.read`.
    includeInternalTopics, columns, includeHeaders, and the options for TLS and the access key: as
        for `spark.read`.
    startingOffsets: start positions without a checkpoint. "latest" (default), "earliest", "group"
        (the consumer group's progress), or {"topic": {"0": 17, "broker-a:1": 5}} by queue, on every
        broker or on one, with -2 for earliest and -1 for latest; then other queues are read from
        their beginning.
    startingTimestamp: start position by store time, as epoch milliseconds or ISO 8601.
    startingOffsetsByTimestamp: the same by queue; other queues are read from their beginning.
    minOffsetsPerTrigger: number of messages for which a batch waits, at most maxTriggerDelay (15m
        by default). The first batch, and triggers that read all available messages, do not wait.
    maxOffsetsPerTrigger: maximum number of messages in a batch; it is divided among the queues in
        proportion to their unread messages.
    maxBytesPerTrigger: approximate maximum size of a batch, at least one message. The number of
        messages is computed from the sizes of the next messages of each queue.
    minPartitions: minimum number of tasks, if there are as many messages; by default one task per
        queue.
    failOnDataLoss: "true" (default), or "false": messages deleted by retention before they were
        read, messages lost in a crash, and deleted topics are reported by a warning.
    consumerGroup: the group for which progress is committed, shown by `rockoon lag`.

*The checkpoint decides.* For each queue it contains the offset and the create revision, so a
recreated queue is recognized as another one. A batch that was planned but not finished is repeated
with exactly the planned offsets.

*The group's progress* follows the checkpoint. When Spark plans a batch, or checks for one, it
passes the offsets of the finished batches, and these are committed; with `Trigger.AvailableNow`
Spark also checks at the end of a run. With `Trigger.ProcessingTime` a batch is committed at the
next trigger; with `rockoon_spark.stream.listener`, as soon as it ends. If a query is stopped before
Spark checks again, the next start commits its last batch. The group's progress never moves back.

*A group belongs to one stream.* If live consumers read with it, the stream does not start. If it is
reset, or a consumer reads with it, the next commit is fenced and the stream ends with an error that
explains this; a reset does not change the checkpoint. If the stream is started again, it continues
at the checkpoint and commits for the group. To continue at the group's progress, start with a new
checkpoint and startingOffsets=group.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.input_partition import LogInputPartition
from rockoon_spark.source.log_source import DamagedRange, DataLost, rows_of_schema
from rockoon_spark.source.queue_partition import BatchRange
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.options import StreamOptions
from rockoon_spark.stream.plan import (
    INITIAL,
    Backlog,
    QueuePosition,
    StreamOffsets,
    StreamQueue,
    backlog,
    cut,
    ends_after,
    messages_of_bytes,
    ranges,
    share,
)

log = logging.getLogger(__name__)

# Minimum interval between queries of the queues: without a trigger, Spark polls every 10 ms.
_POLL_INTERVAL_SECONDS = 0.1


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a process of the driver, and reads them in processes of tasks.

    Spark calls `latestOffset(start)` only after all batches before `start` have finished, at the
    latest with the next trigger, and also after the last batch of AvailableNow. Spark calls
    `commit` later than that, and not for the last batch of a run; it may not call `stop` at all.
    """

    def __init__(self, given: Mapping[str, str], schema: pa.Schema | None = None) -> None:
        """Store Spark's options and schema, which are parsed later; see `_options`."""
        self._given = dict(given)
        self._schema = schema
        # Created on first use in the driver; tasks have none.
        self._cluster: StreamCluster | None = None
        # With AvailableNow: the queues and their ends at the start of the run.
        self._targets: Mapping[MessageQueue, StreamQueue] | None = None
        self._polled_at = -_POLL_INTERVAL_SECONDS
        self._latest: Mapping[MessageQueue, StreamQueue] = {}
        # Time since which messages can wait for more.
        self._batch_at = -math.inf

    def initialOffset(self) -> dict[str, Any]:
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark passes this to latestOffset, or ReadAllAvailable if the trigger reads everything.
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.messages_min > 1:
            return ReadMinRows(self._options.messages_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._planner.queues()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        finished = StreamOffsets.parse(start)
        now = self._latest = self._poll()
        if finished.is_initial:
            self._planner.check_names(now)
        # Before a batch is planned, so that a fenced or used group ends the stream now, not after
        # another batch.
        self._planner.join_group(now)
        self._planner.commit(
            {
                queue: position.offset
                for queue, position in finished.queues.items()
                if queue in now and now[queue].create_revision == position.create_revision
            }
        )
        starting = self._planner.starting(now) if finished.is_initial else {}
        # Queues that the options no longer select are not reported as lost.
        wanted = finished.of_queues(self._options.selection.wants_queue)
        found = backlog(wanted, now, starting)
        # Before Spark writes the new end to the checkpoint, because the end is after the gap.
        self._report(found.losses)
        if self._waits_for_more(finished, found, limit):
            return start
        end = ends_after(finished, found, self._limited(finished, found, limit))
        if end is finished:
            # The same object: Spark compares texts, and another text would start an empty batch.
            return start
        # For listeners of the query's progress.
        group = {"group": self._options.group} if self._options.group else {}
        return {**end.to_json(), **group}

    def _waits_for_more(self, finished: StreamOffsets, found: Backlog, limit: ReadLimit) -> bool:
        """True if the next batch waits for minOffsetsPerTrigger messages.

        The first batch of a query does not wait, nor does a trigger that reads all available
        messages.
        """
        options, now = self._options, time.monotonic()
        waits = (
            not finished.is_initial
            and self._targets is None
            and not isinstance(limit, ReadAllAvailable)
            and sum(found.messages.values()) < options.messages_min
            and now < self._batch_at + options.delay_seconds_max
        )
        if not waits:
            self._batch_at = now
        return waits

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = {
            queue: QueuePosition(each.end, each.create_revision)
            for queue, each in self._latest.items()
        }
        return StreamOffsets(ends).to_json() if ends else None

    def _poll(self) -> Mapping[MessageQueue, StreamQueue]:
        if self._targets is not None:
            return self._targets
        time.sleep(max(self._polled_at + _POLL_INTERVAL_SECONDS - time.monotonic(), 0))
        now = self._planner.queues()
        self._polled_at = time.monotonic()
        return now

    def _limited(
        self, finished: StreamOffsets, found: Backlog, limit: ReadLimit
    ) -> Mapping[MessageQueue, int]:
        """Return the number of messages of each queue in the batch."""
        options = self._options
        total = sum(found.messages.values())
        if isinstance(limit, ReadAllAvailable) or not total:
            return found.messages
        messages_max = options.messages_max or total
        if options.bytes_max is not None:
            sizes = self._planner.message_bytes(
                {queue: found.begins[queue].offset for queue, n in found.messages.items() if n}
            )
            fitting = messages_of_bytes(found.messages, sizes, options.bytes_max)
            messages_max = min(messages_max, fitting)
        turn = sum(position.offset for position in finished.queues.values())
        return share(found.messages, messages_max, turn)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = ranges(StreamOffsets.parse(start), StreamOffsets.parse(end))
        planned = self._existing(planned, StreamOffsets.parse(end))
        # Computed only from checkpointed offsets, so that a repeated batch has the same rows.
        cuts = cut(planned, self._options.partitions_min)
        columns = self._options.schema.names
        return [LogInputPartition(each) for each in self._planner.partitions(cuts, columns)]

    def _existing(self, planned: list[BatchRange], end: StreamOffsets) -> list[BatchRange]:
        """Return the ranges of queues that still exist; report the loss of the others.

        A batch can be repeated long after it was planned.
        """
        create_revisions = self._planner.create_revisions(
            sorted({each.queue.topic for each in planned})
        )
        deleted = [
            each
            for each in planned
            if create_revisions.get(each.queue) != end.queues[each.queue].create_revision
        ]
        self._report(
            [
                f"queue {each.queue} was deleted, but offsets {each.start} to {each.stop} are in a"
                " planned batch"
                for each in deleted
            ]
        )
        return [each for each in planned if each not in deleted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogInputPartition)
        yield from rows_of_schema(
            partition.partition.read(), EVERYTHING, self._options.schema, self._report_damage
        )

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @cached_property
    def _options(self) -> StreamOptions:
        """The options of the stream, parsed when Spark calls a method of the reader.

        They are not parsed in `DataSource.streamReader`, because the user would not see its
        exception: PySpark's runner raises UnboundLocalError for its own variable `reader` instead.

        Raises:
            OptionError: an option is missing, unknown or wrong.
        """
        return StreamOptions.parse(self._given, self._schema)

    @property
    def _planner(self) -> StreamCluster:
        if self._cluster is None:
            self._cluster = StreamCluster(self._options)
        return self._cluster

    def _report_damage(self, damage: DamagedRange) -> None:
        self._report([str(damage)])

    def _report(self, losses: Sequence[str]) -> None:
        if losses and self._options.fails_on_data_loss:
            raise DataLost(
                f"{'; '.join(losses)}. Option failOnDataLoss=false continues with a warning"
            )
        for sentence in losses:
            log.warning("%s", sentence)
