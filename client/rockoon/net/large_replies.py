"""Decoding of the replies of pull streams and append streams, in less time than with protobuf.

Protobuf would copy the records of a pull reply twice. And to read one field of a protobuf message
costs Python as much as a function call.

The compiled kernel decodes pull replies without an error (`PullReplyFields`), and append replies of
acknowledged batches only.
"""

from typing import Any, NamedTuple

from rockoon_core.wire_fields import fields
from rockoon_format import kernel
from rockoon_proto.v1 import broker_pb2
from rockoon_proto.v1.broker_pb2 import (
    DELETION_REASON_UNSPECIFIED,
    AppendReply,
    DeletionReason,
    PullReply,
    PullStatus,
    PullStreamReply,
)
from rockoon_proto.v1.errors_pb2 import Error


class StoredBatch(NamedTuple):
    """Position of a stored batch in queue and log; has the field names of AppendReply and
    Appended."""

    request_id: int
    first_queue_offset: int
    first_physical_offset: int
    messages: int
    store_timestamp_ms: int
    store_host: bytes


Appended = broker_pb2.Appended | StoredBatch
Answer = AppendReply | StoredBatch
Answers = AppendReply | list[StoredBatch]
"""The replies in one message of an append stream; each reply belongs to one batch."""


def append_reply(message: bytes) -> Answers:
    """Decode a message of an append stream. Raises DecodeError: the message is invalid."""
    rows = kernel.native.appended(message)
    if rows is not None:
        if len(rows) == 1:
            # The most frequent case first: a comprehension costs one more Python call.
            return [tuple.__new__(StoredBatch, rows[0])]
        return [tuple.__new__(StoredBatch, row) for row in rows]
    return AppendReply.FromString(message)


# For smaller replies, two copies are cheaper than a search for the records.
LARGE_BYTES = 32 << 10
_FRAMES = PullReply.FRAMES_FIELD_NUMBER
_ANSWERS = PullStreamReply.ANSWERS_FIELD_NUMBER


class Records(NamedTuple):
    """Position of a reply's records: the range `bounds` of `source`; None: all of `source`."""

    source: bytes
    bounds: tuple[int, int] | None


class LargeReply:
    """A PullReply without its records; attributes as PullReply.

    Args:
        rest: the other fields.
        records: position of the records.
    """

    __slots__ = ("_rest", "records")

    def __init__(self, rest: PullReply, records: Records) -> None:
        self._rest = rest
        self.records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


class PullReplyFields(NamedTuple):
    """A PullReply without an error; attributes as PullReply, except for the records."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    source: bytes
    bounds: tuple[int, int] | None
    """Range of the records in `source`; None: all of `source`."""
    record_lengths: bytes
    subscription_id: int
    ended: bool

    @property
    def deletion(self) -> DeletionReason:
        """Always unspecified: the kernel leaves replies with a reason to protobuf."""
        return DELETION_REASON_UNSPECIFIED


Reply = PullReply | LargeReply | PullReplyFields


class Replies(NamedTuple):
    """Decoded replies in one message of a pull stream; attributes as PullStreamReply."""

    answers: list[Reply]


def records_of(reply: Reply) -> Records:
    """Return the position of a reply's records."""
    if isinstance(reply, PullReplyFields):
        # As `Records(...)`, without the call of a Python function.
        return tuple.__new__(Records, (reply.source, reply.bounds))
    return reply.records if isinstance(reply, LargeReply) else Records(reply.frames, None)


def refusal_of(reply: Reply) -> Error | None:
    """Return the error of a reply; None if the queue can be read."""
    if isinstance(reply, PullReplyFields) or not reply.HasField("error"):
        return None
    error: Error = reply.error
    return error


def pull_stream_reply(message: bytes) -> PullStreamReply | Replies:
    """Decode a message of a pull stream. Raises DecodeError: the message is invalid."""
    if type(message) is bytes:
        rows = kernel.native.pull_answers(message)
        if rows is not None:
            if len(rows) == 1:
                return Replies([tuple.__new__(PullReplyFields, rows[0])])
            return Replies([tuple.__new__(PullReplyFields, row) for row in rows])
    if len(message) < LARGE_BYTES:
        return PullStreamReply.FromString(message)
    try:
        found, rest = [], []
        for field in fields(message, 0, len(message)):
            if field.is_bytes and field.number == _ANSWERS:
                found.append((field.start, field.end))
            else:
                rest.append(message[field.begin : field.end])
        # The remaining fields must be valid too.
        PullStreamReply.FromString(b"".join(rest))
        return Replies([_answer(message, *position, is_only=len(found) == 1) for position in found])
    except ValueError:
        # Invalid, or encoded in a form that only protobuf decodes.
        return PullStreamReply.FromString(message)


def _answer(message: bytes, start: int, end: int, *, is_only: bool) -> Reply:
    """Decode one reply of a message. If the message has several replies, the records are copied, so
    that a queue's pending records do not keep those of other queues in memory."""
    if end - start < LARGE_BYTES:
        return PullReply.FromString(message[start:end])
    records, rest = Records(b"", None), []
    for field in fields(message, start, end):
        if not field.is_bytes or field.number != _FRAMES:
            rest.append(message[field.begin : field.end])
        elif is_only:
            records = Records(message, (field.start, field.end))
        else:
            records = Records(message[field.start : field.end], None)
    return LargeReply(PullReply.FromString(b"".join(rest)), records)
