"""Append requests, parsed with at most one copy of the records: protobuf would copy them twice.

The compiled kernel parses requests without optional fields (`PlainRequest`), all batches of a
message in one call: a field of a protobuf message costs Python as much as a call.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rockoon_broker.idempotence.memory import takes_sequences
from rockoon_broker.store.log.batch import AppendBatch, SequencedBatch, SequenceKey
from rockoon_core.errors import InvalidArgument
from rockoon_core.wire_fields import Field, fields
from rockoon_format import kernel
from rockoon_proto.v1.broker_pb2 import ORDINARY, AppendRequest

# For smaller messages, two copies cost less than finding the records.
LARGE_BYTES = 32 << 10
# Fields of a message; each batch of `more` counts as one. A field blocks the loop for a
# microsecond, and in a hostile message it may have two bytes only.
FIELDS_MAX = 1024
# Fields of a batch of `more`.
FURTHER_FIELDS_MAX = 64
_FRAMES = AppendRequest.FRAMES_FIELD_NUMBER
_MORE = AppendRequest.MORE_FIELD_NUMBER


class RequestRecords(NamedTuple):
    """Position of a request's records in `source`: start and end; None: from its start to its
    end."""

    source: bytes
    bounds: tuple[int, int] | None


class LargeRequest:
    """A large AppendRequest, with the fields of the message; only `frames` copies the records.

    Args:
        rest: all fields except records and `more`.
        records: position of the records.
        more: as the field of this name.
    """

    __slots__ = ("_rest", "more", "records")

    def __init__(self, rest: AppendRequest, records: RequestRecords, more: "list[Request]") -> None:
        self._rest = rest
        self.records = records
        self.more = more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)

    @property
    def frames(self) -> bytes:
        """The records, copied."""
        source, bounds = self.records
        return source if bounds is None else source[slice(*bounds)]


class PlainRequest:
    """An AppendRequest without optional fields, with the attributes of the message."""

    __slots__ = ("batch", "more", "request_id", "route_revision")

    handling = ORDINARY
    traceparent = ""
    producer_id = first_sequence = first_sent_ms_ago = 0

    def __init__(
        self,
        batch: AppendBatch,
        route_revision: int,
        request_id: int,
        more: "Sequence[PlainRequest]",
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
        """The records, copied."""
        return self.batch.frames


Request = AppendRequest | LargeRequest | PlainRequest


def append_request(message: bytes) -> Request:
    """Return the request of a message of an append stream.

    Raises:
        DecodeError: it is not an AppendRequest, or it is large and has a form that no producer
            creates: very many fields, groups, or batches in batches. The protobuf library accepts
            these forms, and would need gigabytes of memory.
    """
    if type(message) is bytes:
        found = kernel.native.append_request(message)
        if found is not None:
            more = [_plain_request(message, it, ()) for it in found[1:]] if len(found) > 1 else ()
            return _plain_request(message, found[0], more)
    if len(message) < LARGE_BYTES:
        return AppendRequest.FromString(message)
    try:
        return _parsed(message, 0, len(message), is_further=False)
    except ValueError as failure:
        raise DecodeError(str(failure)) from failure


def records_of(request: Request) -> RequestRecords:
    """Return the position of a request's records."""
    if isinstance(request, PlainRequest):
        return RequestRecords(request.batch.source, request.batch.bounds)
    if isinstance(request, LargeRequest):
        return request.records
    return RequestRecords(request.frames, None)


def batch_of(request: Request) -> AppendBatch:
    """Return the batch of a request. Raises InvalidArgument: a batch of its kind must not have
    sequence numbers."""
    if isinstance(request, PlainRequest):
        return request.batch
    source, bounds = records_of(request)
    return AppendBatch(
        request.topic,
        request.queue_id,
        source,
        request.record_lengths,
        sequenced_batch(request) if request.producer_id else None,
        bounds=bounds,
    )


def sequenced_batch(request: Request) -> SequencedBatch:
    """Return the sequence numbers of a request; raises InvalidArgument as `batch_of`."""
    if request.handling != ORDINARY:
        raise InvalidArgument(reason="delayed and half messages have no sequence numbers")
    if not takes_sequences(request.topic):
        raise InvalidArgument(reason=f"messages of {request.topic!r} have no sequence numbers")
    key = SequenceKey(request.producer_id, request.topic, request.queue_id)
    return SequencedBatch(key, request.first_sequence, max(request.first_sent_ms_ago, 0))


def _plain_request(
    message: bytes, found: tuple[Any, ...], more: "Sequence[PlainRequest]"
) -> PlainRequest:
    """Return the request of a batch that the kernel has found in a message."""
    topic, queue_id, bounds, lengths, route_revision, request_id = found
    batch = AppendBatch(topic, queue_id, message, lengths, None, False, bounds)
    return PlainRequest(batch, route_revision, request_id, more)


def _parsed(message: bytes, start: int, end: int, *, is_further: bool) -> Request:
    """Return the request between two positions; `is_further`: it is an entry of `more`."""
    records = RequestRecords(b"", None)
    more: list[Request] = []
    rest = []
    fields_max = FURTHER_FIELDS_MAX if is_further else FIELDS_MAX
    for count, field in enumerate(fields(message, start, end)):
        if count >= fields_max:
            raise ValueError(f"more than {fields_max} fields")
        if not field.is_bytes or field.number not in (_FRAMES, _MORE):
            rest.append(message[field.begin : field.end])
        elif field.number == _FRAMES:
            # If the field is repeated, the last one counts, as in protobuf.
            records = RequestRecords(message, (field.start, field.end))
        elif is_further:
            raise ValueError("batches in batches")
        else:
            more.append(_further(message, field))
    return LargeRequest(AppendRequest.FromString(b"".join(rest)), records, more)


def _further(message: bytes, field: Field) -> Request:
    """Return the request of an entry of `more`."""
    if field.end - field.start >= LARGE_BYTES:
        return _parsed(message, field.start, field.end, is_further=True)
    request = AppendRequest.FromString(message[field.start : field.end])
    if request.more:
        raise ValueError("batches in batches")
    return request
