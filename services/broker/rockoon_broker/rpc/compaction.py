"""Compaction calls: the active generation, its files, and uploads of the next one."""

import re
from collections.abc import AsyncIterator

from rockoon_broker.broker import Broker
from rockoon_broker.compaction.uploads import check_upload_id
from rockoon_core.errors import (
    GenerationNotFound,
    InvalidArgument,
    InvalidOffset,
    StoreCorrupt,
    StoreNotWritable,
)
from rockoon_format.generation import MANIFEST_FILE
from rockoon_format.topic_attributes import tombstone_retention_ms
from rockoon_proto.v1 import broker_pb2

BYTES_DEFAULT = 1 << 20
BYTES_MAX = 4 << 20

_FILE_NAME = re.compile(rf"[0-9]{{5}}\.(records|entries|superseded)|{re.escape(MANIFEST_FILE)}")


def compaction_state(broker: Broker) -> broker_pb2.CompactionState:
    """Return the counters and state of a broker's compaction."""
    store = broker.store.compaction
    state = broker_pb2.CompactionState(
        topics=len(broker.topics.table.compacted), uploads=len(broker.compaction.uploads)
    )
    if store.manifest is not None:
        manifest = store.manifest
        state.generation = manifest.generation
        state.created_ms = manifest.created_ms
        state.records = manifest.records
        state.files_bytes = manifest.files_bytes
        state.log_end = manifest.log_end
    hold = broker.compaction.hold()
    if hold is not None:
        state.hold.physical_offset, state.hold.topic = hold.physical_offset, hold.topic
    if store.refusal is not None:
        refusal = store.refusal
        state.refusal.generation, state.refusal.reason = refusal.generation, refusal.reason
        state.refusal.refused_ms = refusal.at_ms
    return state


def describe_compaction(
    broker: Broker, request: broker_pb2.DescribeCompactionRequest, now_ms: int
) -> broker_pb2.DescribeCompactionReply:
    """Answer a request.

    Raises:
        InvalidOffset: the requested end is not visible and durable.
        StoreCorrupt: the disk refuses.
    """
    store = broker.store
    end = min(store.visible_end, store.durable_end)
    wanted = request.log_end or end
    if not store.log_min_offset <= wanted <= end:
        raise InvalidOffset(
            f"{wanted} is outside the visible and durable log, from "
            f"{store.log_min_offset} to {end}",
            offset=wanted,
        )
    try:
        tail = store.compaction.log_tail(wanted)
    except OSError as failure:
        raise _disk_refused(broker, failure) from failure
    manifest = store.compaction.manifest
    return broker_pb2.DescribeCompactionReply(
        name=broker.settings.name,
        state=compaction_state(broker),
        manifest=b"" if manifest is None else manifest.to_json(),
        topics=[
            broker_pb2.CompactedTopic(
                name=topic.name,
                queues=topic.queues,
                tombstone_retention_ms=tombstone_retention_ms(topic.attributes),
                attributes=topic.attributes,
            )
            for topic in broker.topics.table.compacted
        ],
        dropped=[
            broker_pb2.DroppedTopic(topic=topic, dropped_below=mark)
            for topic, mark in sorted(store.compaction.marks.items())
        ],
        log_min_offset=store.log_min_offset,
        log_end=wanted,
        log_tail=broker_pb2.LogTail(start=tail.start, tail_bytes=tail.bytes, crc32=tail.crc32),
        as_of_ms=now_ms,
    )


async def read_generation(
    broker: Broker, request: broker_pb2.ReadGenerationRequest
) -> broker_pb2.ReadGenerationReply:
    """Answer a request.

    Raises:
        GenerationNotFound: it is not active, or does not have the file.
        InvalidArgument, InvalidOffset: a field is out of bounds.
        StoreCorrupt: the disk refuses.
    """
    if not 0 <= request.max_bytes <= BYTES_MAX:
        raise InvalidArgument(reason=f"max_bytes is {request.max_bytes}, not 1 to {BYTES_MAX}")
    if request.offset < 0:
        raise InvalidOffset(offset=request.offset)

    def not_found(reason: str) -> GenerationNotFound:
        return GenerationNotFound(
            broker=broker.settings.name,
            file=request.file_name,
            generation=request.generation,
            reason=reason,
        )

    manifest = broker.store.compaction.manifest
    if manifest is None:
        raise not_found("no generation is active")
        # A generation with a higher number is not verified yet.
    if not 0 < request.generation <= manifest.generation:
        raise not_found(f"generation {manifest.generation} is active")
    if not _FILE_NAME.fullmatch(request.file_name):
        raise not_found("no file has that name")
    bytes_max = request.max_bytes or BYTES_DEFAULT
    try:
        data, file_bytes = await broker.compaction.read(
            request.generation, request.file_name, request.offset, bytes_max
        )
    except FileNotFoundError as failure:
        raise not_found(f"generation {manifest.generation} is active") from failure
    except OSError as failure:
        raise _disk_refused(broker, failure) from failure
    return broker_pb2.ReadGenerationReply(data=data, file_bytes=file_bytes)


async def put_generation_file(
    broker: Broker, requests: AsyncIterator[broker_pb2.PutGenerationFileRequest]
) -> broker_pb2.PutGenerationFileReply:
    """Answer a stream of requests; see `Uploads.put`."""
    first = await anext(requests, None)
    if first is None:
        raise InvalidArgument(reason="no request names the upload and the file")

    async def chunks() -> AsyncIterator[bytes]:
        yield first.data
        async for request in requests:
            if request.upload_id or request.file_name:
                raise InvalidArgument(reason="only the first request names the upload and the file")
            yield request.data

    try:
        stored = await broker.compaction.uploads.put(first.upload_id, first.file_name, chunks())
    except OSError as failure:
        raise _not_writable(broker, failure) from failure
    return broker_pb2.PutGenerationFileReply(file_bytes=stored.file_bytes, sha256=stored.sha256)


async def publish_generation(
    broker: Broker, request: broker_pb2.PublishGenerationRequest
) -> broker_pb2.PublishGenerationReply:
    """Answer a request; see `Publishing.publish`."""
    try:
        await broker.compaction.publishing.publish(request.upload_id, request.manifest)
    except OSError as failure:
        raise _not_writable(broker, failure) from failure
    return broker_pb2.PublishGenerationReply(state=compaction_state(broker))


async def discard_generation(
    broker: Broker, request: broker_pb2.DiscardGenerationRequest
) -> broker_pb2.DiscardGenerationReply:
    """Answer a request; see `Publishing.discard`."""
    check_upload_id(request.upload_id)
    try:
        await broker.compaction.publishing.discard(request.upload_id)
    except OSError as failure:
        raise _not_writable(broker, failure) from failure
    return broker_pb2.DiscardGenerationReply()


def _disk_refused(broker: Broker, failure: OSError) -> StoreCorrupt:
    return StoreCorrupt(path=broker.settings.store_path, reason=f"the disk refused: {failure}")


def _not_writable(broker: Broker, failure: OSError) -> StoreNotWritable:
    return StoreNotWritable(
        f"the disk of {broker.settings.store_path} refuses a generation's file: {failure}",
        reason=str(failure),
    )
