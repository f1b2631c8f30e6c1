"""`spark.readStream.format("rockoon")`: topics of a live cluster as an endless DataFrame.

    spark.readStream.format("rockoon").option("endpoint", "127.0.0.1:9876")
        .option("topics", "orders").option("consumerGroup", "billing-export").load()
        .writeStream.option("checkpointLocation", "/data/checkpoints/billing")...

The rows are those that `spark.read` gives of the same messages. Consumers' rules hold: topics that
are write-only are not read, and internal topics of the brokers only by an option. Queues that come
while the stream runs are read from their beginning.

Options:
    endpoint: nameservers, "host:port" separated by commas.
    topics: names separated by commas; or topicPattern: with * and ?.
    includeInternalTopics, columns: as for `spark.read`.
    startingOffsets: where to begin when there is no checkpoint. "latest" (default), "earliest",
        "group" (where the consumer group is), or {"topic": {"0": 17, "broker-a:1": 5}} by queue, on
        every broker or on one, with -2 for earliest and -1 for latest; other queues are then read
        from their beginning.
    startingTimestamp: the same by store time, as epoch milliseconds or ISO 8601.
    maxOffsetsPerTrigger: how many messages a batch has at most; queues share it in proportion to
        what they have.
    maxBytesPerTrigger: how large a batch is, about: the sizes of the next messages of each queue
        say how many that is, at least one.
    minPartitions: so many tasks at least, if there are as many messages; by default one task reads
        what a batch has of one queue.
    failOnDataLoss: "true" (default), or "false": what retention deletes before it is read, the end
        that a crash takes from a log, and deleted topics are then told by a warning.
    consumerGroup: the group whose progress follows the stream: `rockoon lag` then shows it.

*The checkpoint is the truth.* It holds, for each queue, the offset and its create revision:
a queue that was deleted and created again is not taken for the old one. A batch that was planned
and not finished is read again exactly as it was planned.

*Progress of the group* follows: when Spark plans a batch, or looks whether there is one, it says
how far it has come, and that much is committed; at the end of a run with `Trigger.AvailableNow`
too, because Spark looks once more then. With `Trigger.ProcessingTime` a batch counts when the next
trigger comes; `rockoon_spark.stream.listener` makes it count as soon as it ends. A query that is
stopped before Spark looks again leaves its last batch to be committed by the next start. Progress
that the group has already is never taken back.

*A group belongs to one stream.* If live consumers read with it, the stream does not start. If
somebody resets it, or reads with it, the next commit is fenced and ends the stream, with a sentence
that says so: the checkpoint is not moved by a reset. Started again, the stream goes on where it was
and takes the group along; to go where the group is, start with a new checkpoint and
startingOffsets=group.
"""

import logging
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
    SupportsTriggerAvailableNow,
)

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.log_source import DamagedRange, DataLost
from rockoon_spark.source.options import OptionError
from rockoon_spark.source.rows import rows
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.offsets import INITIAL, Place, StreamOffsets
from rockoon_spark.stream.options import StreamOptions
from rockoon_spark.stream.plan import (
    Backlog,
    OffsetRange,
    QueueNow,
    backlog,
    cut,
    ends_after,
    messages_of_bytes,
    ranges,
    share,
)
from rockoon_spark.stream.queue_partition import QueuePartition

log = logging.getLogger(__name__)

# Spark looks for news a hundred times a second unless it is given a trigger.
_BETWEEN_LOOKS_SECONDS = 0.1


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a process of the driver's, and reads them in those of the tasks.

    Spark asks `latestOffset(start)` only when everything before `start` is finished, with the next
    trigger at the latest; after the last batch of AvailableNow too. `commit` comes later, and not
    for the last batch of a run; `stop` need not come at all.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        """Keep the options as Spark gives them; see `_options`."""
        self._given = dict(given)
        # Made when first needed, where batches are planned; tasks get a reader without one.
        self._cluster: StreamCluster | None = None
        # What AvailableNow is to read up to.
        self._targets: Mapping[MessageQueue, QueueNow] | None = None
        self._looked_at = -_BETWEEN_LOOKS_SECONDS
        self._seen: Mapping[MessageQueue, QueueNow] = {}

    def initialOffset(self) -> dict[str, Any]:
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark hands this back, or ReadAllAvailable where a trigger wants everything.
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._planner.look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        finished = StreamOffsets.parse(start)
        now = self._seen = self._look()
        missing = set(self._options.topics).difference(queue.topic for queue in now)
        if finished.is_initial and missing:
            raise OptionError(f"option topics: topic {min(missing)!r} does not exist")
        # Before a batch is planned: a group that was reset or is read by others ends the stream
        # here, and not after another batch.
        self._planner.join_group(now)
        self._planner.commit(
            {
                queue: place.offset
                for queue, place in finished.queues.items()
                if queue in now and now[queue].create_revision == place.create_revision
            }
        )
        starting = self._planner.starting(now) if finished.is_initial else {}
        # What is not asked for any more was not lost.
        wanted = finished.of_topics(self._options.wants)
        found = backlog(wanted, now, starting)
        # Before Spark logs the new end: an offset that is logged has passed over the gap for good.
        self._report(found.losses)
        end = ends_after(finished, found, self._limited(finished, found, limit))
        if end is finished:
            # The very same: Spark compares texts, and any other one is a batch, if an empty one.
            return start
        # For whoever follows the query's progress: whose it is.
        group = {"group": self._options.group} if self._options.group else {}
        return {**end.to_json(), **group}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = {queue: Place(each.end, each.create_revision) for queue, each in self._seen.items()}
        return StreamOffsets(ends).to_json() if ends else None

    def _look(self) -> Mapping[MessageQueue, QueueNow]:
        if self._targets is not None:
            return self._targets
        time.sleep(max(self._looked_at + _BETWEEN_LOOKS_SECONDS - time.monotonic(), 0))
        now = self._planner.look()
        self._looked_at = time.monotonic()
        return now

    def _limited(
        self, finished: StreamOffsets, found: Backlog, limit: ReadLimit
    ) -> Mapping[MessageQueue, int]:
        """How many messages of each queue the batch takes."""
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
        turn = sum(place.offset for place in finished.queues.values())
        return share(found.messages, messages_max, turn)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = ranges(StreamOffsets.parse(start), StreamOffsets.parse(end))
        planned = self._still_there(planned, StreamOffsets.parse(end))
        # From the logged offsets alone: a batch that is run again after a crash has the same rows.
        pieces = cut(planned, self._options.partitions_min)
        return self._planner.partitions(pieces)

    def _still_there(self, planned: list[OffsetRange], end: StreamOffsets) -> list[OffsetRange]:
        """Without queues that are others now: a batch can run again long after it was planned."""
        create_revisions = self._planner.create_revisions(
            sorted({each.queue.topic for each in planned})
        )
        gone = [
            each
            for each in planned
            if create_revisions.get(each.queue) != end.queues[each.queue].create_revision
        ]
        self._report(
            [
                f"queue {each.queue} was deleted, and offsets {each.start} to {each.stop} of it"
                " are in a batch that was planned"
                for each in gone
            ]
        )
        return [each for each in planned if each not in gone]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, QueuePartition)
        yield from rows(partition.read(), EVERYTHING, self._options.columns, self._report_damage)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @cached_property
    def _options(self) -> StreamOptions:
        """The options of the stream, parsed when Spark calls a method of the reader.

        An exception of `DataSource.streamReader` does not reach the user: PySpark's runner then
        raises UnboundLocalError for its own variable `reader`.

        Raises:
            OptionError: an option is missing, unknown or wrong.
        """
        return StreamOptions.parse(self._given)

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
                f"{'; '.join(losses)}. Option failOnDataLoss=false goes on with what is there"
            )
        for sentence in losses:
            log.warning("%s", sentence)
