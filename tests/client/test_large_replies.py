"""Replies of a pull stream whose records are not copied, compared with protobuf's result."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rockoon.consumer.pull import Pulled, interpret
from rockoon.message import Batch
from rockoon.net import large_replies
from rockoon.net.large_replies import (
    LargeReply,
    PullReplyFields,
    pull_stream_reply,
    records_of,
)
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_core.wire_fields import bytes_tag, varint
from rockoon_format.batch_encoding import encode_batch
from rockoon_proto.v1.broker_pb2 import FOUND, LogColumns, PullReply, PullStreamReply
from rockoon_proto.v1.errors_pb2 import Error
from support.kernels import BOTH, each_kernel
from support.random_messages import many_examples, overlong

kernels = pytest.fixture(autouse=True, scope="module", params=BOTH)(each_kernel)

QUEUE = MessageQueue("orders", "broker-a", 0)
_MESSAGES = ("error", "columns")
_NAMES = [
    field.name for field in PullReply.DESCRIPTOR.fields if field.name not in ("frames", *_MESSAGES)
]

replies = st.builds(
    PullReply,
    status=st.integers(0, 9),
    next_offset=st.integers(-1, 2**62),
    frames=st.binary(max_size=300),
    record_lengths=st.binary(max_size=20),
    subscription_id=st.integers(0, 100),
    ended=st.booleans(),
    error=st.none() | st.builds(Error, message=st.text(max_size=5)),
    columns=st.none() | st.builds(LogColumns, records=st.integers(0, 9)),
)
wholes = st.builds(PullStreamReply, answers=st.lists(replies, max_size=3)).map(
    PullStreamReply.SerializeToString
)
pieces = st.one_of(
    wholes,
    overlong,
    st.builds(
        lambda number, kind, rest: varint(number << 3 | kind) + rest,
        st.integers(0, 6),
        st.integers(0, 7),
        st.binary(max_size=12),
    ),
    st.builds(
        lambda value: bytes_tag(1) + varint(len(value)) + value, st.binary(max_size=20) | wholes
    ),
)


def read(parse: Any, message: bytes) -> object:
    try:
        return [
            ([getattr(each, name) for name in _NAMES], messages_of(each), frames_of(each))
            for each in parse(message).answers
        ]
    except DecodeError:
        return None


def messages_of(reply: Any) -> list[object]:
    """Nested messages of the reply; the kernel leaves replies with a nested message to protobuf."""
    if isinstance(reply, PullReplyFields):
        return []
    return [getattr(reply, name) for name in _MESSAGES if reply.HasField(name)]


def frames_of(reply: Any) -> bytes:
    source, bounds = records_of(reply)
    return source if bounds is None else source[slice(*bounds)]


@pytest.mark.parametrize("large_bytes", [0, 100])
@many_examples
@given(st.lists(pieces, max_size=3).map(b"".join))
def test_what_is_read_is_what_protobuf_reads(large_bytes: int, message: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_replies, "LARGE_BYTES", large_bytes)
        expected = read(PullStreamReply.FromString, message)
        assert read(pull_stream_reply, message) == expected
        assert read(pull_stream_reply, bytearray(message)) == expected


def reply(first: int, count: int) -> PullReply:
    """Return a reply with messages of 100 bytes."""
    frames, lengths = encode_batch(b"orders", 0, [b"x" * 100] * count, [b""] * count, 0, bytes(8))
    numbered = bytearray(frames)
    for index in range(count):
        at = index * int(lengths[0]) + 20
        numbered[at : at + 8] = (first + index).to_bytes(8)
    return PullReply(
        status=FOUND,
        next_offset=first + count,
        frames=bytes(numbered),
        record_lengths=lengths.astype("<u4").tobytes(),
    )


def test_an_answer_that_came_alone_is_read_where_it_is() -> None:
    message = PullStreamReply(answers=[reply(5, 500)]).SerializeToString()
    (came,) = pull_stream_reply(message).answers
    assert isinstance(came, LargeReply | PullReplyFields)
    assert records_of(came).source is message
    pulled = interpret(QUEUE, 5, came, Subscription.parse("orders", "*"))
    assert isinstance(pulled, Pulled)
    assert pulled.batch is not None
    assert pulled.batch.bodies == [b"x" * 100] * 500
    assert pulled.batch[7].record == reply(12, 1).frames
    rest = pulled.rest(400)
    assert rest is not None
    assert rest.offsets.tolist() == list(range(405, 505))
    assert rest.frames == reply(405, 100).frames
    assert rest.bodies == [b"x" * 100] * 100


def test_answers_that_came_together_do_not_keep_one_another() -> None:
    message = PullStreamReply(answers=[reply(0, 500), reply(0, 300)]).SerializeToString()
    for came, count in zip(pull_stream_reply(message).answers, (500, 300), strict=True):
        assert records_of(came) == (reply(0, count).frames, None)


def test_a_part_is_the_batch_of_its_records() -> None:
    whole = reply(3, 9)
    batch = Batch(
        QUEUE, b"ab" + whole.frames + b"c", whole.record_lengths, bounds=(2, 2 + len(whole.frames))
    )
    assert batch.frames == whole.frames
    for first, end in ((0, 9), (2, 5), (8, 9), (4, 4)):
        part = batch.part(first, end)
        assert part.frames == reply(3 + first, end - first).frames
        assert part.offsets.tolist() == list(range(3 + first, 3 + end))
