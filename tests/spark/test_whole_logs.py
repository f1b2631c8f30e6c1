"""Seeing that what tasks have read is all of a log."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush
from rockoon_spark.whole_logs.stored_log import StoredLog, StoredReading
from rockoon_spark.whole_logs.whole_log import Extent, LogBroken, see_whole
from support.store_directory import Owner, settings

FILE_BYTES = 1024


@pytest.fixture
def ends(tmp_path: Path) -> list[int]:
    """Where each record of a log of two files ends; the second file has room left."""
    owner = Owner(settings(tmp_path, commit_log_file_bytes=FILE_BYTES, flush=Flush.ASYNC))
    found = [owner.append("T", 0, [bytes(300)]).end_offset for _ in range(3)]
    owner.store.close()
    assert found[1] < FILE_BYTES < found[2]
    return found


@pytest.fixture
def reading(tmp_path: Path, ends: list[int]) -> StoredReading:
    assert ends
    return StoredLog(str(tmp_path)).look()


def test_records_follow_one_another_over_files_and_empty_partitions(
    reading: StoredReading, ends: list[int]
) -> None:
    a, b, c = ends
    extents = [(0, a), None, (a, b), None, (FILE_BYTES, c), None]
    assert see_whole(reading, 0, reading.end, extents) == c
    assert see_whole(reading, 0, FILE_BYTES, extents[:3]) == FILE_BYTES
    assert see_whole(reading, 0, b, extents[:3]) == b
    assert see_whole(reading, FILE_BYTES, FILE_BYTES, []) == FILE_BYTES


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_whatever_is_missing_is_told(
    reading: StoredReading, ends: list[int], missing: Sequence[int]
) -> None:
    a, b, c = ends
    places = [(0, a), (a, b), (FILE_BYTES, c)]
    extents: list[Extent] = [
        None if number in missing else place for number, place in enumerate(places)
    ]
    first = places[missing[0]][0]
    with pytest.raises(LogBroken, match=f"physical offsets {first} to .* hold no record"):
        see_whole(reading, 0, reading.end, extents)
