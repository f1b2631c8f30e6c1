"""Files of a store are accessible only for their owner, and for no other user of the machine."""

import os
from pathlib import Path

import pytest

from rockoon.offsets.local_offsets import OffsetsFile
from rockoon_node.store_directory import keep_private
from rockoon_offset.journal.store import JournalStore as OffsetStore
from rockoon_spark.compaction.directory_target import FileWriter
from support.modes import generous_umask, open_to_others
from support.store_directory import Owner, crashed_copy, recovered, settings


def test_a_brokers_store_is_its_owners(tmp_path: Path) -> None:
    with generous_umask():
        owner = Owner(settings(tmp_path / "new" / "store"))
        for _ in range(4):
            owner.append(bodies=[bytes(3000)])
        owner.write_point()
        owner.append(bodies=[b"torn"])
        owner.store.drop_topics("other")
        crashed = crashed_copy(tmp_path / "new", tmp_path / "crashed")
        log = sorted((crashed / "store/commitlog").iterdir())[-1]
        with log.open("r+b") as file:
            file.seek(3200)
            file.write(b"bytes that are no record")
        recovered(settings(crashed / "store")).store.close()
        owner.store.close()
    assert open_to_others(tmp_path / "new") == []
    (lost,) = (crashed / "store/lost").iterdir()
    assert open_to_others(lost.parent) == []


async def test_an_offset_services_store_is_its_owners(tmp_path: Path) -> None:
    with generous_umask():
        store = OffsetStore(tmp_path / "store", pytest.fail, journal_bytes_max=1)
        for _ in range(2):
            store.write(store.ledger.service_started())
            await store.durable()
        store.cluster.move_to(7)
        store.close()
    assert open_to_others(tmp_path / "store") == []


async def test_progress_that_a_member_keeps_is_its_owners(tmp_path: Path) -> None:
    with generous_umask():
        kept = OffsetsFile(tmp_path / "member")
        await kept.load()
        await kept.close()
    assert open_to_others(tmp_path / "member") == []


def test_what_a_job_writes_into_a_store_is_its_owners(tmp_path: Path) -> None:
    with generous_umask():
        FileWriter(tmp_path).write("00001.records", b"a body")
    assert open_to_others(tmp_path / "00001.records") == []


def test_a_store_of_before_is_closed_to_others_at_its_door(tmp_path: Path) -> None:
    (tmp_path / "store/commitlog").mkdir(parents=True)
    (tmp_path / "store").chmod(0o2775)
    (tmp_path / "store/commitlog").chmod(0o755)
    keep_private(tmp_path / "store")
    assert (tmp_path / "store").stat().st_mode & 0o7777 == 0o2700
    assert (tmp_path / "store/commitlog").stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory to somebody else")
def test_a_directory_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 12_345, -1)
    volume.chmod(0o775)
    keep_private(volume)
    assert volume.stat().st_mode & 0o777 == 0o775
