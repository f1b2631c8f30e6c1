"""Compaction runs that are killed or fail, and logs that are damaged or incomplete."""

import functools
import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from rockoon_format.checkpoint import SAFETY_MARGIN_MS, Checkpoint, encode_checkpoint
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.frames import IntArray
from rockoon_format.generation import Manifest
from rockoon_format.record import Record, encode_record
from rockoon_spark.compaction.directory_target import DirectoryTarget, FileWriter
from rockoon_spark.compaction.exchange import Incoming
from rockoon_spark.compaction.newest import SECRET_BYTES, KeyHash
from rockoon_spark.compaction.plan import PartWriter
from rockoon_spark.compaction.sources import CompactionError, PartitionSource
from rockoon_spark.compaction.survey import QueueOffsets, Survey, survey
from rockoon_spark.files import generation_marks
from rockoon_spark.jobs.compact import compact
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Coverage
from rockoon_spark.source.log_source import DamagedRange
from support.compacting import COMPACTED, Compacting, check, kept, manifest, place, run
from support.spark_processes import failed_tasks
from support.store_directory import BORN_HOST, crashed_copy


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Compacting]:
    """A store with an active generation, and messages after it."""
    made = Compacting(tmp_path / "store")
    choose = random.Random(1)
    made.send_random(choose, 60)
    run(place(made.root, made.clock.time_ms))
    made.take_over(1)
    made.send_random(choose, 60)
    yield made
    made.store.close()


@dataclass
class Rerouted:
    """An `Incoming` with another writer."""

    incoming: Incoming
    writer: PartWriter

    def publish(self, manifest: Manifest) -> None:
        self.incoming.publish(manifest)


@dataclass
class Copying:
    """Copies a store repeatedly; each copy has the state after a kill at that moment."""

    root: Path
    copies: Path

    def __call__(self) -> None:
        self.copies.mkdir(exist_ok=True)
        crashed_copy(self.root, self.copies / f"{len(list(self.copies.iterdir())):03d}")


@dataclass
class CopyingWriter:
    """A `PartWriter` that copies the store before and after each file."""

    writer: PartWriter
    copy: Copying

    def write(self, name: str, content: bytes) -> None:
        self.copy()
        self.writer.write(name, content)
        self.copy()

    def link(self, generation: int, former_name: str, name: str) -> None:
        self.copy()
        self.writer.link(generation, former_name, name)
        self.copy()


class CopyingTarget(DirectoryTarget):
    """A store that is copied before each step of publishing."""

    def __init__(self, root: Path, now_ms: int, copy: Copying) -> None:
        def rename(source: Path, target: Path) -> None:
            copy()
            source.rename(target)
            copy()

        super().__init__(root, clock_ns=lambda: now_ms * 1_000_000, rename=rename)
        self._copy = copy

    @contextmanager
    def incoming(self, number: int, /) -> Iterator[Incoming]:
        with super().incoming(number) as incoming:
            yield Rerouted(incoming, CopyingWriter(incoming.writer, self._copy))


def test_a_driver_killed_at_any_step_leaves_one_generation_or_the_other(
    owner: Compacting, tmp_path: Path
) -> None:
    copies = tmp_path / "copies"
    before, now_ms = kept(owner.root), owner.clock.time_ms
    run(CopyingTarget(owner.root, now_ms, Copying(owner.root, copies)), part_bytes=6000)
    owner.take_over(2)
    after = kept(owner.root)
    assert before != after
    published = []
    for copy in sorted(copies.iterdir()):
        assert kept(copy) == before
        # No broker runs, so the files of the killed run remain.
        other = crashed_copy(copy, copy.with_suffix(".again"))
        restarted = Compacting(copy, now_ms=now_ms)
        if (copy / "compacted" / f"{2:020d}").exists():
            published.append(copy)
        else:
            assert run(place(other, now_ms)).generation == 2
            assert not list((other / "compacted").glob(".incoming*"))
            assert restarted.in_force == 1
            run(place(copy, now_ms))
        restarted.take_over(2)
        assert kept(copy) == after
        restarted.store.close()
    assert len(published) == 1


def test_a_worker_that_is_killed_is_replaced(
    spark: SparkSession, owner: Compacting, tmp_path: Path
) -> None:
    first = tmp_path / "first"

    class Doomed:
        """Write a file; the first call kills the process after the whole content."""

        def __init__(self, writer: PartWriter) -> None:
            self._writer = writer

        def write(self, name: str, content: bytes) -> None:
            self._writer.write(name, content)
            if not first.exists():
                first.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def link(self, generation: int, former_name: str, name: str) -> None:
            self._writer.link(generation, former_name, name)

    class DoomedPlace(DirectoryTarget):
        @contextmanager
        def incoming(self, number: int, /) -> Iterator[Incoming]:
            with super().incoming(number) as incoming:
                yield Rerouted(incoming, Doomed(incoming.writer))

    failed = failed_tasks(spark)
    now_ms = owner.clock.time_ms
    doomed = DoomedPlace(owner.root, clock_ns=lambda: now_ms * 1_000_000)
    compact(spark, doomed, split_bytes=10_000, part_bytes=8_000)
    assert first.exists()
    assert failed_tasks(spark) > failed
    owner.take_over(2)


def test_a_second_run_at_the_same_time_is_refused(owner: Compacting) -> None:
    class Meanwhile(DirectoryTarget):
        @contextmanager
        def incoming(self, number: int, /) -> Iterator[Incoming]:
            with super().incoming(number) as incoming:
                with pytest.raises(CompactionError, match="another job compacts it"):
                    run(place(owner.root, owner.clock.time_ms))
                yield incoming

    now_ms = owner.clock.time_ms
    run(Meanwhile(owner.root, clock_ns=lambda: now_ms * 1_000_000))
    owner.take_over(2)


def test_what_another_job_hands_over_meanwhile_is_left_alone(owner: Compacting) -> None:
    place_of = functools.partial(place, owner.root, owner.clock.time_ms)
    upload = owner.root / "compacted" / ".incoming-job-00c0ffee"
    upload.mkdir()
    (upload / "00000.records").write_bytes(b"whole")
    with place_of().incoming(2) as incoming:
        incoming.writer.write("00000.records", b"half")
        [mine] = set(upload.parent.glob(".incoming-*")) - {upload}
        left = shutil.copytree(mine, mine.with_name(f"{mine.name}0"))
    run(place_of())
    assert (upload / "00000.records").exists()
    assert not left.exists(), "what a run that was killed has left"
    owner.take_over(2)


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / offset_to_file_name(4096 * number)


def spoiled(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


@pytest.mark.parametrize("position", [0, 1000, 3000])
def test_damage_in_the_log_ends_the_run_and_is_told_with_its_place(
    owner: Compacting, position: int
) -> None:
    before = kept(owner.root)
    # The log after the generation.
    number = manifest(owner.root, 1).log_end // 4096 + 1
    spoiled(log_file(owner.root, number), position, b"\xee" * 300)
    with pytest.raises(CompactionError, match=r"physical offsets \d+ to \d+ hold no record"):
        run(place(owner.root, owner.clock.time_ms))
    assert kept(owner.root) == before
    assert not list((owner.root / "compacted").glob(".incoming*"))


def test_a_body_that_is_damaged_and_the_newest_of_its_key_is_told(owner: Compacting) -> None:
    owner.send("only one", b"whole" * 10)
    owner.send_random(random.Random(3), 40)
    for path in sorted((owner.root / "commitlog").iterdir()):
        at = path.read_bytes().find(b"whole" * 10)
        if at >= 0:
            spoiled(path, at, b"w-ole")
            break
    with pytest.raises(CompactionError, match="bad crc"):
        run(place(owner.root, owner.clock.time_ms))


def torn(owner: Compacting, change: Callable[[bytes], bytes]) -> int:
    """Change the last record of the log; return its physical offset."""
    last = owner.store.visible_end
    owner.send("torn", b"half of this was written")
    path = log_file(owner.root, last // 4096)
    content = path.read_bytes()
    at, behind = last % 4096, owner.store.visible_end % 4096
    assert at < behind
    path.write_bytes(content[:at] + change(content[at:behind]) + content[behind:])
    return last


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record[:100] + bytes(len(record) - 100),
        lambda record: bytes(20) + record[20:],
        lambda record: record[:50] + bytes(len(record) - 50),
        lambda record: record.replace(b"half of", b"\0\0\0\0 of"),
    ],
)
def test_what_a_power_cut_left_at_the_end_is_not_covered(
    owner: Compacting, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    while owner.store.visible_end % 4096 > 3000:
        owner.send("more")
    last = torn(owner, change)
    report = run(place(owner.root, owner.clock.time_ms))
    assert report.log_end == last


def test_whole_records_behind_a_broken_one_at_the_end_are_left_to_the_broker(
    owner: Compacting,
) -> None:
    while owner.store.visible_end % 4096 > 2000:
        owner.send("more")
    torn(owner, lambda record: record.replace(b"half of", b"\0\0\0\0 of"))
    owner.send("whole")
    with pytest.raises(CompactionError, match="is followed by whole records"):
        run(place(owner.root, owner.clock.time_ms))


def test_a_damaged_generation_in_force_is_not_gone_on_with(owner: Compacting) -> None:
    run(place(owner.root, owner.clock.time_ms), part_bytes=1 << 20)
    owner.take_over(2)
    owner.send("key 1")
    for name in ("00000.records", "00000.entries", "00000.superseded"):
        path = owner.root / "compacted" / f"{2:020d}" / name
        content = path.read_bytes()
        spoiled(path, len(content) // 2, bytes([content[len(content) // 2] ^ 1]))
        with pytest.raises(CompactionError, match=r"the checksum of .* is wrong"):
            run(place(owner.root, owner.clock.time_ms))
        path.write_bytes(content)
    run(place(owner.root, owner.clock.time_ms))


def test_a_part_that_does_not_read_as_it_was_written_is_noticed(
    owner: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()

    def write(path: Path, content: bytes) -> int:
        changed = content[:-1] + bytes([content[-1] ^ 1]) if next(numbers) == 1 else content
        with path.open("wb") as file:
            return file.write(changed)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(CompactionError, match="reads back differently"):
        run(place(owner.root, owner.clock.time_ms))


def test_a_store_without_a_log_or_topics_has_nothing_to_compact(tmp_path: Path) -> None:
    with pytest.raises(CompactionError, match="is this a store directory"):
        run(DirectoryTarget(tmp_path))
    (tmp_path / "commitlog").mkdir()
    report = run(DirectoryTarget(tmp_path))
    assert (report.is_new, report.generation) == (False, 0)


def test_messages_missing_between_two_others_are_noticed(owner: Compacting) -> None:
    shutil.rmtree(owner.root / "compacted")
    first = log_file(owner.root, 1)
    # A former file of the log replaces the present one.
    first.write_bytes(log_file(owner.root, 0).read_bytes())
    with pytest.raises(CompactionError):
        run(place(owner.root, owner.clock.time_ms))


def test_files_of_the_log_that_went_before_they_were_compacted_are_missed(
    owner: Compacting,
) -> None:
    owner.send_random(random.Random(2), 60)
    compacted = manifest(owner.root, 1).log_end
    for number in range(compacted // 4096 + 2):
        log_file(owner.root, number).unlink()
    with pytest.raises(CompactionError, match=r"the log has offset \d+ .* but \d+ was expected"):
        run(place(owner.root, owner.clock.time_ms))


def test_a_topic_that_was_not_compacted_for_a_while_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    """Retention deleted the records after the generation; no older record may be copied instead."""
    owner = Compacting(tmp_path / "store")
    owner.send("a", b"C1")
    owner.send("b", b"C2")
    owner.send("a", b"D1", topic="D")
    run(place(owner.root, owner.clock.time_ms))
    owner.take_over(1)
    owner.name_compacted(("D",))
    owner.send("a", b"C3")
    while owner.store.visible_end < 2 * 4096:
        owner.send(None, bytes(500), topic="plain")
    owner.clock.time_ms += 73 * 3_600_000
    while owner.store.visible_end < 3 * 4096:
        owner.send(None, bytes(500), topic="plain")
    owner.write_point()
    owner.clock.hour = 4
    assert len(owner.store.clean(owner.clock.time_ms).delete) == 2
    owner.wait_for_removals()
    owner.name_compacted(COMPACTED)
    # A DataFrame of the directory has no message of the topic either.
    covered = Coverage.of(manifest(owner.root, 1), generation_marks(str(owner.root)))
    assert covered.topics == {"D"}
    owner.send("c", b"C4")
    owner.send("a", b"D2", topic="D")
    report = run(place(owner.root, owner.clock.time_ms))
    assert (report.generation, report.records_left) == (2, 2)
    check(owner.root, 2)
    owner.take_over(2)
    assert owner.bodies("C") == [b"C4"]
    assert owner.bodies("D") == [b"D2"]
    owner.store.close()


def test_files_that_somebody_took_from_the_log_between_two_runs_are_missed(
    owner: Compacting,
) -> None:
    """Files are missing, but retention did not delete them: the run fails, and an operator
    decides."""
    owner.store.close()
    end = manifest(owner.root, 1).log_end
    for number in range(end // 4096 + 2):
        log_file(owner.root, number).unlink(missing_ok=True)
    owner = Compacting(owner.root, now_ms=owner.clock.time_ms)
    with pytest.raises(CompactionError, match="DELETE, compact, and change it back"):
        run(place(owner.root, owner.clock.time_ms))
    owner.name_compacted(())
    run(place(owner.root, owner.clock.time_ms))
    owner.take_over(2)
    owner.name_compacted(COMPACTED)
    owner.send("a", b"last")
    run(place(owner.root, owner.clock.time_ms))
    owner.take_over(3)
    assert owner.bodies("C")[-1] == b"last"
    owner.store.close()


def test_what_a_checkpoint_has_on_disk_since_long_is_not_checked_for_an_end(
    owner: Compacting,
) -> None:
    while owner.store.visible_end % 4096 > 2000:
        owner.send("more")
    start = owner.store.visible_end
    owner.send("only one", b"whole")
    owner.send("one more")
    path = log_file(owner.root, start // 4096)
    spoiled(path, path.read_bytes().index(b"whole", start % 4096), b"w-ole")
    checkpoint = owner.root / "checkpoint"
    old = Checkpoint(log_timestamp_ms=owner.clock.time_ms)
    checkpoint.write_bytes(encode_checkpoint(old))
    with pytest.raises(CompactionError, match="is followed by whole records"):
        run(place(owner.root, owner.clock.time_ms))
    new = Checkpoint(log_timestamp_ms=owner.clock.time_ms + SAFETY_MARGIN_MS + 1)
    checkpoint.write_bytes(encode_checkpoint(new))
    # The kill happens while the file is copied, if it is copied.
    with pytest.raises(CompactionError, match="bad crc"):
        run(place(owner.root, owner.clock.time_ms))


@dataclass
class LeavingWriter:
    """A `PartWriter` that leaves the files of a killed attempt beside each file."""

    writer: FileWriter

    def write(self, name: str, content: bytes) -> None:
        (self.writer.directory / f".{name}.{0:032x}").write_bytes(content[:10])
        self.writer.write(name, content)

    def link(self, generation: int, former_name: str, name: str) -> None:
        self.writer.link(generation, former_name, name)


def test_what_killed_attempts_leave_is_not_published(owner: Compacting) -> None:
    class Left(DirectoryTarget):
        @contextmanager
        def incoming(self, number: int, /) -> Iterator[Incoming]:
            with super().incoming(number) as incoming:
                assert isinstance(incoming.writer, FileWriter)
                yield Rerouted(incoming, LeavingWriter(incoming.writer))

    now_ms = owner.clock.time_ms
    run(Left(owner.root, clock_ns=lambda: now_ms * 1_000_000))
    check(owner.root, 2)
    owner.take_over(2)


@dataclass(frozen=True)
class Pieces:
    """A `ContiguousPartition` that yields its records in several pieces."""

    pieces: Sequence[LogRecords]

    def records(self, offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        assert offsets is None
        yield from self.pieces


def test_a_queue_offset_that_is_missing_between_two_pieces_is_noticed() -> None:
    def piece(offset: int) -> LogRecords:
        record = Record(
            topic=b"C",
            body=b"body",
            properties=b"KEYS\x01a\x02",
            queue_offset=offset,
            born_host=BORN_HOST,
            store_host=BORN_HOST,
        )
        frame = np.frombuffer(encode_record(record), np.uint8)
        return LogRecords.of(frame, 0, np.zeros(1, np.int64), np.array([len(frame)]), "")

    def look(*offsets: int) -> Survey:
        source = PartitionSource(Pieces([piece(each) for each in offsets]), {"C": 0}, 1000, 0)
        return survey(source, KeyHash(bytes(SECRET_BYTES)), {"C": 0}, 0)[1]

    assert look(4, 5, 6).queues == {("C", 0): QueueOffsets(4, 6, 3)}
    with pytest.raises(CompactionError, match="the log has offset 7, but 6 was expected"):
        look(4, 5, 7)
