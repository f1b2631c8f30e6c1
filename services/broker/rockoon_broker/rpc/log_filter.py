"""The records that a ReadLog request asks for, selected by the columns of a scan."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.rpc.queue_states import OFFSET_MAX
from rockoon_core.errors import InvalidArgument, InvalidOffset
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX
from rockoon_format.scan import Scan
from rockoon_proto.v1 import broker_pb2


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Ranges of queue offsets of some queues of one topic."""

    queue_ids: NDArray[np.int64]
    """Ascending, int64[n]."""
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, ranges: Iterable[broker_pb2.LogQueueRange]) -> "OffsetRanges":
        by_queue = {each.queue_id: (each.offset, each.end_offset or OFFSET_MAX) for each in ranges}
        rows = [(queue_id, *bounds) for queue_id, bounds in sorted(by_queue.items())]
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(*columns)

    def mask(self, records: Scan) -> NDArray[np.bool_]:
        """Return which records are within the range of their queue, or in a queue without one."""
        at = np.searchsorted(self.queue_ids, records.queue_ids)
        at = np.minimum(at, len(self.queue_ids) - 1)
        is_within = records.queue_offsets >= self.starts[at]
        is_within &= records.queue_offsets < self.ends[at]
        kept: NDArray[np.bool_] = is_within | (self.queue_ids[at] != records.queue_ids)
        return kept


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Selects records; a selected record meets all conditions.

    Args:
        topics: names; empty for all topics.
        ranges: ranges of queue offsets, by topic.
        from_ms, until_ms: store times as epoch milliseconds; the end is exclusive, 0 is no limit.
    """

    topics: frozenset[bytes]
    ranges: Mapping[bytes, OffsetRanges]
    from_ms: int
    until_ms: int

    @classmethod
    def of(cls, request: broker_pb2.ReadLogRequest) -> "RecordFilter":
        """Return the filter of a request. Raises InvalidArgument or InvalidOffset if a field is out
        of bounds."""
        if len(request.queues) > QUEUES_PER_CALL_MAX:
            raise InvalidArgument(
                reason=f"{len(request.queues)} queues, more than {QUEUES_PER_CALL_MAX}"
            )
        by_topic: dict[bytes, list[broker_pb2.LogQueueRange]] = {}
        for each in request.queues:
            for offset in (each.offset, each.end_offset):
                if not 0 <= offset <= OFFSET_MAX:
                    raise InvalidOffset(offset=offset)
            by_topic.setdefault(each.topic.encode(), []).append(each)
        return cls(
            frozenset(topic.encode() for topic in request.topics),
            {topic: OffsetRanges.of(ranges) for topic, ranges in by_topic.items()},
            request.from_store_timestamp_ms,
            request.until_store_timestamp_ms,
        )

    def mask(self, records: Scan) -> NDArray[np.bool_]:
        """Return which records are selected, bool[n]."""
        kept = np.ones(records.count, np.bool_)
        if self.topics:
            is_wanted = np.array([topic in self.topics for topic in records.topics], np.bool_)
            kept &= is_wanted[records.topic_numbers]
        if self.from_ms:
            kept &= records.store_timestamps_ms >= self.from_ms
        if self.until_ms:
            kept &= records.store_timestamps_ms < self.until_ms
        for number, topic in enumerate(records.topics):
            ranges = self.ranges.get(topic)
            if ranges is not None:
                kept &= (records.topic_numbers != number) | ranges.mask(records)
        return kept
