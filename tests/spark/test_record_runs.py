"""Jobs and queries read the same with each kernel, by windows or all at once."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.record import Record, encode_record
from rockoon_format.scan import sizes_in_place
from rockoon_spark.files import LogFile
from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.records.record_run import LogBroken, RecordRun, queue_runs_of
from rockoon_spark.records.selection import Selection
from rockoon_spark.records.window import RecordWindow
from rockoon_spark.source import file_partition
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import rows
from support.kernels import BOTH, needs_compiled, of_both, using
from support.log_bytes import log_bytes
from support.seeds import seeds

BASE = 3 << 30


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_partition, "WINDOW_BYTES", 5000)
    monkeypatch.setattr(file_partition, "TABLE_BYTES", 6000)


def partitions_of(path: Path, content: bytes, split_bytes: int) -> list[FilePartition]:
    path.write_bytes(content)
    whole = FilePartition.of(LogFile(str(path), BASE, len(content)))
    return replace(whole, is_sealed=True).cut(split_bytes)


def read(partitions: list[FilePartition]) -> tuple[bytes, list[int], list[object]]:
    """Return all bytes, the positions of all keys, and the entries of the queues."""
    runs: list[RecordRun] = []

    def noted() -> Iterator[RecordRun]:
        for partition in partitions:
            for run in partition.runs():
                runs.append(run)
                yield run

    queues: dict[tuple[str, int], bytes] = {}
    for topics, made in queue_runs_of(noted(), {}, DELAY_LEVELS_MS, 300_000):
        for row in range(len(made.files)):
            queue = topics[made.topic_numbers[row]], int(made.queue_ids[row])
            entries = made.entries[made.bounds[row] : made.bounds[row + 1]]
            queues[queue] = queues.get(queue, b"") + entries
    content = b"".join(run.content[: run.stop] for run in runs)
    places = [place for run in runs for place in run.keys().offsets.tolist()]
    return content, places, sorted(queues.items())


@needs_compiled
@pytest.mark.parametrize("seed", seeds(3))
def test_jobs_read_a_log_in_windows_as_they_read_it_at_once(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    buffer, starts = log_bytes(chance, BASE, records=300)
    content = buffer.tobytes()
    for split_bytes in (len(content), 20_000, 7001):
        partitions = partitions_of(tmp_path / "log", content, split_bytes)
        by_numpy, compiled = of_both(lambda partitions=partitions: read(partitions))  # type: ignore[misc]
        assert compiled == by_numpy
        assert compiled[0] == content[starts[0] :]


@pytest.mark.parametrize("choice", BOTH)
def test_a_queue_gets_one_run_of_entries_of_many_windows(choice: str, tmp_path: Path) -> None:
    """The broker's delayed records are among them; the compiled kernel leaves them to NumPy."""
    frames = bytearray()
    for number in range(200):
        record = Record(
            topic=b"SCHEDULE_TOPIC_XXXX",
            body=bytes(300),
            properties=b"DELAY\x012\x02",
            queue_id=number % 2,
            queue_offset=number // 2,
            physical_offset=BASE + len(frames),
        )
        frames += encode_record(record)
    partitions = partitions_of(tmp_path / "log", bytes(frames), len(frames))
    with using(choice):
        runs = [run for partition in partitions for run in partition.runs()]
        (made,) = queue_runs_of(runs, {}, DELAY_LEVELS_MS, 300_000)
    assert len(runs) > 10
    assert made[1].queue_ids.tolist() == [0, 1]


@needs_compiled
@pytest.mark.parametrize("seed", seeds(2))
def test_a_job_fails_at_damage_wherever_a_window_ends(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    buffer, starts = log_bytes(chance, BASE, records=200)
    victim = starts[chance.randrange(1, len(starts) - 1)]
    buffer[victim : victim + 4] = np.frombuffer(b"\0\0\0\x5b", np.uint8)
    partitions = partitions_of(tmp_path / "log", buffer.tobytes(), len(buffer))

    def broken() -> str:
        with pytest.raises(LogBroken) as told:
            read(partitions)
        return str(told.value)

    by_numpy, compiled = of_both(broken)
    assert compiled == by_numpy
    assert str(BASE + victim) in compiled


@needs_compiled
def test_a_window_that_ends_with_a_record_has_more_behind_it(tmp_path: Path) -> None:
    """Records of 256 bytes; a window that has all records is not followed by another."""
    frames = [
        encode_record(Record(topic=b"T", body=bytes(164), physical_offset=BASE + 256 * number))
        for number in range(20)
    ]
    log, window = b"".join(frames), b"".join(frames[:8])
    assert len(log) == 20 * 256
    for end, more in ((len(log), True), (len(window), False)):
        sizes, goes_on = sizes_in_place(window, BASE, end, len(window))
        found = RecordWindow.following(window, BASE, end)
        assert found is not None
        assert sizes.tolist() == found.sizes.tolist() == 8 * [256]
        assert (goes_on, found.stop, found.has_more) == (more, len(window), more)
    (partition,) = partitions_of(tmp_path / "log", log, len(log))
    by_numpy, compiled = of_both(lambda: (read([partition]), rows_of([partition])))
    assert compiled == by_numpy


def rows_of(partitions: list[FilePartition]) -> tuple[list[dict[str, object]], list[str]]:
    """Return all columns of all records, and the reported damage."""
    told: list[str] = []
    batches = [
        batch
        for partition in partitions
        for batch in rows(
            partition.read(), Selection(), list(COLUMNS), lambda place: told.append(str(place))
        )
    ]
    return [row for batch in batches for row in batch.to_pylist()], told


@needs_compiled
@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("harms", [0, 3])
def test_queries_read_a_log_in_windows_as_they_read_it_at_once(
    seed: int, harms: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    buffer, _ = log_bytes(chance, BASE, records=300)
    for _ in range(harms):
        buffer[chance.randrange(len(buffer))] ^= 1 << chance.randrange(8)
    for split_bytes in (len(buffer), 20_000):
        partitions = partitions_of(tmp_path / "log", buffer.tobytes(), split_bytes)
        by_numpy, compiled = of_both(lambda partitions=partitions: rows_of(partitions))  # type: ignore[misc]
        assert compiled == by_numpy
        assert compiled[0]
        assert bool(compiled[1]) <= bool(harms)
