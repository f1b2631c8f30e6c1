"""Answers of a pull stream whose records stay where they came: protobuf would copy them twice.

The compiled kernel reads those that are no refusals (`PlainReply`).
"""

from typing import Any, NamedTuple

from rockoon_core.wire_fields import fields
from rockoon_format import kernel
from rockoon_proto.v1.broker_pb2 import (
    DELETION_REASON_UNSPECIFIED,
    DeletionReason,
    PullReply,
    PullStatus,
    PullStreamReply,
)
from rockoon_proto.v1.errors_pb2 import Error

# Below, two copies cost less than to look for the records.
LARGE_BYTES = 32 << 10
_FRAMES = PullReply.FRAMES_FIELD_NUMBER
_ANSWERS = PullStreamReply.ANSWERS_FIELD_NUMBER


class Records(NamedTuple):
    """Where an answer's records are: everywhere in `source`, or within bounds."""

    source: bytes
    bounds: tuple[int, int] | None


class LargeReply:
    """A PullReply, read like one, but for its records.

    Args:
        rest: its other fields.
        records: where these are.
    """

    __slots__ = ("_rest", "records")

    def __init__(self, rest: PullReply, records: Records) -> None:
        self._rest = rest
        self.records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


class PlainReply(NamedTuple):
    """A PullReply without an error, read like one, but for its records."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    source: bytes
    bounds: tuple[int, int] | None
    """Where in `source` the records are; None: everywhere."""
    record_lengths: bytes
    subscription_id: int
    ended: bool

    @property
    def deletion(self) -> DeletionReason:
        """Unspecified: the kernel leaves replies with a reason to protobuf."""
        return DELETION_REASON_UNSPECIFIED


Reply = PullReply | LargeReply | PlainReply


class Replies(NamedTuple):
    """A PullStreamReply, read like one."""

    answers: list[Reply]


def records_of(reply: Reply) -> Records:
    """Where an answer's records are."""
    if isinstance(reply, PlainReply):
        # As `Records(...)`, without the call of a Python function.
        return tuple.__new__(Records, (reply.source, reply.bounds))
    return reply.records if isinstance(reply, LargeReply) else Records(reply.frames, None)


def refusal_of(reply: Reply) -> Error | None:
    """Why a queue cannot be read, if that is what an answer says."""
    if isinstance(reply, PlainReply) or not reply.HasField("error"):
        return None
    error: Error = reply.error
    return error


def pull_stream_reply(message: bytes) -> PullStreamReply | Replies:
    """What a message of a pull stream answers.

    Raises:
        DecodeError: nothing.
    """
    if kernel.native is not None and type(message) is bytes:
        rows = kernel.native.pull_answers(message)
        if rows is not None:
            if len(rows) == 1:
                return Replies([tuple.__new__(PlainReply, rows[0])])
            return Replies([tuple.__new__(PlainReply, row) for row in rows])
    if len(message) < LARGE_BYTES:
        return PullStreamReply.FromString(message)
    try:
        found, rest = [], []
        for field in fields(message, 0, len(message)):
            if field.is_bytes and field.number == _ANSWERS:
                found.append((field.start, field.end))
            else:
                rest.append(message[field.begin : field.end])
        # What nobody reads has to be right as well.
        PullStreamReply.FromString(b"".join(rest))
        return Replies([_answer(message, *place, alone=len(found) == 1) for place in found])
    except ValueError:
        # No message, or one that is put together in a way that only the library knows.
        return PullStreamReply.FromString(message)


def _answer(message: bytes, start: int, end: int, *, alone: bool) -> Reply:
    """The answer in a part of a message; with others in it records are copied out: while they wait
    they must not keep those of other queues in memory."""
    if end - start < LARGE_BYTES:
        return PullReply.FromString(message[start:end])
    records, rest = Records(b"", None), []
    for field in fields(message, start, end):
        if not field.is_bytes or field.number != _FRAMES:
            rest.append(message[field.begin : field.end])
        elif alone:
            records = Records(message, (field.start, field.end))
        else:
            records = Records(message[field.start : field.end], None)
    return LargeReply(PullReply.FromString(b"".join(rest)), records)
