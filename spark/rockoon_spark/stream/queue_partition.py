"""Input of a stream's task: the messages of one queue between two offsets, pulled from a broker."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pyspark.sql.datasource import InputPartition

from rockoon.errors import QueueNotFound, StoreCorrupt, TopicNotFound
from rockoon_proto.v1.broker_pb2 import (
    FOUND,
    MESSAGE_WAS_REMOVING,
    NO_MATCHED_MESSAGE,
    OFFSET_FOUND_NULL,
    OFFSET_TOO_SMALL,
    PullReply,
    PullRequest,
)
from rockoon_spark.broker_calls import READ_RETRY_SECONDS, PullClient
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.source.log_source import DataLost, in_batches
from rockoon_spark.stream.plan import BatchRange

log = logging.getLogger(__name__)

_BYTES_PER_PULL = 2 << 20
_MESSAGES_PER_PULL_MAX = 65_536
# Status of a pull reply if the messages at the offset were deleted.
_DELETED = (OFFSET_TOO_SMALL, MESSAGE_WAS_REMOVING, OFFSET_FOUND_NULL)


@dataclass(frozen=True, slots=True)
class QueuePartition(InputPartition):
    """Input of a stream's task: a range of offsets of one queue. Can be pickled.

    Args:
        range: the offsets to read.
        address: of the broker, when the batch was planned.
        route_revision: of the routes when the batch was planned.
        fails_on_data_loss: True to fail if messages were deleted.
        endpoint: nameservers, asked for the broker's new address if it no longer answers.
    """

    range: BatchRange
    address: str
    route_revision: int
    fails_on_data_loss: bool
    endpoint: str | None = None

    def read(self) -> Iterator[LogRecords]:
        """Yield the messages in order; offsets of compacted messages are missing.

        Raises:
            DataLost: messages were deleted after the batch was planned.
            RockoonError: the broker no longer answers, or refuses the call.
        """
        queue, position = self.range.queue, self.range.start
        with PullClient(queue.broker, self.address, READ_RETRY_SECONDS, self.endpoint) as client:
            client.ask(self._request(position))
            while position < self.range.stop:
                reply, following = self._answer(client, position)
                if following < self.range.stop:
                    # In flight while this reply is decoded.
                    client.ask(self._request(following))
                if reply is not None:
                    yield from self._records(reply)
                position = following

    def _answer(self, client: PullClient, position: int) -> tuple[PullReply | None, int]:
        """Return the reply with the messages at an offset, if any, and the next offset."""
        try:
            reply = client.answer()
        except (TopicNotFound, QueueNotFound):
            return None, self._lost(position, self.range.stop, "the queue was deleted")
        except StoreCorrupt as damage:
            return None, self._lost(position, position + 1, str(damage))
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
        )

    def _records(self, reply: PullReply) -> Iterator[LogRecords]:
        sizes = np.frombuffer(reply.record_lengths, "<u4").astype(np.int64)
        frames = np.frombuffer(reply.frames, np.uint8)
        starts = np.cumsum(sizes) - sizes
        # base=0, because records of a queue are not contiguous in the log.
        for records in in_batches(frames, 0, starts, sizes, self.range.queue.broker):
            offsets = records.prefix("queue_offset")
            wanted = records.chosen(offsets < self.range.stop)
            if len(wanted):
                yield wanted

    def _lost(self, start: int, end: int, why: str) -> int:
        end = min(end, self.range.stop)
        sentence = (
            f"offsets {start} to {end} of queue {self.range.queue} can no longer be read: {why}"
        )
        if self.fails_on_data_loss:
            raise DataLost(f"{sentence}; option failOnDataLoss=false reads what is left")
        log.warning("%s", sentence)
        return end
