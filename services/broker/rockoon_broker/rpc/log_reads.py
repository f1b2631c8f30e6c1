"""The ReadLog call: reads ranges of the log in small pieces, as records or as columns (Arrow)."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rockoon_broker import cold_reads
from rockoon_broker.broker import Broker
from rockoon_broker.rpc.log_columns import WantedColumns
from rockoon_broker.rpc.queue_states import OFFSET_MAX
from rockoon_broker.store.errors import StoreClosed, StoreSyncFailed
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store
from rockoon_core.errors import (
    InvalidArgument,
    InvalidOffset,
    LogTrimmed,
    NotReady,
    StoreCorrupt,
    StoreFailed,
)
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, TOPICS_PER_READ_MAX
from rockoon_core.wire_fields import bytes_tag, varint
from rockoon_format.frames import slices
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
        if len(request.topics) > TOPICS_PER_READ_MAX:
            raise InvalidArgument(
                reason=f"{len(request.topics)} topics, more than {TOPICS_PER_READ_MAX}"
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


BYTES_DEFAULT = 1 << 20
BYTES_MAX = 4 << 20
# Bytes read or searched before other tasks of the event loop run.
PIECE_BYTES = 1 << 20
# Limit of the bytes that one call reads; a filter may leave out most records.
SCANNED_BYTES_MAX = 16 << 20

_FRAMES_TAG = bytes_tag(broker_pb2.ReadLogReply.FRAMES_FIELD_NUMBER)


@dataclass(slots=True)
class LogReadState:
    """State of a request: position and records read."""

    start: int
    position: int
    at_record: bool
    wanted: RecordFilter
    with_deleted_topics: bool = False
    columns: WantedColumns | None = None
    """The columns to send; None to send records."""
    skipped_bytes: int = 0
    first_offset: int | None = None
    frames: list[bytes] = field(default_factory=list)
    lengths: list[NDArray[np.uint32]] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    """Pieces of the serialised columns."""
    bytes: int = 0
    """Length of the records or columns."""

    def add(self, chunk: LogChunk, store: Store) -> bool:
        """Add the wanted records of a chunk; without `with_deleted_topics`, only those of existing
        topics.

        Returns:
            False if they must be in another reply, because this one has columns.
        """
        kept = self.wanted.mask(chunk.records)
        if not self.with_deleted_topics:
            kept &= kept_records(chunk, store)
        if kept.any():
            pieces = None if self.columns is None else self.columns.of_chunk(chunk, kept)
            if pieces is not None:
                self.batches += pieces
                self.bytes += sum(map(len, pieces))
            elif self.batches:
                return False
            else:
                # The rest of the reply has records too.
                self.columns = None
                self._add_records(chunk, kept)
        self.position = chunk.next_offset
        return True

    def _add_records(self, chunk: LogChunk, kept: NDArray[np.bool_]) -> None:
        if self.first_offset is None:
            self.first_offset = chunk.start + int(chunk.records.offsets[kept.argmax()])
        frames = chunk.frames
        if not kept.all():
            records = chunk.records
            frames = b"".join(slices(frames, records.offsets[kept], records.sizes[kept]))
        self.frames.append(frames)
        self.lengths.append(chunk.lengths[kept])
        self.bytes += len(frames)


def kept_records(chunk: LogChunk, store: Store) -> NDArray[np.bool_]:
    """Return which records of a chunk belong to topics that are not deleted, bool[n]."""
    records = chunk.records
    kept = np.ones(records.count, np.bool_)
    for number, raw in enumerate(records.topics):
        topic = raw.decode(errors="replace")
        # A deletion covers all records before one position.
        if not store.is_dropped(topic, chunk.start):
            continue
        for index in np.flatnonzero(records.topic_numbers == number).tolist():
            kept[index] = not store.is_dropped(topic, chunk.start + int(records.offsets[index]))
    return kept


async def read_log(broker: Broker, request: broker_pb2.ReadLogRequest) -> list[bytes]:
    """Return the reply to a request as pieces of the serialised message; protobuf would copy the
    records or columns in it twice.

    Raises:
        InvalidArgument, InvalidOffset: a field is out of bounds.
        LogTrimmed: the log begins after the requested position.
        StoreCorrupt: the disk refuses.
        StoreFailed, NotReady: the store has failed or is closed.
    """
    for offset in (request.physical_offset, request.end_offset):
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidOffset(offset=offset)
    if not 0 <= request.max_bytes <= BYTES_MAX:
        raise InvalidArgument(reason=f"max_bytes is {request.max_bytes}, not 1 to {BYTES_MAX}")
    start = request.physical_offset
    wanted = RecordFilter.of(request)
    columns = WantedColumns.of(request)
    at_record, with_deleted = request.at_record, request.with_deleted_topics
    state = LogReadState(start, start, at_record, wanted, with_deleted, columns)
    reads = start < request.end_offset
    if reads:
        try:
            await read(broker, state, request.end_offset, request.max_bytes or BYTES_DEFAULT)
        except OSError as failure:
            path = broker.settings.store_path
            raise StoreCorrupt(path=path, reason=f"the disk refused: {failure}") from failure
        except StoreSyncFailed as failure:
            raise StoreFailed(reason=str(failure)) from failure
        except StoreClosed as failure:
            raise NotReady(service="the broker", reason="it is stopping") from failure
    reply = to_wire(state, broker.store)
    if not reads:
        runs = broker.store.runs.runs_after(broker.store.log_min_offset)
        reply.time_run_starts.extend(run.start for run in reversed(runs))
        marks = sorted(broker.store.dropped_marks.items())
        reply.dropped.extend(
            broker_pb2.DroppedTopic(topic=topic, dropped_below=mark)
            for topic, mark in marks
            if not wanted.topics or topic.encode() in wanted.topics
        )
        reply.queue_entries = broker.store.queue_entries
        if request.with_queue_ends:
            reply.queue_ends.extend(
                broker_pb2.LogQueueEnds(
                    topic=topic, queue_ids=ends.keys(), end_offsets=ends.values()
                )
                for topic, ends in sorted(broker.store.queue_ends().items())
                if not wanted.topics or topic.encode() in wanted.topics
            )
    pieces = [reply.SerializeToString(), *state.batches]
    if state.frames:
        length = sum(map(len, state.frames))
        pieces += [_FRAMES_TAG + varint(length), *state.frames]
    return pieces


async def read(broker: Broker, state: LogReadState, end: int, bytes_max: int) -> None:
    """Read records that start before `end`, as many as fit, or skip damaged bytes."""
    store = broker.store
    end = min(end, state.start + SCANNED_BYTES_MAX)
    while state.position < min(end, store.visible_end) and state.bytes < bytes_max:
        # Retention may have run while other tasks ran.
        if state.position < store.log_min_offset:
            if state.frames or state.batches:
                return
            raise LogTrimmed(
                position=state.position,
                broker=broker.settings.name,
                log_min_offset=store.log_min_offset,
            )
        if state.at_record:
            # Columns are shorter than their records, so the room for them would shrink the pieces.
            room = bytes_max if state.batches else bytes_max - state.bytes
            wanted = min(PIECE_BYTES, room, end - state.position)
            read_piece = partial(store.read_log, state.position, wanted, PIECE_BYTES)
            chunk = await cold_reads.read(read_piece)
            if chunk.skipped_bytes:
                # Skipped bytes can only be at the beginning of a reply.
                if state.position == state.start:
                    state.position = chunk.next_offset
                    state.skipped_bytes = chunk.skipped_bytes
                    state.at_record = chunk.next_at_record
                return
            if not state.add(chunk, store):
                return
            if state.frames and chunk.next_offset != chunk.start + len(chunk.frames):
                # A file ends here: the next record is not adjacent.
                return
        else:
            search = partial(store.find_record, state.position, PIECE_BYTES)
            sought = await cold_reads.read(search)
            state.skipped_bytes = sought.offset - state.start
            state.position, state.at_record = sought.offset, sought.found
            if not sought.found:
                return
        await asyncio.sleep(0)


def to_wire(state: LogReadState, store: Store) -> broker_pb2.ReadLogReply:
    """Return the reply without its records or columns."""
    first = state.position if state.first_offset is None else state.first_offset
    lengths = np.concatenate(state.lengths) if state.lengths else np.zeros(0, np.uint32)
    return broker_pb2.ReadLogReply(
        record_lengths=lengths.astype("<u4", copy=False).tobytes(),
        first_offset=first,
        next_offset=state.position,
        next_at_record=state.at_record,
        skipped_bytes=state.skipped_bytes,
        log_min_offset=store.log_min_offset,
        visible_end=store.visible_end,
        durable_end=store.durable_end,
        log_file_bytes=store.settings.commit_log_file_bytes,
    )
