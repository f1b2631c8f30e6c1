# ruff: noqa: ARG002 - fakes have the arguments of the replaced functions
"""Uploads of generation files: complete and synced, bounded, and deleted if they are abandoned."""

import asyncio
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rockoon_broker.compaction.uploads import (
    CHUNK_BYTES_MAX,
    FILES_AT_ONCE_MAX,
    IDLE_SECONDS_MAX,
    UPLOADS_MAX,
    Threads,
    Uploads,
)
from rockoon_core.disk import Disk, DiskUsage
from rockoon_core.errors import Busy, InvalidArgument, StoreNotWritable
from support.waiting import DEADLINE_SECONDS


class Watch:
    """A clock that does not advance by itself."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.epoch_ms = 0

    def monotonic_seconds(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return self.epoch_ms

    def local_hour(self, now_ms: int) -> int:
        return 0


class SlowDisk(Disk):
    """Writes wait until the test releases them; a write to a closed file is recorded.

    Attributes:
        held: if set, writes wait.
        writing: set while a write waits.
        room_bytes: free space of a disk of twice this size.
    """

    def __init__(self) -> None:
        self.held = threading.Event()
        self.let_on = threading.Event()
        self.writing = threading.Event()
        self.synced: list[int] = []
        self.open_fds: set[int] = set()
        self.room_bytes = 1 << 40

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self.open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_fds.remove(fd)
        super().close(fd)

    def pwrite(self, fd: int, data: object, position: int) -> int:
        if self.held.is_set():
            self.writing.set()
            assert self.let_on.wait(DEADLINE_SECONDS)
        assert fd in self.open_fds
        return super().pwrite(fd, data, position)  # type: ignore[arg-type]

    def fdatasync(self, fd: int) -> None:
        self.synced.append(fd)
        super().fdatasync(fd)

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage((1 << 41) - self.room_bytes, self.room_bytes)


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.close()


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def uploads(tmp_path: Path, disk: SlowDisk, watch: Watch, threads: Threads) -> Uploads:
    return Uploads(tmp_path / "compacted", disk, watch, threads, used_percent_max=90)


async def pieces(*each: bytes) -> AsyncIterator[bytes]:
    for piece in each:
        yield piece


class Sender:
    """Sends pieces of a file when the test requests it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.waits = asyncio.Event()

    def send(self, piece: bytes | None) -> None:
        self.waits.clear()
        self._queue.put_nowait(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            if self._queue.empty():
                self.waits.set()
            piece = await self._queue.get()
            if piece is None:
                return
            yield piece


async def refused(uploads: Uploads, name: str, sender: Sender) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as refusal:
        await uploads.put("job-1", name, aiter(sender))
    return refusal.value


def files_of(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


async def test_a_file_is_there_whole_and_synced_under_its_name(
    uploads: Uploads, disk: SlowDisk
) -> None:
    stored = await uploads.put("job-1", "00000.records", pieces(b"one", b"", b"two"))
    assert stored.file_bytes == 6
    assert stored.sha256 == hashlib.sha256(b"onetwo").digest()
    assert len(disk.synced) == 1
    await uploads.put("job-1", "00000.entries", pieces())
    directory = uploads.end("job-1")
    assert directory is not None
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        "00000.records": b"onetwo",
        "00000.entries": b"",
    }


async def test_a_file_that_is_sent_again_replaces_the_one_before(uploads: Uploads) -> None:
    await uploads.put("job-1", "00000.records", pieces(b"first"))
    await uploads.put("job-1", "00000.records", pieces(b"second"))
    directory = uploads.end("job-1")
    assert directory is not None
    assert (directory / "00000.records").read_bytes() == b"second"


@pytest.mark.parametrize(
    ("upload_id", "name"),
    [
        ("", "00000.records"),
        ("../job", "00000.records"),
        ("job_1", "00000.records"),
        ("_partial", "00000.records"),
        ("x" * 65, "00000.records"),
        ("job\n", "00000.records"),
        ("job", ""),
        ("job", "manifest.json"),
        ("job", "current"),
        ("job", "../00000.records"),
        ("job", "/00000.records"),
        ("job", "00000.records/"),
        ("job", "0000.records"),
        ("job", "000000.records"),
        ("job", "00000.records\n"),
        ("job", "\u0660\u0660\u0660\u0660\u0660.records"),
        ("job", "00000.recordsx"),
    ],
)
async def test_no_name_leads_elsewhere(
    tmp_path: Path, uploads: Uploads, upload_id: str, name: str
) -> None:
    with pytest.raises(InvalidArgument):
        await uploads.put(upload_id, name, pieces(b"x"))
    assert files_of(tmp_path) == set()
    assert len(uploads) == 0


async def test_a_sender_that_goes_away_during_a_write_leaves_nothing_behind(
    tmp_path: Path, uploads: Uploads, disk: SlowDisk
) -> None:
    disk.held.set()
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(uploads.put("job-1", "00000.records", pieces(b"x")))
        await asyncio.to_thread(disk.writing.wait, 20)
        sending.cancel()
    assert disk.open_fds, "the thread is writing still"
    disk.let_on.set()
    await uploads.remove_abandoned()
    assert disk.open_fds == set()
    assert files_of(tmp_path) == set()
    assert len(uploads) == 1, "its other files may come yet"


async def test_nothing_is_added_to_an_upload_that_was_taken(
    tmp_path: Path, uploads: Uploads, disk: SlowDisk
) -> None:
    """A late task's file is about to begin, is in transfer, or is about to get its name."""
    going_on, ending = Sender(), Sender()
    async with asyncio.TaskGroup() as tasks:
        late = [
            tasks.create_task(refused(uploads, f"0000{number}.records", sender))
            for number, sender in enumerate((going_on, ending))
        ]
        for sender in (going_on, ending):
            await sender.waits.wait()
        directory = uploads.end("job-1")
        assert directory is not None
        going_on.send(b"more")
        ending.send(None)
    for each in late:
        assert "has already been published or discarded" in str(each.result())
    with pytest.raises(InvalidArgument, match="has already been published or discarded"):
        await uploads.put("job-1", "00002.records", pieces(b"x"))
    await uploads.remove_abandoned()
    assert files_of(tmp_path) == set()


async def test_an_upload_that_somebody_removed_does_not_keep_its_place(
    tmp_path: Path, uploads: Uploads
) -> None:
    await uploads.put("job-1", "00000.records", pieces(b"x"))
    shutil.rmtree(tmp_path / "compacted" / ".incoming-job-1")
    assert uploads.end("job-1") is None
    assert len(uploads) == 0
    with pytest.raises(InvalidArgument, match="has already been published or discarded"):
        await uploads.put("job-1", "00001.records", pieces(b"x"))


async def test_too_many_at_once_are_told_to_come_later(uploads: Uploads) -> None:
    senders = [Sender() for _ in range(FILES_AT_ONCE_MAX)]
    async with asyncio.TaskGroup() as tasks:
        for number, sender in enumerate(senders):
            tasks.create_task(uploads.put("job-0", f"{number:05d}.records", aiter(sender)))
        for sender in senders:
            await sender.waits.wait()
        with pytest.raises(Busy, match=f"{FILES_AT_ONCE_MAX} files"):
            await uploads.put("job-0", "00099.records", pieces(b"x"))
        for sender in senders:
            sender.send(None)
    for number in range(1, UPLOADS_MAX):
        await uploads.put(f"job-{number}", "00000.records", pieces(b"x"))
    with pytest.raises(Busy, match=f"{UPLOADS_MAX} generations"):
        await uploads.put("another", "00000.records", pieces(b"x"))
    assert uploads.end("job-0") is not None
    await uploads.put("another", "00000.records", pieces(b"x"))


async def test_a_disk_without_room_takes_no_file(
    tmp_path: Path, uploads: Uploads, disk: SlowDisk
) -> None:
    await uploads.put("job-1", "00000.records", pieces(b"x"))
    disk.room_bytes = 1 << 37
    with pytest.raises(StoreNotWritable, match="may be 90 % full, and 137438953472 bytes are free"):
        await uploads.put("job-1", "00001.records", pieces(b"x"))
    await uploads.remove_abandoned()
    assert files_of(tmp_path) == {"00000.records"}


async def test_a_piece_that_is_too_large_is_refused(uploads: Uploads) -> None:
    with pytest.raises(InvalidArgument, match="larger than"):
        await uploads.put("job-1", "00000.records", pieces(bytes(CHUNK_BYTES_MAX + 1)))
    stored = await uploads.put("job-1", "00000.records", pieces(bytes(CHUNK_BYTES_MAX)))
    assert stored.file_bytes == CHUNK_BYTES_MAX


async def test_an_upload_that_is_left_alone_is_idle_after_an_hour(
    uploads: Uploads, watch: Watch
) -> None:
    sender = Sender()
    await uploads.put("left", "00000.records", pieces(b"x"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(uploads.put("busy", "00000.records", aiter(sender)))
        await sender.waits.wait()
        watch.seconds = IDLE_SECONDS_MAX
        assert uploads.idle() == []
        watch.seconds += 1
        assert uploads.idle() == ["left"], "a file is coming in for the other"
        sender.send(None)
    assert uploads.idle() == ["left"]


async def test_after_a_restart_an_upload_is_as_old_as_its_last_file(
    uploads: Uploads, disk: SlowDisk, watch: Watch, threads: Threads, tmp_path: Path
) -> None:
    home = tmp_path / "compacted"
    for upload_id in ("old", "new"):
        await uploads.put(upload_id, "00000.records", pieces(upload_id.encode()))
    os.utime(home / ".incoming-old", (1_000, 1_000))
    os.utime(home / ".incoming-new", (4_000, 4_000))
    watch.epoch_ms = round((1_000 + IDLE_SECONDS_MAX + 1) * 1000)
    after = Uploads(home, disk, watch, threads, used_percent_max=90)
    assert (len(after), after.idle()) == (2, ["old"])
    await after.put("new", "00000.entries", pieces(b"entries"))
    taken = after.end("new")
    assert taken is not None
    assert files_of(taken) == {"00000.records", "00000.entries"}


async def test_an_upload_nobody_has_begun_is_taken_as_an_empty_directory(uploads: Uploads) -> None:
    assert uploads.end("none") is None
    directory = uploads.end_or_create("none")
    assert list(directory.iterdir()) == []
