"""Index keys of records: the result for many equals that for each."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format import kernel
from rockoon_format.hashes import index_key_hash
from rockoon_format.index_entries import (
    FEW_RECORDS_MAX,
    have_keys,
    index_entries,
    index_keys,
    key_hashes,
    keys_within,
)
from rockoon_format.properties import decode_text, find_value, split_keys
from rockoon_format.record import Record, encode_host, encode_record
from rockoon_format.scan import scan
from support.random_messages import many_examples
from support.seeds import seeds

pytestmark = pytest.mark.usefixtures("each_kernel")

TOPICS = ["T", "%RETRY%" + 240 * "g", "テーマ", "\U0001f600", "a#b"]
FLAGS = [0, 1, 0x4, 0x8, 0xC, 0xD, 0x10 | 0x4]
FRAGMENTS = [
    b"UNIQ_KEY\x01",
    b"UNIQ_KEY",
    b"KEYS\x01",
    b"KEYS",
    b"TAGS\x01TagA\x02",
    b"MONKEYS\x01no\x02",
    b"XUNIQ_KEY\x01no\x02",
    b"KEYS\x02\x01",
    b"\x02",
    b"\x02\x02",
    b"\x01",
    b" ",
    b"  ",
    b"a",
    b"order-1 eu",
    b"polygenelubricants",
    32 * b"A",
    31 * b"A",
    90 * b"k",
    300 * b"z",
    "schlüssel".encode(),
    "键 \U0001f600".encode(),
    b"\xed\xa0\x80",
    b"\xe2\x02",
    b"\xff\xfe",
    b"\0",
    b"UNIQ_KEY\x01" + 32 * b"7" + b"\x02",
    b"KEYS\x01k1 k2  k3\x02",
    b"KEYS\x01 \x02",
]
WORDS = [b"", b"\0" * 9, b" \x02KEYS\x01no\x02 ", b"UNIQ_KEY\x01no", b"\xff \x02\x02"]

sections = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=9).map(b"".join),
    st.text("UNIQ_KEYS \x01\x02é", max_size=60).map(str.encode),
    st.binary(max_size=40),
)


def keys_one_by_one(topic: str, section: bytes, flag: int) -> list[int]:
    return [index_key_hash(key) for key in index_keys(topic, section, flag)]


def check(sections: list[bytes], flags: list[int], names: list[int], gaps: list[bytes]) -> None:
    """Put properties between other bytes, and compare with the results of each alone."""
    data, starts = bytearray(), []
    for section, gap in zip(sections, gaps, strict=True):
        data += gap
        starts.append(len(data))
        data += section
    numbers, hashes = key_hashes(
        bytes(data),
        np.array(starts, np.int64),
        np.array([len(section) for section in sections], np.int64),
        np.array(flags, np.int64),
        TOPICS,
        np.array(names, np.int64),
    )
    expected = [
        (number, key_hash)
        for number, section in enumerate(sections)
        for key_hash in keys_one_by_one(TOPICS[names[number]], section, flags[number])
    ]
    assert list(zip(numbers.tolist(), hashes.tolist(), strict=True)) == expected
    assert numbers.dtype == hashes.dtype == np.int64


@given(
    records=st.lists(
        st.tuples(
            sections,
            st.sampled_from(FLAGS),
            st.integers(0, len(TOPICS) - 1),
            st.sampled_from(WORDS),
        ),
        max_size=24,
    )
)
@many_examples
def test_many_records_have_the_keys_that_each_has(
    records: list[tuple[bytes, int, int, bytes]],
) -> None:
    columns = [list(column) for column in zip(*records, strict=True)] or [[], [], [], []]
    check(*columns)


def test_properties_near_the_end_of_the_data_are_whole() -> None:
    for size in (11, 60, 126, 127, 128, 129, 255, 256):
        for behind in range(140):
            data = b"TAGS\x01UNIQ_KEY\x01" + (size - 9) * b"u" + behind * b"\x02"
            numbers, hashes = key_hashes(
                data,
                np.array([5], np.int64),
                np.array([size], np.int64),
                np.zeros(1, np.int64),
                ["T"],
                np.zeros(1, np.int64),
            )
            assert numbers.tolist() == [0]
            assert hashes.tolist() == [index_key_hash("T#" + (size - 9) * "u")]


@pytest.mark.parametrize("seed", seeds(1))
def test_thousands_of_records_with_properties_of_all_lengths(seed: int) -> None:
    choose = random.Random(seed)
    made = []
    for _ in range(9000):
        parts = [b"TAGS\x01TagA\x02"] if choose.random() < 0.7 else []
        if choose.random() < 0.9:
            parts.append(f"UNIQ_KEY\x01{choose.getrandbits(128):032X}\x02".encode())
        if choose.random() < 0.7:
            tokens = (f"k{choose.getrandbits(choose.randrange(1, 300)):x}" for _ in range(9))
            parts.append(f"KEYS\x01{' '.join(list(tokens)[: choose.randrange(9)])}\x02".encode())
        if choose.random() < 0.1:
            parts.append(b"trace\x01" + choose.randrange(1000) * b"t \xc3\xa9" + b"\x02")
        if choose.random() < 0.003:
            parts.append(b"long\x01" + choose.randrange(32_000) * b"l" + b"\x02")
        choose.shuffle(parts)
        section = b"".join(parts)
        made.append(section[: choose.choice([-1, len(section)])])
    made[7] = b"KEYS\x01" + 3000 * b"key " + b"last\x02"
    made[8] = b"UNIQ_KEY\x01" + 32_700 * b"u"
    check(
        made,
        choose.choices(FLAGS, k=len(made)),
        choose.choices(range(len(TOPICS)), k=len(made)),
        choose.choices(WORDS, k=len(made)),
    )


@given(
    records=st.lists(
        st.tuples(
            sections,
            st.sampled_from(FLAGS),
            st.sampled_from(
                [b"T", b"U", 200 * b"t", "テーマ".encode(), b"\xff#", b"SCHEDULE_TOPIC_XXXX"]
            ),
            st.sampled_from(["127.0.0.1", "::1"]),
            st.binary(max_size=20),
        ),
        max_size=12,
    )
)
@many_examples
def test_entries_of_a_stretch_of_log_name_places_and_times(
    records: list[tuple[bytes, int, bytes, str, bytes]],
) -> None:
    start = 1 << 40
    frames = bytearray()
    expected = []
    for number, (section, flag, topic, host, body) in enumerate(records):
        time_ms = 1_700_000_000_000 + 7 * number
        record = Record(
            topic=topic,
            body=body,
            properties=section,
            sys_flag=flag,
            born_host=encode_host(host, 1),
            store_timestamp_ms=time_ms,
        )
        expected += [
            (key_hash, start + len(frames), time_ms)
            for key_hash in keys_one_by_one(decode_text(topic), section, flag)
        ]
        frames += encode_record(record)
    found = scan(frames, 0, len(frames), with_tag_codes=False)
    assert found.count == len(records)
    entries = index_entries(bytes(frames), found, start)
    columns = (entries.hashes, entries.offsets, entries.timestamps_ms)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert len(entries) == len(expected)
    within = keys_within(bytes(frames), len(frames), start)
    if within is None:
        texts = b"".join(topic + section for section, _, topic, _, _ in records)
        assert not (kernel.is_compiled() and is_utf8(texts))
    else:
        columns = (within.hashes, within.offsets, within.timestamps_ms)
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_of_a_stretch_of_log_only_what_was_rolled_back_has_no_keys() -> None:
    flags = [0, 0x4, 0x8, 0xC, 0xD]
    frames = b"".join(
        encode_record(
            Record(
                topic=topic,
                properties=b"DELAY\x012\x02UNIQ_KEY\x01u\x02KEYS\x01a b\x02",
                sys_flag=flag,
            )
        )
        for topic in (b"T", b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer")
        for flag in flags
    )
    found = scan(frames, 0, len(frames), with_tag_codes=False)
    entries = keys_within(frames, len(frames), 0)
    assert (entries is not None) == kernel.is_compiled()
    if entries is None:
        entries = index_entries(frames, found, 0)
    listed = found.offsets[np.tile([flag & 0xC != 0xC for flag in flags], 3)]
    assert entries.offsets.tolist() == np.repeat(listed, 3).tolist()
    assert entries.hashes[-3:].tolist() == [
        index_key_hash(f"rmq_sys_wheel_timer#{key}") for key in ("u", "a", "b")
    ]


def test_keys_of_a_message_are_its_unique_key_and_then_the_others() -> None:
    properties = b"KEYS\x01a  b\x02UNIQ_KEY\x01u\x02"
    assert index_keys("T", properties, 0) == ["T#u", "T#a", "T#b"]
    assert index_keys("T", properties, 0x4) == ["T#u", "T#a", "T#b"]
    assert index_keys("T", properties, 0xC) == []
    assert index_keys("T", b"", 0) == []


@given(st.lists(sections, min_size=1, max_size=FEW_RECORDS_MAX))
def test_whether_records_have_keys_is_told_of_many_as_of_few(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.cumsum(lengths) - lengths
    each = [bool(split_keys(find_value(piece, "KEYS") or "")) for piece in pieces]
    assert have_keys(data, starts, lengths).tolist() == each
    times = FEW_RECORDS_MAX + 1
    assert have_keys(data, np.tile(starts, times), np.tile(lengths, times)).tolist() == each * times
