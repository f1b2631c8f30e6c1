"""Input of a task: messages of queues between two offsets, pulled from a broker.

A stream reads all its messages in this way, a batch those that are a small part of the log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rockoon.errors import QueueNotFound, StoreCorrupt, TopicNotFound
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import (
    FOUND,
    MESSAGE_WAS_REMOVING,
    NO_MATCHED_MESSAGE,
    OFFSET_FOUND_NULL,
    OFFSET_TOO_SMALL,
    LogColumn,
    PullReply,
    PullRequest,
    QueueState,
)
from rockoon_spark.broker_calls import READ_RETRY_SECONDS, PullClient, StatusClient
from rockoon_spark.endpoint import AnyEndpoint
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.sent_columns import SentColumns
from rockoon_spark.source.log_source import (
    DamagedRange,
    GenerationReplaced,
    in_batches,
    report_loss,
)

_BYTES_PER_PULL = 2 << 20
_MESSAGES_PER_PULL_MAX = 65_536
# Status of a pull reply if the messages at the offset were deleted.
_DELETED = (OFFSET_TOO_SMALL, MESSAGE_WAS_REMOVING, OFFSET_FOUND_NULL)


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Range of offsets of one queue that one task reads, `stop` is exclusive."""

    queue: MessageQueue
    start: int
    stop: int
    create_revision: int = 0
    """etcd revision at which the queue was created; 0 if unknown."""


class DamagedMessages(DamagedRange):
    """Damaged messages of a queue; `start` and `end` are queue offsets."""

    def __str__(self) -> str:
        return (
            f"offsets {self.start} to {self.end} of queue {self.log} can no longer be read:"
            f" {self.fault}"
        )


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """A range of offsets of one queue; a `LogPartition`.

    Args:
        range: the offsets to read.
        address: of the broker, when the batch was planned.
        route_revision: of the routes when the batch was planned.
        fails_on_data_loss: True to fail if messages were deleted.
        endpoint: nameservers, asked for the broker's new address if it no longer answers.
        columns: the columns that the broker sends (`sent_columns.numbers_of`); empty for whole
            records, which an older broker always sends.
        on_loss: called with a sentence about lost messages, instead of `report_loss`; may raise.
    """

    range: BatchRange
    address: str
    route_revision: int
    fails_on_data_loss: bool
    endpoint: AnyEndpoint | None = None
    columns: Sequence[LogColumn] = ()
    on_loss: Callable[[str], None] | None = None

    def client(self) -> PullClient:
        """Return a new connection to the broker."""
        broker = self.range.queue.broker
        return PullClient(broker, self.address, READ_RETRY_SECONDS, self.endpoint)

    def read(self) -> Iterator[LogRecords | SentColumns | DamagedRange]:
        """Yield the messages in order; offsets of compacted messages are missing.

        Raises:
            DataLost: messages were deleted after the batch was planned.
            RockoonError: the broker no longer answers, or refuses the call.
        """
        with self.client() as client:
            yield from self.pull(client)

    def pull(self, client: PullClient) -> Iterator[LogRecords | SentColumns | DamagedRange]:
        """Yield the messages as `read` does, over an open connection."""
        position = self.range.start
        client.ask(self._request(position))
        while position < self.range.stop:
            found, following = self._answer(client, position)
            if following < self.range.stop:
                # In flight while this reply is decoded.
                client.ask(self._request(following))
            if isinstance(found, DamagedRange):
                yield found
            elif found is not None:
                yield from self._records(found)
            position = following

    def _answer(
        self, client: PullClient, position: int
    ) -> tuple[PullReply | DamagedRange | None, int]:
        """Return the reply with the messages at an offset, if any, and the next offset."""
        try:
            reply = client.answer()
        except (TopicNotFound, QueueNotFound):
            return None, self._lost(position, self.range.stop, "the queue was deleted")
        except StoreCorrupt as damage:
            name, following = str(self.range.queue), position + 1
            return DamagedMessages(name, position, following, str(damage)), following
        following = reply.next_offset
        if reply.HasField("columns") and following > self.range.stop:
            # In a compacted queue, which has gaps, a reply may extend beyond the range.
            reply = client.read(self.of_whole_records()._request(position))
            following = reply.next_offset
        if following > position and reply.status in (FOUND, NO_MATCHED_MESSAGE):
            return reply, following
        if following > position and reply.status in _DELETED:
            return None, self._lost(position, following, "retention deleted them")
        return None, self._lost(position, self.range.stop, f"the queue ends at {reply.max_offset}")

    def _request(self, position: int) -> PullRequest:
        return PullRequest(
            topic=self.range.queue.topic,
            queue_id=self.range.queue.queue_id,
            offset=position,
            max_messages=min(self.range.stop - position, _MESSAGES_PER_PULL_MAX),
            max_bytes=_BYTES_PER_PULL,
            route_revision=self.route_revision,
            # So that the broker refuses the pull if the queue was deleted and created again.
            create_revision=self.range.create_revision,
            columns=self.columns,
        )

    def of_whole_records(self) -> "QueuePartition":
        """Return this partition without a choice of columns."""
        return replace(self, columns=())

    def _records(self, reply: PullReply) -> Iterator[LogRecords | SentColumns]:
        if reply.HasField("columns"):
            yield SentColumns(reply.columns, self.columns, self.range.queue.broker)
            return
        sizes = np.frombuffer(reply.record_lengths, "<u4").astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        # base=0, because records of a queue are not contiguous in the log.
        for records in in_batches(reply.frames, 0, starts, sizes, self.range.queue.broker):
            offsets = records.prefix("queue_offset")
            wanted = records.chosen(offsets < self.range.stop)
            if len(wanted):
                yield wanted

    def _lost(self, start: int, end: int, why: str) -> int:
        end = min(end, self.range.stop)
        sentence = (
            f"offsets {start} to {end} of queue {self.range.queue} can no longer be read: {why}"
        )
        if self.on_loss is None:
            report_loss(sentence, fails=self.fails_on_data_loss)
        else:
            self.on_loss(sentence)
        return end


QueueCoverage = tuple[int, int] | None
"""Range of a queue that the current generation covers: end offset, and number of its messages.
None without a generation."""


def coverage_of(state: QueueState) -> QueueCoverage:
    """Return the coverage in the state of a queue."""
    if not state.HasField("compacted_to_offset"):
        return None
    return state.compacted_to_offset, state.compacted_records


@dataclass(frozen=True, slots=True)
class QueuesPartition:
    """Ranges of several queues of one broker that one task of a batch reads; a `LogPartition`.

    Args:
        parts: the ranges, at least one.
        coverages: coverage of each part's queue when the read was planned.
    """

    parts: Sequence[QueuePartition]
    coverages: Mapping[MessageQueue, QueueCoverage]

    @property
    def broker(self) -> str:
        return self.parts[0].range.queue.broker

    def read(self) -> Iterator[LogRecords | SentColumns | DamagedRange]:
        """Yield the messages, queue by queue; see `QueuePartition.read`.

        Raises:
            GenerationReplaced: a queue was compacted after the read was planned, so messages may be
                missing that a newer message after the read's end has replaced.
        """
        with self.parts[0].client() as client:
            for part in self.parts:
                yield from part.pull(client)
        self._check_coverages()

    def _check_coverages(self) -> None:
        first = self.parts[0]
        queues = [part.range.queue for part in self.parts]
        with StatusClient(self.broker, first.address, READ_RETRY_SECONDS, first.endpoint) as client:
            for queue, state in client.states(queues, first.route_revision).items():
                # A deleted queue has been reported by its part.
                is_deleted = state.HasField("error")
                if not is_deleted and coverage_of(state) != self.coverages[queue]:
                    raise GenerationReplaced(
                        f"queue {queue} was compacted while it was read: read again"
                    )
