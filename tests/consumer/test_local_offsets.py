"""Progress in a file: RocketMQ's files, files after a crash, unreadable and unwritable ones."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rockoon.cluster import Cluster
from rockoon.errors import (
    CommitBehind,
    InvalidArgument,
    StoreCorrupt,
    StoreLocked,
    StoreNotWritable,
)
from rockoon.offsets.custom_offset_store import OffsetSnapshot
from rockoon.offsets.local_offsets import LocalFileOffsetStore, OffsetsFile, decode, encode
from rockoon.offsets.start import ConsumeFrom, Position, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_format.config_json import LocalQueue, read_local_offsets
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from support.fake_cluster import FakeCluster

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
WRITTEN_BY_JAVA = b"""{
\t"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42
\t}
}"""


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[OffsetsFile]:
    file = OffsetsFile(tmp_path)
    yield file
    await file.close()


async def reopened(folder: Path) -> OffsetSnapshot:
    file = OffsetsFile(folder)
    try:
        return await file.load()
    finally:
        await file.close()


async def test_a_file_that_rocketmq_wrote_is_read(file: OffsetsFile) -> None:
    file.path.write_bytes(WRITTEN_BY_JAVA)
    assert (await file.load()).positions == {Q0: Position(42)}


async def test_a_file_is_read_again_with_create_revisions_and_rocketmq_reads_its_offsets(
    file: OffsetsFile, tmp_path: Path
) -> None:
    await file.load()
    await file.write(OffsetSnapshot({Q0: Position(42, create_revision=7)}, {"orders": 5}))
    await file.write(OffsetSnapshot({Q1: Position(1)}))
    await file.close()
    kept = await reopened(tmp_path)
    assert kept == OffsetSnapshot(
        {Q0: Position(42, create_revision=7), Q1: Position(1)}, {"orders": 5}
    )
    assert read_local_offsets(file.path.read_bytes()) == {
        LocalQueue("orders", "broker-a", 0): 42,
        LocalQueue("orders", "broker-a", 1): 1,
    }


async def test_the_file_before_is_kept_and_stands_in_for_one_that_is_damaged_or_missing(
    file: OffsetsFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await file.load()
    await file.write(OffsetSnapshot({Q0: Position(1)}))
    await file.write(OffsetSnapshot({Q0: Position(2)}))
    await file.close()
    assert decode(file.backup_path.read_bytes()).positions == {Q0: Position(1)}
    file.path.write_bytes(file.path.read_bytes()[:-20])
    assert (await reopened(tmp_path)).positions == {Q0: Position(1)}
    assert "offsets.json.bak" in caplog.text
    # The damaged file did not become the backup, and can be inspected.
    assert decode(file.backup_path.read_bytes()).positions == {Q0: Position(1)}
    assert (tmp_path / "offsets.json.damaged").exists()
    file.path.unlink()
    assert (await reopened(tmp_path)).positions == {Q0: Position(1)}


@pytest.mark.parametrize("content", [b"", b"{", b'{"offsetTable":{"x":1}}', b"\0" * 64])
async def test_when_both_files_are_damaged_the_reader_says_so_or_starts_by_policy(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreCorrupt, match="on_corrupt"):
        await reopened(tmp_path)
    assert (tmp_path / "offsets.json").read_bytes() == content
    file = OffsetsFile(tmp_path, on_corrupt="policy")
    assert await file.load() == OffsetSnapshot()
    await file.close()
    assert "ALL PROGRESS" in caplog.text
    assert await reopened(tmp_path) == OffsetSnapshot()


async def test_a_place_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreNotWritable, match="cannot be stored in"):
        await reopened(tmp_path / "file" / "offsets")
    (tmp_path / "offsets.json.tmp").mkdir()
    with pytest.raises(StoreNotWritable, match="cannot be stored in"):
        await reopened(tmp_path)


async def test_a_write_that_fails_leaves_the_former_file(file: OffsetsFile, tmp_path: Path) -> None:
    await file.load()
    await file.write(OffsetSnapshot({Q0: Position(1)}))
    (tmp_path / "offsets.json.tmp").mkdir()
    with pytest.raises(StoreNotWritable):
        await file.write(OffsetSnapshot({Q0: Position(2)}))
    assert decode(file.path.read_bytes()).positions == {Q0: Position(1)}
    (tmp_path / "offsets.json.tmp").rmdir()
    await file.write(OffsetSnapshot({Q1: Position(3)}))
    assert decode(file.path.read_bytes()).positions == {Q0: Position(1), Q1: Position(3)}


async def test_another_process_on_the_same_folder_is_refused_until_the_first_has_ended(
    tmp_path: Path,
) -> None:
    holding = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(  # noqa: ASYNC220 - it only holds a lock
        [sys.executable, "-c", holding, os.fspath(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked):
            await reopened(tmp_path)
        other.kill()
    assert await reopened(tmp_path) == OffsetSnapshot()


def test_what_java_wrote_last_has_no_create_revisions_and_minus_one_is_nothing() -> None:
    assert decode(WRITTEN_BY_JAVA.replace(b"42", b"-1")) == OffsetSnapshot()
    assert decode(encode(decode(WRITTEN_BY_JAVA))).positions == {Q0: Position(42)}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b"])
async def test_a_client_id_that_leads_out_of_the_folder_is_refused(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument):
        LocalFileOffsetStore(cluster, "billing", name, directory=tmp_path)


@pytest.fixture
async def store(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> AsyncIterator[LocalFileOffsetStore]:
    fake.create_topic("orders", queues=2)
    for queue_id in (0, 1):
        fake.append("orders", [b"x"] * 100, queue_id=queue_id)
    request = SubscribeRequest(group="billing", topic="orders", create_group=True)
    await cluster.call_nameserver("Subscribe", request)
    store = LocalFileOffsetStore(cluster, "billing", "shop-7", directory=tmp_path)
    await store.load()
    yield store
    await store.close()


async def test_a_start_is_kept_before_it_is_answered(
    store: LocalFileOffsetStore, tmp_path: Path
) -> None:
    start = (await store.resolve([Q0], ConsumeFrom.LAST))[Q0]
    assert isinstance(start, Start)
    assert (start.offset, start.reason) == (100, "LAST")
    kept = decode((tmp_path / "shop-7" / "billing" / "offsets.json").read_bytes())
    assert kept.positions[Q0].offset == 100


async def test_memory_only_grows_unless_told_to_and_only_changes_are_stored(
    store: LocalFileOffsetStore,
) -> None:
    store.update(Q0, 10)
    assert store.read_memory(Q0) is None
    await store.resolve([Q0, Q1], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    store.update(Q0, 4)
    assert store.clone("orders") == {Q0: 10, Q1: 0}
    assert await store.read_store(Q0) == 0
    assert (await store.persist_all()).stored == {Q0: 10}
    assert (await store.persist_all()).stored == {}
    store.update(Q0, 4, increase_only=False)
    assert (await store.persist([Q0])).stored == {Q0: 4}
    await store.commit(Q1, 7)
    with pytest.raises(CommitBehind):
        await store.commit(Q1, 6)
    store.remove(Q1)
    assert (store.read_memory(Q1), await store.read(Q1)) == (None, 7)


async def test_a_disk_that_takes_nothing_for_a_while_loses_no_progress(
    store: LocalFileOffsetStore,
) -> None:
    await store.resolve([Q0], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    (store.folder / "offsets.json.tmp").mkdir()
    assert list((await store.persist_all()).kept) == [Q0]
    (store.folder / "offsets.json.tmp").rmdir()
    assert (await store.persist_all()).stored == {Q0: 10}


async def test_a_write_whose_waiter_was_cancelled_is_not_overtaken_by_the_next(
    file: OffsetsFile, tmp_path: Path
) -> None:
    await file.load()
    for offset in range(1, 30):
        async with asyncio.TaskGroup() as tasks:
            impatient = tasks.create_task(file.write(OffsetSnapshot({Q0: Position(offset)})))
            await asyncio.sleep(0)
            impatient.cancel()
        await file.write(OffsetSnapshot({Q1: Position(offset)}))
        kept = decode(file.path.read_bytes()).positions
        assert kept[Q1] == Position(offset)
        assert kept.get(Q0) in (None, *(Position(n) for n in range(offset + 1)))
    await file.close()
    assert (await reopened(tmp_path)).positions[Q1] == Position(29)
