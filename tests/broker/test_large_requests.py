"""Append requests whose records are not copied, compared with protobuf's result for the same
bytes."""

import gc
import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rockoon_broker.rpc import large_requests
from rockoon_broker.rpc.large_requests import (
    LargeRequest,
    PlainRequest,
    append_request,
    batch_of,
    records_of,
)
from rockoon_core.wire_fields import bytes_tag, varint
from rockoon_proto.v1.broker_pb2 import AppendRequest
from support.kernels import BOTH, each_kernel
from support.random_messages import many_examples, overlong

kernels = pytest.fixture(autouse=True, scope="module", params=BOTH)(each_kernel)

_NAMES = [field.name for field in AppendRequest.DESCRIPTOR.fields if field.name != "more"]

numbers = st.integers(0, 2**63 - 1)
requests = st.builds(
    AppendRequest,
    topic=st.sampled_from(["", "T", "日本"]),
    queue_id=st.integers(0, 2**31 - 1),
    frames=st.binary(max_size=300),
    record_lengths=st.binary(max_size=20),
    route_revision=numbers,
    request_id=numbers,
    producer_id=numbers,
)
joint = st.builds(
    lambda first, more: AppendRequest(**{name: getattr(first, name) for name in _NAMES}, more=more),
    requests,
    st.lists(requests, max_size=4),
)
# Messages of other encoders: repeated fields, other kinds, unknown fields, nesting, invalid bytes.
pieces = st.one_of(
    requests.map(AppendRequest.SerializeToString),
    st.builds(
        lambda number, value: bytes_tag(number) + varint(len(value)) + value,
        st.sampled_from([0, 1, 3, 4, 13, 200]),
        st.binary(max_size=40) | joint.map(AppendRequest.SerializeToString),
    ),
    st.builds(
        lambda number, kind, rest: varint(number << 3 | kind) + rest,
        st.integers(0, 15),
        st.integers(0, 7),
        st.binary(max_size=12),
    ),
    st.binary(max_size=12) | overlong,
)


def plain(request: Any) -> object:
    """Return the fields of a request that the broker uses."""
    return [getattr(request, name) for name in _NAMES], [plain(each) for each in request.more]


def read(parse: Any, message: bytes) -> object:
    try:
        return plain(parse(message))
    except DecodeError:
        return None


@pytest.mark.parametrize("large_bytes", [0, 100])
@many_examples
@given(joint.map(AppendRequest.SerializeToString))
def test_what_is_read_is_what_protobuf_reads(large_bytes: int, message: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_requests, "LARGE_BYTES", large_bytes)
        expected = plain(AppendRequest.FromString(message))
        assert read(append_request, message) == expected
        assert read(append_request, bytearray(message)) == expected


@pytest.mark.parametrize("large_bytes", [0, 100])
@many_examples
@given(st.lists(pieces, max_size=4).map(b"".join))
def test_of_odd_messages_protobuf_reads_the_same_or_they_are_refused(
    large_bytes: int, message: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_requests, "LARGE_BYTES", large_bytes)
        expected = read(AppendRequest.FromString, message)
        found = read(append_request, message)
        assert found in (expected, None)
        assert read(append_request, bytearray(message)) == found


def test_large_records_are_where_they_came() -> None:
    frames = bytes(range(256)) * 256
    request = AppendRequest(topic="T", frames=frames, more=[AppendRequest(frames=frames[1:])])
    message = request.SerializeToString()
    came = append_request(message)
    for each, own in ((came, frames), (came.more[0], frames[1:])):
        assert isinstance(each, LargeRequest | PlainRequest)
        assert records_of(each).source is message
        batch = batch_of(each)
        assert batch.source is message
        assert (batch.frames, batch.frames_bytes) == (own, len(own))


def test_depth_does_not_end_a_broker() -> None:
    message = bytes(large_requests.LARGE_BYTES)
    for _ in range(5000):
        message = bytes_tag(AppendRequest.MORE_FIELD_NUMBER) + varint(len(message)) + message
    with pytest.raises(DecodeError):
        append_request(message)


def nested(message: bytes) -> bytes:
    return bytes_tag(AppendRequest.MORE_FIELD_NUMBER) + varint(len(message)) + message


_TOPIC = AppendRequest(topic="T").SerializeToString()
_EMPTY = nested(b"")
_MIBS = 1 << 20
_LARGE = bytes_tag(AppendRequest.FRAMES_FIELD_NUMBER) + varint(_MIBS) + bytes(_MIBS)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(_TOPIC + varint(1000 << 3) + b"\1" + b"\x38\1" * _MIBS, id="unknown fields"),
        pytest.param(_TOPIC + _EMPTY * _MIBS, id="empty batches"),
        pytest.param(_TOPIC + b"\xbb\1\xbc\1" + _EMPTY * _MIBS, id="a group first"),
        pytest.param(_TOPIC + _LARGE + nested(_EMPTY), id="a batch in a small batch"),
        pytest.param(_TOPIC + nested(_LARGE + _EMPTY * _MIBS), id="batches in a large batch"),
        pytest.param(_TOPIC + nested(b"\x38\1" * _MIBS), id="unknown fields in a batch"),
    ],
)
def test_a_large_message_of_very_many_things_is_refused_at_once(message: bytes) -> None:
    """protobuf accepts all of these, and needs gigabytes of memory for 64 MiB."""
    # Otherwise the garbage of the previous test is collected within this one.
    gc.disable()
    try:
        begun = time.thread_time()
        with pytest.raises(DecodeError):
            append_request(message)
        assert time.thread_time() - begun < 0.2
    finally:
        gc.enable()
