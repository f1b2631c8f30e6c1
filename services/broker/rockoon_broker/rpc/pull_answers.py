"""Pull replies and queries: conversion from and to wire messages, without copies of the records."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rockoon_broker.pull import PullQuery, PullResult, expression_of
from rockoon_broker.rpc.log_columns import WantedColumns
from rockoon_broker.rpc.message_reads import check_offset, packed
from rockoon_broker.rpc.queue_states import DELETION_REASONS
from rockoon_broker.store.reading.reader import GetStatus, NewestBatch
from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_core.light_dataclass import light_dataclass
from rockoon_core.wire_fields import bytes_tag, varint
from rockoon_format import kernel
from rockoon_format.hashes import TAG_HASHES_MAX
from rockoon_proto.v1 import broker_pb2

FRAMES_TAG = bytes_tag(broker_pb2.PullReply.FRAMES_FIELD_NUMBER)
ANSWER_TAG = bytes_tag(broker_pb2.PullStreamReply.ANSWERS_FIELD_NUMBER)

STATUSES: dict[GetStatus, broker_pb2.PullStatus] = {
    status: getattr(broker_pb2, status.name) for status in GetStatus
}
_FOUND = int(broker_pb2.FOUND)


@light_dataclass
class PullAnswer:
    """A serialised PullReply; protobuf would copy its records twice.

    Serialised fields may have any order, so the records are last.
    """

    front: bytes
    """All bytes before the records; on a stream, with the field tag of the answer."""
    frames: bytes = b""


def answer_with(
    reply: broker_pb2.PullReply, frames: bytes = b"", *, on_stream: bool = False
) -> PullAnswer:
    """Return an answer.

    Args:
        reply: the answer without the records.
        frames: the records.
        on_stream: the answer is an entry of a PullStreamReply.
    """
    front = reply.SerializeToString()
    if frames:
        front += FRAMES_TAG + varint(len(frames))
    if on_stream:
        front = ANSWER_TAG + varint(len(front) + len(frames)) + front
    return PullAnswer(front, frames)


def stream_reply(answers: Sequence[PullAnswer]) -> list[bytes]:
    """Return a serialised PullStreamReply as a list of byte strings; of one answer to a Pull, the
    PullReply."""
    found: list[bytes] = []
    for answer in answers:
        found.append(answer.front)
        if answer.frames:
            found.append(answer.frames)
    return found


def query_of(request: broker_pb2.PullRequest) -> PullQuery:
    """Return the query of a request.

    Raises:
        InvalidOffset, InvalidArgument: a value is out of its bounds.
    """
    check_offset(request.offset)
    for name in ("max_messages", "max_bytes", "wait_ms"):
        if getattr(request, name) < 0:
            raise InvalidArgument(reason=f"{name} is {getattr(request, name)}")
    if len(request.tag_hashes) > TAG_HASHES_MAX:
        raise InvalidArgument(reason=f"more than {TAG_HASHES_MAX} tag hashes")
    if request.sql_expression and request.tag_hashes:
        raise InvalidArgument(reason="it has both tag hashes and an SQL expression")
    return PullQuery(
        topic=request.topic,
        queue_id=request.queue_id,
        offset=request.offset,
        messages_max=request.max_messages,
        bytes_max=request.max_bytes,
        wait_ms=request.wait_ms,
        tag_codes=np.array(request.tag_hashes, np.int64) if request.tag_hashes else None,
        expression=expression_of(request.sql_expression) if request.sql_expression else None,
        group=request.group,
    )


def answer_of(
    result: PullResult, subscription_id: int | None = None, *, ended: bool = False
) -> PullAnswer:
    """Return the answer for the result of a pull; on a stream, with the subscription's id."""
    found = result.found
    if found.deletion is None:
        front: bytes | None = kernel.native.pull_front(
            STATUSES[result.status],
            result.next_offset,
            found.min_offset,
            found.max_offset,
            len(found.frames),
            packed(found),
            subscription_id,
            ended,
        )
        if front is not None:
            return PullAnswer(front, found.frames)
    reply = broker_pb2.PullReply(
        status=STATUSES[result.status],
        next_offset=result.next_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        record_lengths=packed(found),
        subscription_id=subscription_id,
        ended=ended,
        deletion=None if found.deletion is None else DELETION_REASONS[found.deletion],
    )
    return answer_with(reply, found.frames, on_stream=subscription_id is not None)


def pull_reply(result: PullResult, columns: WantedColumns | None) -> list[bytes]:
    """Return a serialised PullReply as a list of byte strings, with columns if the kernel can cut
    them."""
    pieces = None if columns is None else columns.of_messages(result.found)
    if pieces is None:
        return stream_reply([answer_of(result)])
    bare = replace(result.found, frames=b"", lengths=np.zeros(0, np.uint32))
    front = answer_of(PullResult(result.status, result.next_offset, bare))
    return [*stream_reply([front]), *pieces]


def newest_answer(batch: NewestBatch, next_offset: int, subscription_id: int) -> PullAnswer:
    """Return the answer with the newest batch of a queue."""
    lengths, frames, min_offset, max_offset = batch
    size = len(frames)
    front: bytes | None = kernel.native.pull_front(
        _FOUND, next_offset, min_offset, max_offset, size, lengths, subscription_id, False
    )
    if front is not None:
        return PullAnswer(front, frames)
    reply = broker_pb2.PullReply(
        status=broker_pb2.FOUND,
        next_offset=next_offset,
        min_offset=min_offset,
        max_offset=max_offset,
        record_lengths=lengths,
        subscription_id=subscription_id,
    )
    return answer_with(reply, frames, on_stream=True)


def refusal_of(refusal: RockoonError, subscription_id: int) -> PullAnswer:
    """Return the answer that ends a subscription with an error."""
    reply = broker_pb2.PullReply(
        subscription_id=subscription_id, ended=True, error=refusal.to_wire()
    )
    return answer_with(reply, on_stream=True)
