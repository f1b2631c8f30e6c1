"""The completeness check notices if tasks have not read the whole log."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.source.log_source import ContiguousLog
from rockoon_spark.source.store_directory import Extent, check_complete, contiguous_log
from support.store_directory import Owner, settings

FILE_BYTES = 1024


@pytest.fixture
def ends(tmp_path: Path) -> list[int]:
    """Return the end offset of each record of a log of two files; the second file has room left."""
    owner = Owner(settings(tmp_path, commit_log_file_bytes=FILE_BYTES, flush=Flush.ASYNC))
    found = [owner.append("T", 0, [bytes(300)]).end_offset for _ in range(3)]
    owner.store.close()
    assert found[1] < FILE_BYTES < found[2]
    return found


@pytest.fixture
def log(tmp_path: Path, ends: list[int]) -> ContiguousLog:
    assert ends
    return contiguous_log(str(tmp_path))


def test_records_follow_one_another_over_files_and_empty_partitions(
    log: ContiguousLog, ends: list[int]
) -> None:
    a, b, c = ends
    extents = [(0, a), None, (a, b), None, (FILE_BYTES, c), None]
    assert check_complete(log, 0, log.end, extents) == c
    assert check_complete(log, 0, FILE_BYTES, extents[:3]) == FILE_BYTES
    assert check_complete(log, 0, b, extents[:3]) == b
    assert check_complete(log, FILE_BYTES, FILE_BYTES, []) == FILE_BYTES


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_whatever_is_missing_is_told(
    log: ContiguousLog, ends: list[int], missing: Sequence[int]
) -> None:
    a, b, c = ends
    places = [(0, a), (a, b), (FILE_BYTES, c)]
    extents: list[Extent] = [
        None if number in missing else place for number, place in enumerate(places)
    ]
    first = places[missing[0]][0]
    with pytest.raises(LogBroken, match=f"physical offsets {first} to .* hold no record"):
        check_complete(log, 0, log.end, extents)
