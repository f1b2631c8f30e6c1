"""The key index, against the file that Apache RocketMQ wrote for its store."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format.batch import scan
from rockoon_format.file_names import index_file_name
from rockoon_format.hashes import index_key_hash
from rockoon_format.index_entries import index_keys
from rockoon_format.index_file import (
    IndexFileError,
    IndexHeader,
    decode_header,
    index_file_bytes,
)
from support import golden_store
from support.index_file import IndexFile
from support.random_messages import many_examples

SLOTS, UNITS = golden_store.INDEX_SLOTS, golden_store.INDEX_UNITS
FOREVER = (0, 2**62)


def empty(slots: int = SLOTS, units: int = UNITS) -> IndexFile:
    return IndexFile(bytearray(index_file_bytes(slots, units)), slots=slots, units=units)


def content(file: IndexFile) -> bytes:
    return bytes(file.view)


def test_the_index_of_apache_is_rebuilt_byte_for_byte_from_its_log() -> None:
    file = empty()
    for start in (0, golden_store.LOG_FILE_BYTES):
        log = golden_store.files()[f"commitlog/{start:020d}"]
        found = scan(log, 0, len(log))
        for index in range(found.count):
            at = int(found.properties_starts[index])
            properties = log[at : at + int(found.properties_lengths[index])]
            topic = found.topics[int(found.topic_numbers[index])].decode()
            for key in index_keys(topic, properties, int(found.sys_flags[index])):
                offset = start + int(found.offsets[index])
                file.put(index_key_hash(key), offset, int(found.store_timestamps_ms[index]))
    assert content(file) == golden_store.index_file()
    assert len(content(file)) == 8440


def test_lookups_in_the_index_of_apache_find_its_messages() -> None:
    file = IndexFile(golden_store.index_file(), slots=SLOTS, units=UNITS)
    assert file.header == IndexHeader(1_700_000_000_000, 1_700_000_009_000, 0, 818, 5, 6)
    for key, offsets in (
        ("7F00000100002A139A5500000000", [0]),
        ("key1", [0]),
        ("key2", [0]),
        ("pk", [558]),
        ("rk", []),
        ("ck", [818]),
        ("none", []),
    ):
        assert file.find(index_key_hash(f"TopicTest#{key}"), *FOREVER, 64) == offsets


def test_times_count_to_the_second() -> None:
    file = IndexFile(golden_store.index_file(), slots=SLOTS, units=UNITS)
    key = index_key_hash("TopicTest#pk")
    assert file.find(key, 1_700_000_006_000, 1_700_000_006_000, 1) == [558]
    assert file.find(key, 1_700_000_006_001, 2**62, 1) == []
    assert file.find(key, 0, 1_700_000_005_999, 1) == []
    assert file.may_hold(1_700_000_009_000, 2**62)
    assert not file.may_hold(1_700_000_009_001, 2**62)
    assert file.may_hold(0, 1_700_000_000_000)
    assert not file.may_hold(0, 1_699_999_999_999)


def test_a_chain_is_read_newest_first_and_returns_collisions() -> None:
    file = empty()
    for offset in range(5):
        file.put(7, offset, 1000)
        file.put(107, 100 + offset, 1000)
    assert file.find(7, *FOREVER, 64) == [4, 3, 2, 1, 0]
    assert file.find(7, *FOREVER, 2) == [4, 3]
    assert file.header.slots_used == 1


def test_a_file_is_full_when_unit_zero_is_the_only_unused_one() -> None:
    file = empty(units=4)
    assert [file.put(1, 0, 1) for _ in range(4)] == [True, True, True, False]
    assert file.is_full
    bulk = empty(units=4)
    ones = np.ones(10, np.int64)
    assert bulk.put_all(ones, ones * 0, ones) == 3
    assert bulk.put_all(ones, ones, ones) == 0
    assert content(bulk) == content(file)


def test_the_first_key_of_a_following_file_counts_from_the_end_of_the_one_before() -> None:
    before = IndexHeader(1_000_000, 2_000_000, 10, 20, 3, 4)
    one, many = empty(), empty()
    for file in (one, many):
        file.follow(before)
    assert decode_header(content(one)) == IndexHeader(2_000_000, 2_000_000, 20, 20, 0, 1)
    times = np.array([2_005_000, 2_006_000, 2_009_999], np.int64)
    for time in times.tolist():
        one.put(5, 30, time)
    assert many.put_all(np.full(3, 5), np.full(3, 30), times) == 3
    assert content(one) == content(many)
    units = np.frombuffer(content(one), ">i4")[10 + SLOTS :].reshape(-1, 5)
    assert units[1:4, 3].tolist() == [5, 1, 4]
    assert one.header.begin_timestamp_ms == 2_005_000
    with pytest.raises(IndexFileError):
        one.follow(before)


entries = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 12), st.integers(0, 2**31 - 1)),
        st.integers(0, 2**62),
        st.integers(-(2**40), 2**45),
    ),
    max_size=40,
)


@given(
    parts=st.lists(entries, max_size=4),
    slots=st.integers(1, 9),
    follows=st.booleans(),
    dirt=st.integers(-3, 60),
)
@many_examples
def test_adding_in_bulk_leaves_the_bytes_that_adding_one_by_one_leaves(
    parts: list[list[tuple[int, int, int]]], slots: int, follows: bool, dirt: int
) -> None:
    one, bulk = empty(slots, 60), empty(slots, 60)
    for file in (one, bulk):
        # After a crash, a slot may point beyond the last unit.
        file.view[40:44] = dirt.to_bytes(4, signed=True)
        if follows:
            file.follow(IndexHeader(5, 7_000, 9, 11, 1, 60))
    for part in parts:
        hashes, offsets, times = (
            np.array([entry[index] for entry in part], np.int64) for index in range(3)
        )
        added = bulk.put_all(hashes, offsets, times)
        assert added == sum(one.put(*entry) for entry in part)
        assert bulk.header == one.header
        assert content(bulk) == content(one)


def test_a_damaged_chain_does_not_run_in_a_circle() -> None:
    damaged = bytearray(golden_store.index_file())
    unit_1 = 40 + 4 * SLOTS + 20
    damaged[unit_1 + 16 : unit_1 + 20] = (1).to_bytes(4)
    file = IndexFile(damaged, slots=SLOTS, units=UNITS)
    with pytest.raises(IndexFileError, match="from unit 1 to 1"):
        file.find(195084373, *FOREVER, 64)


def test_a_file_of_another_shape_is_refused() -> None:
    with pytest.raises(IndexFileError, match="8440"):
        IndexFile(bytes(8440), slots=SLOTS, units=UNITS + 1)
    overfull = bytearray(8440)
    overfull[36:40] = (401).to_bytes(4)
    with pytest.raises(IndexFileError, match="401"):
        IndexFile(overfull, slots=SLOTS, units=UNITS)
    with pytest.raises(IndexFileError):
        decode_header(bytes(39))
    assert decode_header(bytes(40)) == IndexHeader(next_unit=1)
    assert replace(IndexHeader(), next_unit=1) == IndexHeader()


def test_an_index_file_is_named_after_its_time() -> None:
    assert index_file_name(2026, 11, 20, 15, 47, 47_540) == "20261120154747540"
