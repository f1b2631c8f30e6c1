"""Append requests whose records are copied once at most: protobuf would do it twice.

The compiled kernel reads those that say nothing special (`PlainRequest`), all batches of one at
once: a field of a protobuf message costs Python as much as a call.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rockoon_broker.idempotence.replay import takes_sequences
from rockoon_broker.store.log.batch import Batch, SequencedBatch, SequenceKey
from rockoon_core.errors import InvalidArgument
from rockoon_core.wire_fields import Field, fields
from rockoon_format import kernel
from rockoon_proto.v1.broker_pb2 import ORDINARY, AppendRequest

# Below, two copies cost less than to look for the records.
LARGE_BYTES = 32 << 10
# Of one message, each batch of `more` being one; each takes a microsecond, in which the loop does
# nothing else, and those of a hostile message may have two bytes.
FIELDS_MAX = 1024
# Of one of several batches.
FURTHER_FIELDS_MAX = 64
_FRAMES = AppendRequest.FRAMES_FIELD_NUMBER
_MORE = AppendRequest.MORE_FIELD_NUMBER


class Records(NamedTuple):
    """Where a request's records are: everywhere in `source`, or within bounds."""

    source: bytes
    bounds: tuple[int, int] | None


class LargeRequest:
    """An AppendRequest, read like one; its records are copied only if `frames` is asked for.

    Args:
        rest: its other fields.
        records: where these are.
        more: as the field of this name.
    """

    __slots__ = ("_rest", "more", "records")

    def __init__(self, rest: AppendRequest, records: Records, more: "list[Request]") -> None:
        self._rest = rest
        self.records = records
        self.more = more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)

    @property
    def frames(self) -> bytes:
        """The records alone."""
        source, bounds = self.records
        return source if bounds is None else source[slice(*bounds)]


class PlainRequest:
    """An AppendRequest without anything special, read like one.

    Args:
        batch: its own.
        more: as the field of this name.
    """

    __slots__ = ("batch", "more", "request_id", "route_revision")

    handling = ORDINARY
    traceparent = ""
    producer_id = first_sequence = first_sent_ms_ago = 0

    def __init__(
        self, batch: Batch, route_revision: int, request_id: int, more: "Sequence[PlainRequest]"
    ) -> None:
        self.batch = batch
        self.route_revision = route_revision
        self.request_id = request_id
        self.more = more

    @property
    def topic(self) -> str:
        return self.batch.topic

    @property
    def queue_id(self) -> int:
        return self.batch.queue_id

    @property
    def record_lengths(self) -> bytes:
        return self.batch.lengths

    @property
    def frames(self) -> bytes:
        """The records alone."""
        return self.batch.frames


Request = AppendRequest | LargeRequest | PlainRequest


def append_request(message: bytes) -> Request:
    """What a message of an append stream asks for.

    Raises:
        DecodeError: nothing, or a large message is put together as no producer does it: of very
            many fields, with groups, with batches in batches. The library takes such ones, and
            makes gigabytes of them.
    """
    if kernel.native is not None and type(message) is bytes:
        found = kernel.native.append_request(message)
        if found is not None:
            more = [_plain(message, each, ()) for each in found[1:]] if len(found) > 1 else ()
            return _plain(message, found[0], more)
    if len(message) < LARGE_BYTES:
        return AppendRequest.FromString(message)
    try:
        return _taken_apart(message, 0, len(message), is_further=False)
    except ValueError as failure:
        raise DecodeError(str(failure)) from failure


def records_of(request: Request) -> Records:
    """Where a request's records are."""
    if isinstance(request, PlainRequest):
        return Records(request.batch.source, request.batch.bounds)
    if isinstance(request, LargeRequest):
        return request.records
    return Records(request.frames, None)


def batch_of(request: Request) -> Batch:
    """The batch that a request brings.

    Raises:
        InvalidArgument: what it says of sequence numbers is wrong.
    """
    if isinstance(request, PlainRequest):
        return request.batch
    source, bounds = records_of(request)
    return Batch(
        request.topic,
        request.queue_id,
        source,
        request.record_lengths,
        sequenced_batch(request) if request.producer_id else None,
        bounds=bounds,
    )


def sequenced_batch(request: Request) -> SequencedBatch:
    """What an idempotent producer says of its batch."""
    if request.handling != ORDINARY:
        raise InvalidArgument(reason="delayed and half messages have no sequence numbers")
    if not takes_sequences(request.topic):
        raise InvalidArgument(reason=f"messages of {request.topic!r} have no sequence numbers")
    key = SequenceKey(request.producer_id, request.topic, request.queue_id)
    return SequencedBatch(key, request.first_sequence, max(request.first_sent_ms_ago, 0))


def _plain(message: bytes, found: tuple[Any, ...], more: "Sequence[PlainRequest]") -> PlainRequest:
    """The request of a batch that the kernel has found in a message."""
    topic, queue_id, bounds, lengths, route_revision, request_id = found
    batch = Batch(topic, queue_id, message, lengths, bounds=bounds)
    return PlainRequest(batch, route_revision, request_id, more)


def _taken_apart(message: bytes, start: int, end: int, *, is_further: bool) -> Request:
    """The request in a part of a message; `is_further`: it is one of another's `more`."""
    records = Records(b"", None)
    more: list[Request] = []
    rest = []
    fields_max = FURTHER_FIELDS_MAX if is_further else FIELDS_MAX
    for count, field in enumerate(fields(message, start, end)):
        if count >= fields_max:
            raise ValueError(f"more than {fields_max} fields")
        if not field.is_bytes or field.number not in (_FRAMES, _MORE):
            rest.append(message[field.begin : field.end])
        elif field.number == _FRAMES:
            # Of several the last one counts, as protobuf has it.
            records = Records(message, (field.start, field.end))
        elif is_further:
            raise ValueError("batches in batches")
        else:
            more.append(_further(message, field))
    return LargeRequest(AppendRequest.FromString(b"".join(rest)), records, more)


def _further(message: bytes, field: Field) -> Request:
    """One of the batches behind a message's first."""
    if field.end - field.start >= LARGE_BYTES:
        return _taken_apart(message, field.start, field.end, is_further=True)
    request = AppendRequest.FromString(message[field.start : field.end])
    if request.more:
        raise ValueError("batches in batches")
    return request
