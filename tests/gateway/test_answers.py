"""Replies to receivers: the kernel's encoding equals that of the protobuf classes."""

import logging
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rockoon.message import Batch
from rockoon.receiving.received import ReceivedMessages, ReceivedRun
from rockoon_core.message_queue import MessageQueue
from rockoon_format import kernel
from rockoon_format.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_SEPARATOR,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    RESERVED_NAMES,
    encode,
)
from rockoon_format.record import Record, RecordError, encode_host, encode_record
from rockoon_gateway.delivered import Answers, _by_kernel, answers_to, to_wire
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Message, Resource
from rockoon_proto.apache.rocketmq.v2.service_pb2 import ReceiveMessageResponse
from rockoon_rpc.session import PREFIX
from support.kernels import needs_compiled, of_both, using
from support.random_messages import bodies, int32, int64, many_examples, sections

QUEUE = MessageQueue("orders", "broker-a", 3)
TOPIC = Resource(name="orders")
VALID_UNTIL_MS = 1_764_000_000_000
V4, V6 = encode_host("10.0.0.7", 50_000), encode_host("fd00::2", 10_911)

SHOWN = (
    *(PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_UNIQ_KEY, PROPERTY_BORN_TIMESTAMP, PROPERTY_BORN_HOST),
    *(PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_OUT_MS, PROPERTY_TIMER_DELAY_MS, PROPERTY_PRIORITY),
    *(PROPERTY_TIMER_DELAY_SEC, PROPERTY_DELAY_TIME_LEVEL, PROPERTY_SHARDING_KEY),
    *(PROPERTY_TRACE_CONTEXT, PROPERTY_LITE_TOPIC, PROPERTY_TRANSACTION_PREPARED),
    *(PROPERTY_TRANSACTION_ID, "__RMQ.TRANSIENT.x", "__RMQ.TRANSIENT", "größe", "TAG", "TAGS2"),
)
names = st.sampled_from([name.encode() for name in (*SHOWN, *SHOWN, *sorted(RESERVED_NAMES))])
texts = st.sampled_from(
    [b"true", b"a b  c\td", b"1764000000123", b"12345678901234", b"123456789012345", b"7", b"007"]
    * 3
    + ["٣".encode(), b"99999999999", b"2147483648", b"-1", b"x\x01y", 200 * b"v", b""]
)
wrong = st.sampled_from([b"\xff", b"\xed\xa0\x80"]) | st.binary(max_size=20)
values = st.integers(0, 39).flatmap(lambda chance: texts if chance else wrong)
pairs = st.lists(st.tuples(names, values), max_size=8).map(
    lambda some: b"".join(
        name + NAME_VALUE_SEPARATOR + value + PROPERTY_SEPARATOR for name, value in some
    )
)
records = st.builds(
    Record,
    topic=st.just(b"orders"),
    body=bodies | st.binary(min_size=50, max_size=70) | st.just(bytes(5000)),
    properties=st.integers(0, 7).flatmap(lambda chance: pairs if chance else sections),
    queue_id=int32,
    queue_offset=int64,
    physical_offset=st.integers(0, 2**63 - 1) | int64,
    sys_flag=st.sampled_from([*12 * [0, 8], 1, 0x301]),
    flag=int32,
    born_timestamp_ms=st.integers(0, 2**41) | int64,
    born_host=st.sampled_from([*12 * [V4], V6]),
    store_timestamp_ms=st.integers(0, 2**41) | int64,
    store_host=st.sampled_from([*12 * [V4], V6]),
    reconsume_times=st.sampled_from([0, 1]) | int32,
    prepared_transaction_offset=st.sampled_from([0, 0, 4096]) | int64,
)


def run_of(some: list[Record], queue: MessageQueue = QUEUE, **options: Any) -> ReceivedRun:
    frames = [encode_record(each) for each in some]
    batch = Batch(queue, b"".join(frames), np.array([len(frame) for frame in frames]))
    places = range(len(some))
    return ReceivedRun(queue, 4711, options.get("attempt", 1), 0, batch, places, places)


def told(answers: Answers) -> list[Message]:
    """Return the fields that a client reads from the frames."""
    found, at = [], 0
    for end in answers.ends:
        compressed, length = PREFIX.unpack_from(answers.frames, at)
        at += PREFIX.size
        assert (compressed, at + length) == (0, end)
        found.append(ReceiveMessageResponse.FromString(answers.frames[at:end]).message)
        at = end
    assert at == len(answers.frames)
    return found


def both(run: ReceivedRun) -> None:
    received = ReceivedMessages([run])
    by_classes, by_kernel = of_both(lambda: answers_to(received, TOPIC, VALID_UNTIL_MS))
    assert told(by_kernel) == told(by_classes)
    assert by_kernel.messages.receipts == by_classes.messages.receipts
    assert by_kernel.ends == by_classes.ends


@needs_compiled
@many_examples
@given(st.lists(records, min_size=1, max_size=5), st.sampled_from([0, 1, 2, 2**32 - 1]))
@example([Record(topic=b"orders", properties=b"TAGS\x01a\x02TAGS\x01b\x02x\x01y\x02x\x01z")], 1)
@example([Record(topic=b"orders", reconsume_times=2**31 - 1)], 1)
def test_what_the_kernel_writes_of_records_is_what_the_classes_write(
    some: list[Record], attempt: int
) -> None:
    both(run_of(some, attempt=attempt))


INTERPLAYS = [
    {"TIMER_DELIVER_MS": "1764000000123", "TIMER_OUT_MS": "7"},
    {"TIMER_OUT_MS": "7", "_SYS_MSG_PRIORITY_": "99999999999", "__LITE_TOPIC": "child"},
    {"_SYS_MSG_PRIORITY_": "2147483648", "__SHARDINGKEY": "g", "TRACE_CONTEXT": "t"},
    {"_SYS_MSG_PRIORITY_": "007", "__LITE_TOPIC": "child", "__SHARDINGKEY": "g"},
    {"__SHARDINGKEY": "g", "TRAN_MSG": "false", "BORN_TIMESTAMP": "٣", "__BORNHOST": "host-a"},
    {
        "TRAN_MSG": "true",
        "DELAY": "3",
        "BORN_TIMESTAMP": "0",
        "UNIQ_KEY": "01ABC",
        "KEYS": "a\tb  c",
    },
    {"TIMER_DELAY_SEC": "1", "__LITE_TOPIC": "child", "BORN_TIMESTAMP": "12345678901234"},
    {"TIMER_DELAY_MS": "1", "__transactionId__": "01ABC", "BORN_TIMESTAMP": "123456789012345"},
    dict.fromkeys(RESERVED_NAMES, "0") | {"größe": "größe", "TAG": "x", "__RMQ.TRANSIENT": "y"},
    {"__RMQ.TRANSIENT.x": "y", "WAIT": "true", "TAGS": "t", "TIMER_DELIVER_MS": "soon"},
]


@needs_compiled
@pytest.mark.parametrize("half_message", [-1, 0, 4096])
def test_properties_that_bear_on_one_another_are_told_alike(half_message: int) -> None:
    some = [
        Record(
            topic=b"orders",
            properties=encode(properties),
            queue_offset=offset,
            prepared_transaction_offset=half_message,
        )
        for offset, properties in enumerate(INTERPLAYS)
    ]
    both(run_of(some))


@needs_compiled
@many_examples
@given(records, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7))))
def test_of_records_with_wrong_bits_both_tell_the_same_or_nothing(
    record: Record, wrong: list[tuple[float, int]]
) -> None:
    frame = bytearray(encode_record(record))
    for place, bit in wrong:
        frame[int(place * len(frame))] ^= 1 << bit
    try:
        batch = Batch(QUEUE, bytes(frame), [len(frame)])
    except RecordError:
        return
    both(ReceivedRun(QUEUE, 4711, 1, 0, batch, range(1), range(1)))


@needs_compiled
@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing", "%LITE%parent|child"])
def test_topics_of_the_systems_own_making_are_told_alike(topic: str) -> None:
    stored = Record(topic=topic.encode(), body=b"b", properties=b"RETRY_TOPIC\x01orders\x02")
    both(run_of([stored, stored], MessageQueue(topic, "broker-a", 0)))


@needs_compiled
def test_usual_messages_are_the_kernels_and_rare_ones_among_them_are_in_their_place() -> None:
    usual = [Record(topic=b"orders", body=b"%d" % each, queue_offset=each) for each in range(3)]
    packed = Record(topic=b"orders", body=zlib.compress(b"rare"), sys_flag=1, queue_offset=3)
    run = run_of([*usual, packed])
    with using(kernel.COMPILED):
        assert _by_kernel(run, b"", VALID_UNTIL_MS)[2] == 1
        answers = answers_to(ReceivedMessages([run]), TOPIC, VALID_UNTIL_MS)
    found = told(answers)
    assert [each.body for each in found] == [b"0", b"1", b"2", b"rare"]
    handles = [each.system_properties.receipt_handle for each in found]
    assert handles == [f"{QUEUE}/4711/{each}/{VALID_UNTIL_MS}" for each in range(4)]


@pytest.mark.parametrize("choice", ["numpy", pytest.param("compiled", marks=needs_compiled)])
def test_one_that_cannot_be_delivered_is_left_out_and_said(
    choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [
        encode_record(Record(topic=b"orders", body=b"body %d" % each, queue_offset=each))
        for each in range(3)
    ]
    frames[1] = frames[1].replace(b"body 1", b"ydob 1")
    batch = Batch(QUEUE, b"".join(frames), [len(frame) for frame in frames])
    run = ReceivedRun(QUEUE, 4711, 1, 0, batch, range(3), range(3))
    with using(choice), caplog.at_level(logging.ERROR):
        answers = answers_to(ReceivedMessages([run, run]), TOPIC, VALID_UNTIL_MS)
    assert [each.body for each in told(answers)] == 2 * [b"body 0", b"body 2"]
    assert [each.offset for each in answers.messages.receipts] == [0, 2, 0, 2]
    assert "orders@broker-a:3/4711/1 cannot be delivered" in caplog.text


@pytest.mark.parametrize("choice", ["numpy", pytest.param("compiled", marks=needs_compiled)])
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_what_is_too_much_for_one_answer_is_left(choice: str, kind: str) -> None:
    big = bytes(1000)
    one = Record(topic=b"orders", body=big)
    if kind == "packed":
        one = replace(one, body=zlib.compress(big), sys_flag=1)
    some = [replace(one, queue_offset=each) for each in range(4)]
    received = ReceivedMessages([run_of(some), run_of(some)])
    with using(choice):
        for bytes_max in (1, 1000, 3200, 6000, 20_000):
            answers = answers_to(received, TOPIC, VALID_UNTIL_MS, bytes_max)
            assert len(told(answers)) == len(answers.messages)
            assert len(answers.frames) <= bytes_max + 2000
            assert len(answers.messages) >= min(max(bytes_max // 1300, 1), 8)
            both = [*answers.messages.receipts, *answers.left.receipts]
            assert both == received.receipts


def test_one_that_fails_as_no_one_foresaw_keeps_none_from_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def written(message: Any, *rest: Any, **options: Any) -> Message:
        if message.body == b"1":
            raise KeyError("a bug")
        return to_wire(message, *rest, **options)

    monkeypatch.setattr("rockoon_gateway.delivered.to_wire", written)
    some = [Record(topic=b"orders", body=b"%d" % each, queue_offset=each) for each in range(3)]
    with using("numpy"):
        answers = answers_to(ReceivedMessages([run_of(some)]), TOPIC, VALID_UNTIL_MS)
    assert [each.body for each in told(answers)] == [b"0", b"2"]
    assert [each.offset for each in answers.messages.receipts] == [0, 2]
    assert "unexpected error while converting" in caplog.text


def test_long_answers_are_cut_between_messages() -> None:
    some = [Record(topic=b"orders", body=bytes(1000), queue_offset=each) for each in range(9)]
    answers = answers_to(ReceivedMessages([run_of(some)]), TOPIC, VALID_UNTIL_MS)
    pieces = list(answers.pieces(bytes_max=3000))
    assert [count for _, count in pieces] == [2, 2, 2, 2, 1]
    assert b"".join(frames for frames, _ in pieces) == answers.frames
    assert [count for _, count in answers.pieces(bytes_max=1)] == 9 * [1]
    assert list(answers_to(ReceivedMessages(), TOPIC, 0).pieces()) == []
