"""All results that a reader can get."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.reading.reader import GetStatus, TimeBoundary
from rockoon_format.batch import decode_columns
from rockoon_format.hashes import tags_code
from support import store_directory
from support.kernels import BOTH, each_kernel
from support.store_directory import NOW_MS, Owner, unpack_golden

each_kernel = pytest.fixture(scope="module", autouse=True, params=BOTH)(each_kernel)


@pytest.mark.parametrize(
    ("topic", "offset", "status", "next_offset"),
    [
        ("TopicTest", 0, GetStatus.FOUND, 4),
        ("TopicTest", 4, GetStatus.OFFSET_OVERFLOW_ONE, 4),
        ("TopicTest", 5, GetStatus.OFFSET_OVERFLOW_BADLY, 4),
        ("TopicTest", 100, GetStatus.OFFSET_OVERFLOW_BADLY, 4),
        ("TopicTest", -1, GetStatus.OFFSET_TOO_SMALL, 0),
        ("unknown", 0, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("unknown", 5, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
    ],
)
def test_the_golden_store_answers_as_java_does(
    tmp_path: Path, topic: str, offset: int, status: GetStatus, next_offset: int
) -> None:
    owner = Owner(unpack_golden(tmp_path))
    result = owner.store.get(topic, 0, offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    owner.store.close()


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(store_directory.settings(tmp_path, consume_queue_file_entries=100))


def get_bodies(owner: Owner, offset: int, **limits: object) -> tuple[list[bytes], int]:
    result = owner.store.get("T", 0, offset, **limits)  # type: ignore[arg-type]
    if result.count == 0:
        return [], result.next_offset
    return decode_columns(result.frames, result.lengths).bodies, result.next_offset


def test_limits_count_messages_bytes_and_entries(owner: Owner) -> None:
    size = owner.append(bodies=[b"%02d" % n for n in range(20)]).end_offset // 20
    assert get_bodies(owner, 3, messages_max=2) == ([b"03", b"04"], 5)
    assert get_bodies(owner, 3, bytes_max=2 * size) == ([b"03", b"04"], 5)
    assert get_bodies(owner, 3, bytes_max=2 * size - 1) == ([b"03"], 4)
    assert get_bodies(owner, 3, bytes_max=0) == ([b"03"], 4), "the first always fits"
    assert get_bodies(owner, 3, entries_max=2) == ([b"03", b"04"], 5)
    assert get_bodies(owner, 18) == ([b"18", b"19"], 20)
    owner.store.close()


def test_tags_select_by_hash_and_reading_goes_on_behind_what_was_examined(owner: Owner) -> None:
    tags = ["A", "B", "C", ""] * 5
    owner.append(bodies=[b"%02d" % n for n in range(20)], tags=tags)
    wanted = np.array([tags_code("B")], np.int64)
    assert get_bodies(owner, 0, tag_codes=wanted) == ([b"01", b"05", b"09", b"13", b"17"], 20)
    assert get_bodies(owner, 0, tag_codes=wanted, messages_max=2) == ([b"01", b"05"], 9)
    two = np.array([tags_code("B"), tags_code("C")], np.int64)
    assert get_bodies(owner, 0, tag_codes=two, entries_max=6) == ([b"01", b"02", b"05"], 6)
    none = np.array([tags_code("Z")], np.int64)
    result = owner.store.get("T", 0, 4, tag_codes=none, entries_max=10)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 14)
    owner.store.close()


def test_records_of_other_queues_in_between_are_left_out(owner: Owner) -> None:
    for number in range(30):
        owner.append(queue_id=0, bodies=[b"%02d" % number])
        owner.append(queue_id=1, bodies=[bytes(number * 40 % 900)])
    assert get_bodies(owner, 0)[0] == [b"%02d" % number for number in range(30)]
    owner.store.close()


def test_one_read_ends_where_a_queue_file_ends(tmp_path: Path) -> None:
    owner = Owner(store_directory.settings(tmp_path))
    owner.append(bodies=[b"%02d" % n for n in range(20)])
    assert get_bodies(owner, 7) == ([b"07", b"08", b"09"], 10)
    owner.store.close()


def test_a_queue_file_that_is_gone_sends_the_reader_to_the_next(tmp_path: Path) -> None:
    owner = Owner(store_directory.settings(tmp_path, open_queue_files_max=8))
    owner.append(bodies=[b"%02d" % n for n in range(20)])
    assert owner.store.min_offset("T", 0) == 0
    # As many other queues as there are descriptors close this queue's file.
    for queue_id in range(1, 12):
        owner.append(queue_id=queue_id)
    (tmp_path / "consumequeue/T/0" / f"{0:020d}").unlink()
    result = owner.store.get("T", 0, 3)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 10)
    owner.store.close()


def test_a_record_is_read_by_its_physical_offset_only_where_one_starts(owner: Owner) -> None:
    owner.append(bodies=[b"one"])
    appended = owner.append(bodies=[b"two"])
    frame = owner.store.read_at(appended.first_physical_offset)
    assert decode_columns(frame).bodies == [b"two"]
    for offset in (-1, 1, appended.end_offset, appended.end_offset + 1, 1 << 40):
        with pytest.raises(UnknownOffset):
            owner.store.read_at(offset)
    owner.store.close()


def test_a_damaged_record_is_not_read_by_its_physical_offset(owner: Owner, tmp_path: Path) -> None:
    owner.append(bodies=[b"one"])
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(88)
        file.write(b"?")
    with pytest.raises(UnknownOffset, match="checksum"):
        owner.store.read_at(0)
    owner.store.close()


class TestSearchByTime:
    @pytest.mark.parametrize(
        ("plus_ms", "lower", "upper"),
        [(-1, 0, 0), (0, 0, 2), (5, 3, 2), (10, 3, 4), (11, 5, 4)],
    )
    def test_both_boundaries_as_java_answers(
        self, owner: Owner, plus_ms: int, lower: int, upper: int
    ) -> None:
        owner.append(bodies=[b"x"] * 3)
        owner.clock.time_ms += 10
        owner.append(bodies=[b"x"] * 2)
        search = owner.store.search_offset
        assert search("T", 0, NOW_MS + plus_ms, TimeBoundary.LOWER) == lower
        assert search("T", 0, NOW_MS + plus_ms, TimeBoundary.UPPER) == upper
        owner.store.close()

    def test_an_unknown_queue_answers_zero(self, owner: Owner) -> None:
        assert owner.store.search_offset("T", 0, NOW_MS) == 0
        owner.store.close()

    @given(
        steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=20),
        data=st.data(),
    )
    @settings(max_examples=25)
    def test_it_finds_what_a_linear_scan_finds(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        steps: list[tuple[int, int]],
        data: st.DataObject,
    ) -> None:
        owner = Owner(store_directory.settings(tmp_path_factory.mktemp("s")))
        times: list[int] = []
        for wait_ms, count in steps:
            owner.clock.time_ms += wait_ms
            owner.append(bodies=[bytes(100)] * count)
            times += [owner.clock.time_ms] * count
        for _ in range(10):
            at = data.draw(st.integers(times[0] - 2, times[-1] + 2))
            first = next((n for n, time in enumerate(times) if time >= at), len(times))
            last = max((n for n, time in enumerate(times) if time <= at), default=0)
            assert owner.store.search_offset("T", 0, at, TimeBoundary.LOWER) == first
            assert owner.store.search_offset("T", 0, at, TimeBoundary.UPPER) == last
        owner.store.close()


def test_status_tells_times_and_whether_the_first_message_is_in_memory(tmp_path: Path) -> None:
    owner = Owner(store_directory.settings(tmp_path, memory_bytes=2500, memory_percent=40))
    empty = owner.store.queue_status("T", 0)
    assert (empty.min_offset, empty.max_offset, empty.first_store_timestamp_ms) == (0, 0, None)
    assert empty.first_entry_in_memory_by_distance is None
    owner.append(bodies=[b"x"])
    owner.clock.time_ms += 7
    owner.append(bodies=[bytes(400)])
    near = owner.store.queue_status("T", 0, with_residency=True)
    assert (near.min_offset, near.max_offset) == (0, 2)
    assert (near.first_store_timestamp_ms, near.last_store_timestamp_ms) == (NOW_MS, NOW_MS + 7)
    assert near.first_entry_in_memory_by_distance
    assert near.first_entry_pages_resident is (True if sys.platform == "linux" else None)
    assert owner.store.queue_status("T", 0).first_entry_pages_resident is None
    owner.append(queue_id=1, bodies=[bytes(600)])
    far = owner.store.queue_status("T", 0)
    assert not far.first_entry_in_memory_by_distance
    assert far.visible_end == owner.store.appended_end
    owner.store.close()
