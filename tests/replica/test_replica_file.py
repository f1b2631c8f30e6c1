"""The file of a replica's facts: its content after a crash, and reported damage."""

import errno
import random
from pathlib import Path

import pytest

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_core.replication_rules import Config
from rockoon_replica.log_state import StateVersion
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ROOM, ReplicaFile, read_halt
from support.crashing_disk import CrashingDisk, PowerGone
from support.store_directory import FailingDisk

BEFORE = ReplicaFacts(promised=6, led=4, sound=True, version=StateVersion(1, 17))
AFTER = ReplicaFacts(
    promised=7,
    led=7,
    alone=True,
    sound=False,
    version=StateVersion(2, 18),
    config=Config(frozenset({"b", "a", "c"}), 2),
)


def read(directory: Path) -> ReplicaFacts | None:
    return ReplicaFile(directory, Disk()).read()


def test_facts_are_read_as_they_were_written_and_none_before(tmp_path: Path) -> None:
    file = ReplicaFile(tmp_path, Disk())
    assert file.read() is None
    for facts in (BEFORE, AFTER, ReplicaFacts()):
        file.write(facts)
        assert read(tmp_path) == facts


@pytest.mark.parametrize("former", [None, BEFORE])
def test_a_power_cut_at_any_operation_leaves_the_old_facts_or_the_new(
    tmp_path: Path, former: ReplicaFacts | None
) -> None:
    crash_at, has_returned = 0, False
    while not has_returned:
        here, after = tmp_path / str(crash_at), tmp_path / f"{crash_at}-after"
        here.mkdir()
        if former is not None:
            ReplicaFile(here, Disk()).write(former)
        disk = CrashingDisk(here, crash_at)
        try:
            ReplicaFile(here, disk).write(AFTER)
            has_returned = True
        except PowerGone:
            pass
        disk.cut(after, random.Random(crash_at))
        left = read(after)
        assert left == AFTER if has_returned else left in (former, AFTER), crash_at
        # After each of these states, the next facts are written as usual.
        ReplicaFile(after, Disk()).write(BEFORE)
        assert read(after) == BEFORE
        crash_at += 1
    assert crash_at > 5


def test_a_file_that_is_gone_is_told_even_if_the_crash_came_right_behind_it(tmp_path: Path) -> None:
    ReplicaFile(tmp_path, Disk()).write(AFTER)
    # As if the power had been lost before the marker was created.
    (tmp_path / "replicated").unlink()
    assert read(tmp_path) == AFTER

    (tmp_path / "replica").unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        read(tmp_path)


def test_no_bit_can_flip_unseen(tmp_path: Path) -> None:
    ReplicaFile(tmp_path, Disk()).write(AFTER)
    path = tmp_path / "replica"
    content = path.read_bytes()
    for bit in range(0, len(content) * 8, 3):
        harmed = bytearray(content)
        harmed[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(harmed)
        with pytest.raises(StoreCorrupt):
            read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"format":2}\n', b"null\n", b"\x00" * 300])
def test_what_was_never_written_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "replica").write_bytes(content)
    with pytest.raises(StoreCorrupt):
        read(tmp_path)


def test_a_later_format_is_told_and_not_taken_for_damage(tmp_path: Path) -> None:
    import zlib

    line = b'{"format":2,"promised":9}\n'
    (tmp_path / "replica").write_bytes(line + b"%08x\n" % zlib.crc32(line))
    with pytest.raises(StoreCorrupt, match="format is 2"):
        read(tmp_path)


def test_a_disk_that_refuses_is_told_and_keeps_the_facts_before(tmp_path: Path) -> None:
    disk = FailingDisk()
    file = ReplicaFile(tmp_path, disk)
    file.write(BEFORE)
    disk.fail_sync = lambda _: errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        file.write(AFTER)
    assert read(tmp_path) == BEFORE


def test_who_acknowledged_the_unsynced_is_not_sound_once_the_machine_was_started_again(
    tmp_path: Path,
) -> None:
    facts = BEFORE._replace(sound=True)
    ReplicaFile(tmp_path, Disk(), acknowledges_unsynced=True, boot="monday").write(facts)

    def sound_in(boot: str) -> bool:
        found = ReplicaFile(tmp_path, Disk(), boot=boot).read()
        assert found is not None
        return found.sound

    # Facts in the machine's memory are valid while it runs, for every reader.
    assert [sound_in("monday"), sound_in("tuesday"), sound_in("")] == [True, False, False]
    ReplicaFile(tmp_path, Disk(), boot="monday").write(facts)
    assert sound_in("tuesday")


def test_a_replica_promises_and_halts_on_a_full_disk(tmp_path: Path) -> None:
    """An election may need it, though its log has no more space."""
    disk = FailingDisk()
    file = ReplicaFile(tmp_path, disk)
    file.write(BEFORE)
    reserved = tmp_path / ROOM
    # The reserved blocks are the only ones that another file can get.
    disk.fail_write = lambda *_: errno.ENOSPC if reserved.exists() else 0
    for facts in (AFTER, BEFORE, AFTER):
        file.write(facts)
        assert read(tmp_path) == facts
        assert reserved.stat().st_blocks
    file.halt("its leader asks it to cut its log")
    assert read_halt(tmp_path) == "its leader asks it to cut its log"


def test_a_disk_without_room_for_the_reserve_is_no_reason_to_refuse_facts(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.fail_allocate = lambda _: errno.ENOSPC
    file = ReplicaFile(tmp_path, disk)
    file.write(BEFORE)
    assert not (tmp_path / ROOM).exists()
    disk.fail_write = lambda *_: errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        file.write(AFTER)
    disk.fail_write = disk.fail_allocate = lambda *_: 0
    file.write(AFTER)
    assert read(tmp_path) == AFTER
    assert (tmp_path / ROOM).exists()
