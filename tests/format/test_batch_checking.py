"""Batches that a broker refuses."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rockoon_format.batch import (
    SYS_FLAGS_ALLOWED,
    BatchError,
    BatchFault,
    BatchLayout,
    check_batch,
    scan,
)
from rockoon_format.batch_checking import FEW_RECORDS_MAX
from rockoon_format.record import Record, encode_host, encode_record
from support.random_messages import (
    BODY_BYTES_MAX,
    RECORD_BYTES_MAX,
    Messages,
    batches,
    many_examples,
)

pytestmark = pytest.mark.usefixtures("each_kernel")

HOST = encode_host("10.0.0.9", 10911)


@dataclass
class Case:
    """Return a valid batch of three records for queue 7 of T; a test damages the second."""

    frames: bytearray
    lengths: list[int]

    def check(self, **limits: int) -> BatchLayout:
        return check_batch(
            bytes(self.frames),
            self.lengths,
            topic=b"T",
            queue_id=7,
            body_bytes_max=limits.get("body", 100),
            properties_bytes_max=limits.get("properties", 100),
            record_bytes_max=limits.get("record", 300),
            sys_flags_allowed=limits.get("flags", SYS_FLAGS_ALLOWED),
        )

    def refusal(self, **limits: int) -> tuple[BatchFault, int]:
        with pytest.raises(BatchError) as caught:
            self.check(**limits)
        return caught.value.reason, caught.value.index


def case(**second: object) -> Case:
    plain = encode_record(Record(topic=b"T", queue_id=7, body=b"abc", properties=b"A\x01b\x02"))
    fields: dict[str, object] = {"topic": b"T", "queue_id": 7, "body": b"middle", **second}
    middle = encode_record(Record(**fields))  # type: ignore[arg-type]
    return Case(bytearray(plain + middle + plain), [len(plain), len(middle), len(plain)])


def damaged(at: int, value: bytes) -> Case:
    made = case()
    start = made.lengths[0] + at
    made.frames[start : start + len(value)] = value
    return made


def test_a_good_batch_is_accepted() -> None:
    layout = case().check()
    assert layout.count == 3
    assert layout.starts.tolist() == [0, 99, 197]
    assert layout.total_bytes == 296


def test_a_batch_of_nothing_is_refused() -> None:
    assert Case(bytearray(), []).refusal() == (BatchFault.EMPTY, 0)


@pytest.mark.parametrize(
    ("lengths", "index"),
    [
        ([296], None),
        ([99, 98], 0),
        ([99, 98, 99, 99], 0),
        ([98, 99, 99], None),
        ([0, 197, 99], 0),
        ([99, 90, 107], 1),
        ([99, 2**62, 2**63 - 1], 1),
    ],
)
def test_lengths_that_do_not_fit_the_frames_are_refused(
    lengths: list[int], index: int | None
) -> None:
    made = case()
    made.lengths = lengths
    reason, at = made.refusal()
    if index is None:
        assert reason in (BatchFault.SIZE, BatchFault.MAGIC)
    else:
        assert (reason, at) == (BatchFault.LENGTHS, index)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"\0\0\0\x61", BatchFault.SIZE),
        (0, b"\xff\xff\xff\xff", BatchFault.SIZE),
        (4, b"\xcb\xd4\x31\x94", BatchFault.MAGIC),
        (4, b"\0\0\0\0", BatchFault.MAGIC),
        (8, b"\xff\xff\xff\xff", BatchFault.BODY_CRC),
        (12, b"\0\0\0\6", BatchFault.QUEUE),
        (36, b"\0\0\0\4", BatchFault.SYS_FLAG),
        (36, b"\0\0\0\x08", BatchFault.SYS_FLAG),
        (36, b"\0\0\0\x80", BatchFault.SYS_FLAG),
        (36, b"\x80\0\0\0", BatchFault.SYS_FLAG),
        (36, b"\0\0\0\x20", BatchFault.STORE_HOST),
        (36, b"\0\0\0\x10", BatchFault.SIZE),
        (84, b"\0\0\0\7", BatchFault.SIZE),
        (84, b"\x7f\xff\xff\xff", BatchFault.SIZE),
        (84, b"\xff\xff\xff\xff", BatchFault.SIZE),
        (88, b"M", BatchFault.BODY_CRC),
        (94, b"\2", BatchFault.SIZE),
        (94, b"\xff", BatchFault.SIZE),
        (95, b"U", BatchFault.TOPIC),
        (96, b"\xff\xff", BatchFault.SIZE),
        (96, b"\x7f\xff", BatchFault.SIZE),
    ],
)
def test_a_damaged_record_is_refused_by_name(at: int, value: bytes, reason: BatchFault) -> None:
    assert damaged(at, value).refusal() == (reason, 1)


def test_negative_lengths_are_refused_though_recovery_reads_them_as_empty() -> None:
    for body, at in ((b"", 84), (b"middle", 96)):
        made = case(body=body)
        start = made.lengths[0] + at
        width = 4 if at == 84 else 2
        made.frames[start : start + width] = b"\xff" * width
        assert made.refusal() == (BatchFault.SIZE, 1)
        assert scan(bytes(made.frames), 0, len(made.frames)).count == 3


def test_each_limit_admits_its_own_size_and_nothing_larger() -> None:
    made = case(body=50 * b"x", properties=b"A\x01" + 40 * b"v")
    size = made.lengths[1]
    made.check(body=50, properties=42, record=size)
    assert made.refusal(body=49) == (BatchFault.BODY_TOO_LARGE, 1)
    assert made.refusal(properties=41) == (BatchFault.PROPERTIES_TOO_LARGE, 1)
    assert made.refusal(record=size - 1) == (BatchFault.RECORD_TOO_LARGE, 1)


def test_a_topic_that_only_begins_alike_is_refused() -> None:
    for topic in (b"TT", b"U", b"", 200 * b"T"):
        assert case(topic=topic).refusal(record=500) == (BatchFault.TOPIC, 1)


def test_a_v1_topic_length_that_java_reads_as_negative_is_refused() -> None:
    topic = 200 * b"t"
    head = bytearray(encode_record(Record(topic=b""))[:88])
    head[0:4] = (91 + 200).to_bytes(4)
    frame = bytes(head) + b"\xc8" + topic + b"\0\0"
    for times in (1, FEW_RECORDS_MAX + 1):
        with pytest.raises(BatchError):
            check_batch(
                frame * times,
                [len(frame)] * times,
                topic=topic,
                queue_id=0,
                body_bytes_max=9,
                record_bytes_max=300,
            )
    assert scan(frame, 0, len(frame)).count == 0


def test_committed_transactions_pass_where_they_are_allowed() -> None:
    made = case(sys_flag=0x8)
    assert made.refusal() == (BatchFault.SYS_FLAG, 1)
    assert made.check(flags=SYS_FLAGS_ALLOWED | 0x8).count == 3
    with pytest.raises(ValueError, match="cannot be allowed"):
        made.check(flags=0xC)
    with pytest.raises(ValueError, match="cannot be allowed"):
        made.check(flags=0x20)


def test_a_delay_that_would_stop_a_recovery_is_refused() -> None:
    frames = encode_record(Record(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01soon\x02"))
    with pytest.raises(BatchError) as caught:
        check_batch(
            frames,
            [len(frames)],
            topic=b"SCHEDULE_TOPIC_XXXX",
            queue_id=0,
            body_bytes_max=9,
            record_bytes_max=300,
        )
    assert caught.value.reason is BatchFault.DELAY_LEVEL


def _check(messages: Messages, frames: bytes, lengths: NDArray[np.uint32]) -> BatchLayout:
    """Check the batch, and the same records many times over, which uses another path."""
    layouts: list[BatchLayout] = []
    refused = 0
    for times in (1, FEW_RECORDS_MAX + 1):
        try:
            layouts.append(
                check_batch(
                    frames * times,
                    np.tile(lengths, times),
                    topic=messages.topic,
                    queue_id=messages.queue_id,
                    body_bytes_max=BODY_BYTES_MAX,
                    record_bytes_max=RECORD_BYTES_MAX,
                )
            )
        except BatchError as error:
            refusal = error
            refused += 1
    assert refused in (0, 2)
    if refused:
        raise refusal
    few, many = layouts
    for name in ("starts", "lengths", "tag_codes", "store_positions"):
        of_few, of_many = getattr(few, name), getattr(many, name)
        assert of_few.dtype == of_many.dtype == np.int64
        assert np.array_equal(of_few, of_many[: few.count])
    return few


@given(messages=batches())
@many_examples
def test_what_is_accepted_is_what_recovery_finds_with_the_same_tags(messages: Messages) -> None:
    frames, lengths = messages.encode()
    layout = _check(messages, frames, lengths)
    found = scan(frames, 0, len(frames))
    assert found.offsets.tolist() == layout.starts.tolist()
    assert found.sizes.tolist() == layout.lengths.tolist()
    assert found.tag_codes.tolist() == layout.tag_codes.tolist()
    assert found.topics == [messages.topic]


@given(
    messages=batches(count_max=4),
    flips=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 7)), min_size=1, max_size=40),
)
@many_examples
def test_no_flipped_bit_gets_past_the_check_unless_recovery_agrees(
    messages: Messages, flips: list[tuple[int, int]]
) -> None:
    frames, lengths = messages.encode()
    for at, bit in flips:
        changed = bytearray(frames)
        changed[at % len(frames)] ^= 1 << bit
        try:
            layout = _check(messages, bytes(changed), lengths)
        except BatchError:
            continue
        found = scan(bytes(changed), 0, len(changed))
        assert found.offsets.tolist() == layout.starts.tolist()
        assert found.tag_codes.tolist() == layout.tag_codes.tolist()
        assert found.topics == [messages.topic]
        assert set(found.queue_ids.tolist()) == {messages.queue_id}
        assert found.has_queue_entry.all()


@given(
    messages=batches(count_max=3),
    noise=st.lists(
        st.tuples(st.integers(0, 2**16), st.binary(min_size=1, max_size=6)), min_size=1, max_size=6
    ),
)
@many_examples
def test_noise_never_raises_anything_but_a_refusal(
    messages: Messages, noise: list[tuple[int, bytes]]
) -> None:
    frames, lengths = messages.encode()
    changed = bytearray(frames)
    for at, value in noise:
        start = at % len(frames)
        changed[start : start + len(value)] = value[: len(frames) - start]
    scan(bytes(changed), 0, len(changed))
    try:
        layout = _check(messages, bytes(changed), lengths)
    except BatchError:
        return
    assert scan(bytes(changed), 0, len(changed)).count == layout.count


@pytest.mark.parametrize("count", [3, FEW_RECORDS_MAX + 1])
@pytest.mark.parametrize(
    ("properties", "is_good"),
    [
        (b"__CRC32#\x01----------\x02", True),
        (b"A\x01b\x02__CRC32#\x010000000000\x02", True),
        (b"A\x01b\x02__CRC32#\x010000000000", True),
        (b"A\x01b\x02_-CRC32#\x010000000000\x02", False),
        (b"x__CRC32#\x010000000000\x02", False),
        (b"A\x01b\x02" + bytes(5000) + b"\x02", True),
    ],
)
def test_properties_that_recovery_would_take_for_damaged_are_refused(
    properties: bytes, is_good: bool, count: int
) -> None:
    made = case(properties=properties)
    plain = made.lengths[0]
    made.frames += made.frames[:plain] * (count - 3)
    made.lengths += [plain] * (count - 3)
    limits = {"properties": 6000, "record": 9000}
    if is_good:
        assert made.check(**limits).count == count
    else:
        assert made.refusal(**limits) == (BatchFault.CHECKSUM, 1)


def test_a_thousand_records_of_which_one_is_damaged_are_refused() -> None:
    frame = encode_record(Record(topic=b"T", queue_id=7, body=b"abc"))
    made = Case(bytearray(frame * 1000), [len(frame)] * 1000)
    assert np.array_equal(made.check().lengths, made.lengths)
    made.frames[999 * len(frame) + 88] ^= 1
    assert made.refusal() == (BatchFault.BODY_CRC, 999)


def test_a_large_batch_that_came_as_a_bytearray_is_as_good() -> None:
    records = [
        encode_record(Record(topic=b"T", queue_id=7, body=bytes(size), properties=b"A\x01b\x02"))
        for size in range(2 * FEW_RECORDS_MAX)
    ]
    lengths = [len(record) for record in records]
    assert Case(bytearray(b"".join(records)), lengths).check(body=1 << 20)
    layout = check_batch(
        bytearray(b"".join(records)),  # type: ignore[arg-type]
        lengths,
        topic=b"T",
        queue_id=7,
        body_bytes_max=1 << 20,
        record_bytes_max=1 << 20,
    )
    assert layout.count == len(records)
