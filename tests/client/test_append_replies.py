"""Replies of an append stream: the kernel's result equals that of protobuf."""

from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rockoon.net.large_replies import StoredBatch, append_reply
from rockoon_core.wire_fields import bytes_tag, varint
from rockoon_proto.v1.broker_pb2 import Appended, AppendReply
from rockoon_proto.v1.errors_pb2 import Error
from support.kernels import needs_compiled, using
from support.random_messages import many_examples, overlong

pytestmark = needs_compiled

numbers = st.sampled_from([0, 1, 127, 128, 2**31, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
places = st.builds(
    Appended,
    first_queue_offset=numbers,
    first_physical_offset=numbers,
    messages=st.integers(-(2**31), 2**31 - 1),
    store_timestamp_ms=numbers,
    store_host=st.binary(max_size=20),
)
plain = st.builds(AppendReply, request_id=numbers, appended=places)
special = st.one_of(
    st.builds(AppendReply, request_id=numbers, error=st.builds(Error, message=st.text(max_size=5))),
    st.builds(AppendReply, request_id=numbers, appended=places, batches_max=st.integers(0, 256)),
    st.builds(
        lambda first, more: AppendReply(
            appended=Appended(first_queue_offset=first.first_queue_offset, more=[more])
        ),
        places,
        places,
    ),
)


def with_more(first: AppendReply, more: list[AppendReply]) -> bytes:
    first.more.extend(more)
    return first.SerializeToString()


replies = st.builds(with_more, plain | special, st.lists(plain | special, max_size=3))
# Messages of other encoders: repeated fields, other kinds, unknown fields, and invalid bytes.
odd = st.lists(
    st.one_of(
        replies,
        st.builds(
            lambda number, value: bytes_tag(number) + varint(len(value)) + value,
            st.sampled_from([0, 1, 2, 4, 200]),
            st.binary(max_size=20) | replies | places.map(Appended.SerializeToString),
        ),
        st.builds(
            lambda number, kind, rest: varint(number << 3 | kind) + rest,
            st.integers(0, 6),
            st.integers(0, 7),
            st.binary(max_size=12),
        ),
        st.binary(max_size=12) | overlong,
    ),
    max_size=4,
).map(b"".join)


def read(message: bytes) -> Any:
    """Return protobuf's result in the fields of `Stored`; None if it refuses the bytes."""
    try:
        reply = AppendReply.FromString(message)
    except DecodeError:
        return None
    found = []
    for each in (reply, *reply.more):
        at = each.appended
        where = at.first_queue_offset, at.first_physical_offset, at.messages, at.store_timestamp_ms
        found.append((each.request_id, *where, at.store_host))
    return found


@many_examples
@given(replies | odd)
def test_what_the_kernel_reads_is_what_protobuf_reads(message: bytes) -> None:
    with using("compiled"):
        try:
            found = append_reply(message)
        except DecodeError:
            assert read(message) is None
            return
    if isinstance(found, list):
        assert found == read(message)
        reply = AppendReply.FromString(message)
        assert not reply.batches_max
        for each in (reply, *reply.more):
            assert each.HasField("appended")
            assert not each.appended.more
    else:
        assert found == AppendReply.FromString(message)


@given(st.builds(with_more, plain, st.lists(plain, max_size=3)))
def test_where_batches_are_is_read_by_the_kernel(message: bytes) -> None:
    with using("compiled"):
        found = append_reply(message)
    if all(number >= 0 for each in read(message) for number in each[:-1]):
        assert isinstance(found, list)
        assert all(isinstance(each, StoredBatch) for each in found)
