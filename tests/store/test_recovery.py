"""After recovery from any state of a directory, the queues equal a rebuild from the log."""

import random
import shutil
from pathlib import Path

import pytest

from rockoon_broker.store.errors import StoreLayoutError, UnexpectedFile
from rockoon_broker.store.log.scan import LogScan
from rockoon_broker.store.reading.reader import GetStatus
from rockoon_broker.store.recovery.checkpoint_files import AbortFile
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import (
    FailingDisk,
    Owner,
    crashed_copy,
    in_log,
    recovered,
    settings,
    unpack_golden,
)

Q1 = "consumequeue/TopicTest/1/00000000000000000000"
LAST_LOG_FILE = "commitlog/00000000000000004096"
GOLDEN_END = 7450
LAST_RECORD = 7328


def poke(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def golden_offsets(owner: Owner) -> list[tuple[int, int]]:
    store = owner.store
    return [(store.min_offset("TopicTest", q), store.max_offset("TopicTest", q)) for q in (0, 1)]


class TestAStoreThatApacheRocketMQWrote:
    @pytest.fixture
    def golden(self, tmp_path: Path) -> StoreSettings:
        return unpack_golden(tmp_path)

    def test_opens_with_every_offset_as_java_had_it(self, golden: StoreSettings) -> None:
        owner = recovered(golden)
        assert golden_offsets(owner) == [(0, 4), (0, 4)]
        assert owner.store.appended_end == GOLDEN_END
        assert owner.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1
        owner.store.close()

    def test_is_not_changed_by_opening_and_closing(self, golden: StoreSettings) -> None:
        paths = [p for p in golden.root.rglob("*") if p.is_file() and p.name.isdigit()]
        before = {path: path.read_bytes() for path in paths}
        recovered(golden).store.close()
        assert {path: path.read_bytes() for path in paths} == before
        assert not (golden.root / "abort").exists()

    def test_of_which_only_the_log_is_left_gets_all_queues_back(
        self, golden: StoreSettings
    ) -> None:
        queue_files = {p: p.read_bytes() for p in (golden.root / "consumequeue").rglob("00*")}
        shutil.rmtree(golden.root / "consumequeue")
        owner = recovered(golden)
        assert golden_offsets(owner) == [(0, 4), (0, 4)]
        owner.store.close()
        assert {p: p.read_bytes() for p in (golden.root / "consumequeue").rglob("00*")} == (
            queue_files
        )

    @pytest.mark.parametrize("abort", [False, True])
    @pytest.mark.parametrize("missing", [1, 2])
    def test_with_a_lagging_queue_is_repaired_not_shifted(
        self, golden: StoreSettings, missing: int, abort: bool
    ) -> None:
        before = (golden.root / Q1).read_bytes()
        poke(golden.root / Q1, (4 - missing) * 20, bytes(missing * 20))
        if abort:
            (golden.root / "abort").write_text("4711")
        owner = recovered(golden)
        assert golden_offsets(owner) == [(0, 4), (0, 4)]
        owner.store.close()
        assert (golden.root / Q1).read_bytes() == before

    def test_with_garbage_behind_the_end_keeps_its_end(self, golden: StoreSettings) -> None:
        poke(golden.root / LAST_LOG_FILE, GOLDEN_END - 4096, b"\xda\xa3garbage" * 9)
        owner = recovered(golden)
        assert owner.store.appended_end == GOLDEN_END
        assert owner.store.recovery.bytes_cleared > 0
        owner.store.close()

    def test_with_a_damaged_last_record_loses_that_record_and_its_entry(
        self, golden: StoreSettings
    ) -> None:
        poke(golden.root / LAST_LOG_FILE, LAST_RECORD - 4096 + 88, b"?")
        owner = recovered(golden)
        assert owner.store.appended_end == LAST_RECORD
        assert golden_offsets(owner) == [(0, 4), (0, 3)]
        owner.store.close()

    @pytest.mark.parametrize("size", [0, 4096])
    def test_with_an_unused_last_file_loses_only_that(
        self, golden: StoreSettings, size: int
    ) -> None:
        stray = golden.root / "commitlog" / f"{8192:020d}"
        stray.write_bytes(bytes(size))
        owner = recovered(golden)
        assert golden_offsets(owner) == [(0, 4), (0, 4)]
        assert not stray.exists()
        owner.store.close()

    def test_without_its_first_log_file_has_higher_min_offsets(self, golden: StoreSettings) -> None:
        (golden.root / "commitlog" / f"{0:020d}").unlink()
        owner = recovered(golden)
        assert golden_offsets(owner) == [(3, 4), (2, 4)]
        owner.store.close()

    def test_without_first_log_file_and_queues_begins_with_fillers(
        self, golden: StoreSettings
    ) -> None:
        (golden.root / "commitlog" / f"{0:020d}").unlink()
        shutil.rmtree(golden.root / "consumequeue")
        owner = recovered(golden)
        assert golden_offsets(owner) == [(3, 4), (2, 4)]
        owner.store.close()
        q0 = (golden.root / "consumequeue/TopicTest/0" / f"{0:020d}").read_bytes()
        filler = "00000000000000007fffffff0000000000000000"
        assert q0[:80].hex() == 3 * filler + "000000000000100000000c26000000000027a809"
        assert not any(q0[80:])

    def test_takes_new_messages_behind_the_old(self, golden: StoreSettings) -> None:
        owner = recovered(golden)
        appended = owner.append("TopicTest", 1, [b"new"])
        assert (appended.first_queue_offset, appended.first_physical_offset) == (4, GOLDEN_END)
        assert appended.store_timestamp_ms > 1_700_000_000_000
        owner.store.close()
        assert verify_store(golden.root) == []

    def test_used_again_by_another_broker_is_read_from_its_beginning(
        self, golden: StoreSettings
    ) -> None:
        owner = Owner(golden)
        assert owner.store.recovery.reason == "no recovery point"
        owner.store.close()
        # A Java broker that crashes leaves its own abort file.
        (golden.root / "abort").write_text("4711")
        poke(golden.root / Q1, 0, bytes(20))
        owner = recovered(golden)
        assert owner.store.recovery.boundary == 0
        assert golden_offsets(owner) == [(0, 4), (0, 4)]
        owner.store.close()


def test_an_empty_log_directory_means_that_offsets_start_again(tmp_path: Path) -> None:
    golden = unpack_golden(tmp_path)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    owner = recovered(golden)
    assert golden_offsets(owner) == [(0, 0), (0, 0)]
    assert owner.append("TopicTest").first_queue_offset == 0
    owner.store.close()


class TestADirectoryThatDoesNotFitIsRefusedUnchanged:
    @pytest.fixture
    def golden(self, tmp_path: Path) -> StoreSettings:
        return unpack_golden(tmp_path)

    def refused(self, configured: StoreSettings) -> StoreLayoutError:
        before = {p: p.read_bytes() for p in configured.root.rglob("*") if p.is_file()}
        with pytest.raises(StoreLayoutError) as caught:
            Owner(configured)
        after = {p: p.read_bytes() for p in configured.root.rglob("*") if p.is_file()}
        assert after == before
        return caught.value

    def test_a_log_file_of_another_size(self, golden: StoreSettings) -> None:
        poke(golden.root / LAST_LOG_FILE, 4096, b"x")
        error = self.refused(golden)
        assert isinstance(error, UnexpectedFile)
        assert (error.path.name, error.found_bytes, error.expected_bytes) == (
            LAST_LOG_FILE[-20:],
            4097,
            4096,
        )
        assert "found 4097 bytes, expected 4096 bytes" in str(error)

    def test_a_foreign_name_in_the_log(self, golden: StoreSettings) -> None:
        (golden.root / "commitlog" / "foo.tmp").write_bytes(bytes(4096))
        assert "foo.tmp" in str(self.refused(golden))

    def test_a_missing_log_file_in_the_middle(self, tmp_path: Path) -> None:
        configured = settings(tmp_path / "s")
        owner = Owner(configured)
        owner.append(bodies=[bytes(1000)])
        for _ in range(10):
            owner.append(bodies=[bytes(1000)])
        owner.store.close()
        (tmp_path / "s/commitlog" / f"{4096:020d}").unlink()
        assert "is missing" in str(self.refused(configured))

    def test_damaged_marks_of_deleted_topics(self, golden: StoreSettings) -> None:
        (golden.root / "config").mkdir()
        (golden.root / "config/droppedTopics.json").write_text("{")
        assert "droppedTopics.json is damaged" in str(self.refused(golden))


def filled(root: Path, batches: int = 40) -> Owner:
    """A store in use, with several files of log and queues."""
    owner = Owner(settings(root))
    for number in range(batches):
        bodies = [b"%d.%d" % (number, i) for i in range(number % 4 + 1)]
        owner.append(f"T{number % 3}", number % 2, bodies, f"Tag{number % 5}")
    return owner


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_store_keeps_its_file_sizes_whatever_the_settings_say(
    tmp_path: Path, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    owner = filled(tmp_path / "used")
    end = owner.store.appended_end
    root = tmp_path / "used"
    if not is_clean:
        root = crashed_copy(root, tmp_path / "killed")
    owner.store.close()
    owner = recovered(settings(root, commit_log_file_bytes=8192, consume_queue_file_entries=20))
    assert owner.store.appended_end == end
    assert owner.store.settings == settings(root)
    assert "commit_log_file_bytes is 4096 in this store and cannot change" in caplog.text
    assert "consume_queue_file_entries is 10 in this store" in caplog.text
    owner.append()
    owner.store.close()
    assert verify_store(root) == []


def test_a_clean_stop_leaves_nothing_to_read_at_the_next_start(tmp_path: Path) -> None:
    owner = filled(tmp_path)
    end = owner.store.appended_end
    owner.store.close()
    assert not (tmp_path / "abort").exists()
    owner = recovered(settings(tmp_path))
    assert owner.store.recovery.was_clean
    assert owner.store.recovery.reason == "clean stop"
    assert owner.store.recovery.records_scanned == 0
    assert owner.store.appended_end == end
    owner.store.close()


def test_a_clean_stop_removes_the_file_reserved_ahead(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    owner.append(bodies=[bytes(2500)])
    owner.store.close()
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]


def test_the_work_after_a_crash_depends_on_what_came_after_the_point(tmp_path: Path) -> None:
    configured = settings(tmp_path / "s", commit_log_file_bytes=1 << 20)
    scanned = []
    for number in range(3):
        owner = Owner(configured)
        for _ in range(200 * number):
            owner.append(bodies=[b"old"] * 5)
        owner.write_point()
        for _ in range(7):
            owner.append(bodies=[b"new"] * 5)
        copy = crashed_copy(configured.root, tmp_path / f"copy{number}")
        owner.store.close()
        after = recovered(configured, copy)
        scanned.append((after.store.recovery.records_scanned, after.store.recovery.reason))
        after.store.close()
    assert scanned == [(35, "recovery point")] * 3


def test_a_crash_loop_keeps_using_the_point(tmp_path: Path) -> None:
    owner = filled(tmp_path / "0")
    owner.write_point()
    owner.append(bodies=[b"after the point"])
    source = crashed_copy(tmp_path / "0", tmp_path / "1")
    owner.store.close()
    for number in range(1, 4):
        again = recovered(settings(source))
        assert again.store.recovery.reason == "recovery point"
        assert again.store.recovery.records_scanned == (1 if number == 1 else 0)
        source = crashed_copy(source, tmp_path / str(number + 1))
        again.store.close()


def damage_point(root: Path) -> None:
    content = (root / "recoveryPoint").read_bytes()
    (root / "recoveryPoint").write_bytes(bytes(b ^ 1 for b in content))


def remove_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/T1/1")


def remove_queue_tail(root: Path) -> None:
    last = max((root / "consumequeue/T1/1").iterdir())
    content = last.read_bytes().rstrip(b"\0")
    poke(last, (len(content) - 1) // 20 * 20, bytes(20))


def lengthen_queue(root: Path) -> None:
    last = max((root / "consumequeue/T2/0").iterdir())
    used = -(-len(last.read_bytes().rstrip(b"\0")) // 20)
    assert used < 10
    poke(last, used * 20, (1 << 40).to_bytes(8) + (99).to_bytes(4) + bytes(8))


def foreign_checkpoint(root: Path) -> None:
    poke(root / "checkpoint", 0, (NEWER_MS).to_bytes(8))


def foreign_abort(root: Path) -> None:
    (root / "abort").write_text("4711")


def remove_point(root: Path) -> None:
    (root / "recoveryPoint").unlink()


def remove_all_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


NEWER_MS = 1_800_000_000_000


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("damage", "reads_all"),
    [
        (damage_point, True),
        (remove_point, True),
        (remove_queue, True),
        (remove_queue_tail, True),
        (remove_all_queues, True),
        (foreign_checkpoint, True),
        (foreign_abort, True),
        (lengthen_queue, False),
    ],
)
def test_damage_to_derived_files_is_found_and_repaired(
    tmp_path: Path, damage: object, reads_all: bool, clean: bool
) -> None:
    owner = filled(tmp_path / "s")
    owner.write_point()
    bodies = owner.bodies("T1", 1)
    if clean:
        owner.store.close()
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    assert callable(damage)
    damage(root)
    after = recovered(settings(root))
    assert (after.store.recovery.boundary == 0) == reads_all, after.store.recovery.reason
    assert after.bodies("T1", 1) == bodies
    after.store.close()
    again = recovered(settings(root))
    assert again.store.recovery.records_scanned == 0
    again.store.close()


def test_the_older_point_is_used_when_the_newer_was_torn(tmp_path: Path) -> None:
    owner = filled(tmp_path / "s")
    owner.write_point()
    first = owner.store.appended_end
    owner.append(bodies=[b"x"])
    owner.write_point()
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    slots = (root / "recoveryPoint").read_bytes()
    newer = max((0, 512), key=lambda at: slots[at + 8 : at + 16])
    poke(root / "recoveryPoint", newer + 40, b"\xff")
    # The checkpoint is written after the point, so a torn point exists with the older checkpoint.
    shutil.copy(tmp_path / "s/checkpoint", root / "checkpoint")
    after = Owner(settings(root))
    assert after.store.recovery.boundary <= first
    assert verify_store(root) == []
    after.store.close()


def test_old_bytes_behind_a_torn_end_never_come_back_as_records(tmp_path: Path) -> None:
    """Records of one size: rewritten bytes end where an old record begins."""
    owner = Owner(settings(tmp_path / "s"))
    owner.append(bodies=[b"keep"])
    torn = owner.append(bodies=[b"torn"]).first_physical_offset
    for _ in range(5):
        owner.append(bodies=[b"dead"])
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    (root / "recoveryPoint").unlink()
    poke(root / "commitlog" / f"{0:020d}", torn + 88, b"?")
    after = recovered(settings(root))
    assert after.bodies() == [b"keep"]
    after.append(bodies=[b"anew"])
    second = crashed_copy(root, tmp_path / "second")
    after.store.close()
    last = recovered(settings(second))
    assert last.bodies() == [b"keep", b"anew"]
    last.store.close()


def test_a_record_lost_in_the_middle_keeps_later_files_aside(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path / "s"))
    for number in range(9):
        owner.append(bodies=[b"%d" % number + bytes(1000)])
    owner.store.close()
    root = tmp_path / "s"
    (root / "recoveryPoint").unlink()
    (root / "checkpoint").unlink()
    poke(root / "commitlog" / f"{4096:020d}", 100, b"?")
    after = recovered(settings(root))
    assert len(after.bodies()) == 3
    assert sorted(int(path.name) for path in (root / "lost").iterdir()) == [4096, 8192]
    occupied = sum(path.stat().st_blocks for path in (root / "lost").iterdir()) * 512
    assert after.store.recovery.lost_bytes == occupied >= 4096
    after.store.close()


def test_an_interrupted_reservation_of_a_file_is_removed(tmp_path: Path) -> None:
    owner = filled(tmp_path)
    owner.store.close()
    last = max((tmp_path / "commitlog").iterdir())
    stray = last.with_name(f"{int(last.name) + 4096:020d}")
    stray.write_bytes(bytes(1000))
    owner = recovered(settings(tmp_path))
    assert not stray.exists()
    owner.store.close()


@pytest.mark.parametrize("seed", seeds(8))
def test_random_damage_behind_the_recovery_point_loses_nothing_before_it(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    configured = settings(tmp_path / "s", commit_log_file_bytes=choose.choice([2048, 4096, 16384]))
    owner = Owner(configured)
    kept: dict[tuple[str, int], list[bytes]] = {}

    def append_some(count: int) -> None:
        for number in range(count):
            key = (choose.choice("ABC"), choose.randrange(3))
            bodies = [
                b"%d-%d" % (number, i) + bytes(choose.randrange(120))
                for i in range(choose.randrange(1, 6))
            ]
            owner.append(*key, bodies)
            kept.setdefault(key, []).extend(bodies)

    append_some(choose.randrange(60))
    if choose.random() < 0.3:
        owner.store.drop_topics("A")
        for queue_id in range(3):
            kept.pop(("A", queue_id), None)
    owner.write_point()
    durable = {key: list(bodies) for key, bodies in kept.items()}
    point = owner.store.visible_end
    append_some(choose.randrange(1, 40))
    end = owner.store.appended_end
    root = crashed_copy(configured.root, tmp_path / "copy")
    owner.store.close()

    file_bytes = configured.commit_log_file_bytes
    for _ in range(choose.randrange(1, 4)):
        position = choose.randrange(point, end) if point < end else point
        file = root / "commitlog" / f"{position - position % file_bytes:020d}"
        if file.exists():
            at = position % file_bytes
            count = min(choose.choice([1, 7, 100, 4096]), file_bytes - at)
            poke(file, at, choose.choice([bytes(count), choose.randbytes(count)]))
    for file in sorted((root / "consumequeue").rglob("00*")):
        if file.is_file() and choose.random() < 0.3:
            entries = file.read_bytes()
            for at in range(0, len(entries), 20):
                offset = int.from_bytes(entries[at : at + 8])
                if (offset >= point or not any(entries[at : at + 20])) and choose.random() < 0.5:
                    poke(file, at, choose.choice([bytes(20), b"\xff" * 20]))

    after = recovered(configured, root)
    for key in kept:
        found = after.bodies(*key)
        assert found == kept[key][: len(found)]
        assert len(found) >= len(durable.get(key, []))
    appended = after.append("A", 0, [b"goes on"])
    assert appended.first_queue_offset == after.store.max_offset("A", 0) - 1
    after.store.close()
    assert verify_store(root) == []


@pytest.mark.parametrize("seed", seeds(2))
def test_a_record_that_is_torn_anywhere_was_never_there(tmp_path: Path, seed: int) -> None:
    """After a torn write, zeros or the former bytes follow the position."""
    rng = random.Random(seed)
    configured = settings(tmp_path / "s")
    owner = Owner(configured)
    owner.append(bodies=[b"durable"])
    owner.write_point()
    torn = owner.append(bodies=[b"torn"] if seed % 2 else [b""], tags="new")
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    log = root / "commitlog" / f"{0:020d}"
    start, end = torn.first_physical_offset, torn.end_offset
    whole = log.read_bytes()
    for cut in range(start, end):
        for rest in (bytes(end - cut), rng.randbytes(end - cut)):
            log.write_bytes(whole[:cut] + rest + whole[end:])
            assert scanned_end(root) == start, cut
    for cut in (end - 1, end - 20, *rng.sample(range(start, end), 3)):
        log.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        copy = crashed_copy(root, tmp_path / f"{cut}")
        after = recovered(settings(copy))
        assert after.bodies() == [b"durable"]
        assert after.store.appended_end == start
        after.append(bodies=[b"goes on"])
        assert after.bodies() == [b"durable", b"goes on"]
        after.store.close()


def scanned_end(root: Path) -> int:
    """Return the log's end for a start, and the meaning of `abort` for its records."""
    disk = Disk()
    abort = AbortFile(root, disk).read()
    assert abort is not None
    walk = LogScan(root / "commitlog", 4096, [0], disk, checksums_from=abort.checksums_from)
    for _ in walk.chunks(0):
        continue
    return walk.end


def test_without_checksums_of_its_own_a_store_takes_records_as_rocketmq_does(
    tmp_path: Path,
) -> None:
    configured = settings(tmp_path / "s", record_checksums=False)
    owner = Owner(configured)
    owner.append(bodies=[b"old"])
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    assert "checksums-from" not in (root / "abort").read_text()
    after = Owner(settings(root))
    assert after.bodies() == [b"old"]
    since = after.store.appended_end
    assert f"checksums-from {since}\n" in (root / "abort").read_text()
    after.append(bodies=[b"new"])
    again = crashed_copy(root, tmp_path / "again")
    after.store.close()
    last = Owner(settings(again))
    assert last.bodies() == [b"old", b"new"]
    assert f"checksums-from {since}\n" in (again / "abort").read_text()
    last.store.close()


def test_a_checksum_that_another_broker_left_in_a_record_of_its_own_ends_no_log(
    tmp_path: Path,
) -> None:
    """RocketMQ copies the properties of a delayed message, and checks bodies only by default."""
    owner = Owner(settings(tmp_path))
    owner.append(bodies=[b"ours"])
    copied = owner.append(bodies=[b"copied"])
    owner.append(bodies=[b"behind"])
    owner.store.close()
    log = tmp_path / "commitlog" / f"{0:020d}"
    poke(log, copied.end_offset - 3, b"x")
    foreign_abort(tmp_path)
    after = Owner(settings(tmp_path))
    assert after.bodies() == [b"ours", b"copied", b"behind"]
    after.store.close()


def test_what_a_start_shows_to_readers_was_synced_before(tmp_path: Path) -> None:
    owner = filled(tmp_path / "s")
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    disk = FailingDisk()
    after = Owner(settings(root), disk)
    logs = sorted(int(path.name) for path in (root / "commitlog").iterdir())
    assert {int(path.name) for path in disk.syncs if in_log(path)} == set(logs)
    entries = [path for path in (root / "consumequeue").rglob("00*") if path.is_file()]
    assert set(entries) <= set(disk.syncs)
    after.store.close()


def test_a_number_that_no_record_bears_is_passed_over_by_readers(tmp_path: Path) -> None:
    """Another broker's log can skip queue offsets; its entries must not move because of that."""
    owner = Owner(settings(tmp_path))
    size = owner.append(bodies=[b"0"]).end_offset
    owner.append(bodies=[b"1"])
    owner.store.close()
    (tmp_path / "recoveryPoint").unlink()
    poke(tmp_path / "commitlog" / f"{0:020d}", size + 20, (14).to_bytes(8))
    after = Owner(settings(tmp_path))
    store = after.store
    assert store.max_offset("T", 0) == 15
    assert after.bodies() == [b"0", b"1"]
    assert store.get("T", 0, 5).status is GetStatus.MESSAGE_WAS_REMOVING
    assert store.get("T", 0, 5).next_offset == 10
    assert store.get("T", 0, 10).next_offset == 15
    assert after.append().first_queue_offset == 15
    store.close()


def test_a_number_that_two_records_bear_belongs_to_the_first(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    size = owner.append(bodies=[b"0"]).end_offset
    owner.append(bodies=[b"1"])
    owner.append(bodies=[b"2"])
    owner.store.close()
    (tmp_path / "recoveryPoint").unlink()
    poke(tmp_path / "commitlog" / f"{0:020d}", size + 20, (0).to_bytes(8))
    poke(tmp_path / "commitlog" / f"{0:020d}", 2 * size + 20, (1).to_bytes(8))
    after = Owner(settings(tmp_path))
    assert after.bodies() == [b"0", b"2"]
    after.store.close()


@pytest.mark.parametrize("behind", range(7))
def test_an_entry_that_lost_half_its_offset_in_a_power_cut_hides_no_record(
    tmp_path: Path, behind: int
) -> None:
    """Its upper bytes were on a page that was not written, so it looks older than the log."""
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    for number in range(13):
        owner.append(bodies=[b"%d" % number + bytes(1000)])
    owner.write_point()
    disk.usage_percent = 86
    owner.store.clean(owner.clock.time_ms)
    owner.wait_for_removals()
    kept = owner.bodies()
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    (root / "recoveryPoint").unlink()
    queue_file = root / "consumequeue/T/0" / f"{200:020d}"
    poke(queue_file, (3 + behind) * 20, (8).to_bytes(8) + (1100).to_bytes(4) + bytes(8))
    after = recovered(settings(root))
    assert after.bodies() == kept
    after.store.close()
