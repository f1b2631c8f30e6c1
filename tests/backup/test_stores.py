"""Stores of brokers after a restore: facts that are not in the log are restored too."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from rockoon.backup.copying import READ_BYTES, LogCopier, Pace, SourceLog
from rockoon.backup.destination import PARTIAL_SUFFIX, BackupError, DirectoryDestination
from rockoon.backup.manifest import BackupFile, BackupManifest, LogBackup, LogPart
from rockoon.backup.restoring import Restore, RestoreSources
from rockoon.errors import InvalidOffset, LogTrimmed, NotLeader
from rockoon.net.connection import Connection
from rockoon_broker.rpc.service import BrokerService
from rockoon_broker.store.store import Store
from rockoon_proto.v1.broker_pb2 import DescribeCompactionReply, ReadLogReply, ReadLogRequest
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.compacted_store import CompactedStore
from support.holding_disk import HoldingDisk
from support.nameserver import running_nameserver
from support.store_directory import DELETES_ALL, settings
from support.waiting import DEADLINE_SECONDS

NOTHING = BackupFile("none", 0, "")
# As those of `settings`.
FILE_BYTES = 4096
FILLED = 3000


class OfBroker(SourceLog):
    """The log of a broker in this process, whose topics are in no route."""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__(cast(Connection, None), "broker-a")
        self.broker = broker
        self.read_bytes = 0

    async def call(self, method: str, request: Any) -> Any:
        reply = await self.broker.call(method, request, DEADLINE_SECONDS)
        self.read_bytes += len(reply.frames) if isinstance(reply, ReadLogReply) else 0
        return reply


@asynccontextmanager
async def source_of(root: Path) -> AsyncIterator[OfBroker]:
    async with (
        running_nameserver(etcd=(), routes_path=root.parent / "routes.db") as nameserver,
        running_broker(
            root,
            [nameserver.address],
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_entries=10,
        ) as broker,
    ):
        yield OfBroker(broker)


async def copied(
    source: OfBroker,
    place: DirectoryDestination,
    *known: LogBackup,
    backup: str = "b",
    interrupted: list[LogPart] | None = None,
) -> LogBackup:
    """Copy a log.

    Args:
        known: of former backups.
        interrupted: parts of an interrupted backup; replaced by those of this one.
    """
    listed = [] if interrupted is None else interrupted
    former = [[*listed], *(each.parts for each in known)]

    def on_parts(_log: str, parts: Sequence[LogPart]) -> None:
        listed[:] = parts

    copier = LogCopier(source, place, backup, Pace(0), on_parts)
    await copier.cut()
    found = await copier.copy(former, place.names())
    assert listed == list(found.parts)
    return found


def restored(place: DirectoryDestination, log: LogBackup, target: Path) -> Path:
    manifest = BackupManifest(
        "b", "rockoon", 1, "0", 0, 0, NOTHING, 0, "offset", NOTHING, 0, 1, [log]
    )
    Restore(place, RestoreSources(manifest, manifest, manifest), target).run(["broker-a"])
    return target / "broker-a"


def ends_of(store: Store) -> Mapping[tuple[str, int], tuple[int, int]]:
    return {
        (topic, queue_id): (store.min_offset(topic, queue_id), end)
        for topic, ends in store.queue_ends().items()
        for queue_id, end in ends.items()
    }


async def test_emptied_queues_deleted_topics_and_generations_come_back(tmp_path: Path) -> None:
    root, place = tmp_path / "store", DirectoryDestination(tmp_path / "backups")
    kept = CompactedStore(settings(root, **DELETES_ALL), ("C",))
    kept.send("T", 1, [(None, b"gone")] * 5)
    kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("a", b"3")])
    kept.compact()
    for number in range(4):
        kept.send("U", 0, [(None, b"%d" % number + bytes(FILLED))])
    kept.owner.write_point()
    kept.store.clean(kept.owner.clock.time_ms)
    kept.owner.wait_for_removals()
    assert kept.store.log_min_offset > 0
    kept.send("X", 0, [(None, b"of the former topic")] * 3)
    kept.store.drop_topics("X")
    kept.send("X", 0, [(None, b"of the new topic")])
    kept.send("C", 0, [("b", b"4")])
    before, compacted = ends_of(kept.store), kept.read("C", 0)
    assert before["T", 1] == (5, 5)
    kept.close()
    async with source_of(root) as source:
        log = await copied(source, place)
    again = CompactedStore(settings(restored(place, log, tmp_path / "new"), **DELETES_ALL), ("C",))
    try:
        assert ends_of(again.store) == before
        assert again.read("C", 0) == compacted == [(1, b"2"), (2, b"3"), (3, b"4")]
        assert again.read("X", 0) == [(0, b"of the new topic")]
        (sent,) = again.send("T", 1, [(None, b"next")])
        assert sent.offset == 5
    finally:
        again.close()


async def test_a_later_backup_reads_only_new_records_unless_the_log_is_another_one(
    tmp_path: Path,
) -> None:
    root, place = tmp_path / "store", DirectoryDestination(tmp_path / "backups")

    filled(root, b"1", b"2", b"3")
    async with source_of(root) as source:
        first = await copied(source, place)
    filled(root, b"4")
    async with source_of(root) as source:
        second = await copied(source, place, first)
        assert second.parts[:3] == first.parts
        assert source.read_bytes < 3 * FILLED
        # A part that is missing in the destination is copied again.
        place.remove(first.parts[1].file.name)
        third = await copied(source, place, second, first)
        assert third.parts[0] == first.parts[0]
        assert {each.file for each in third.parts[1:]}.isdisjoint(
            each.file for each in second.parts
        )
    # The broker has lost its disk, and its log has begun again.
    other = tmp_path / "other"
    filled(other, b"5", b"6", b"7", b"8")
    (tmp_path / "routes.db").unlink()
    async with source_of(other) as source:
        fourth = await copied(source, place, third)
    assert {each.file for each in fourth.parts}.isdisjoint(each.file for each in third.parts)
    for number, log in enumerate((third, fourth)):
        again = CompactedStore(settings(restored(place, log, tmp_path / f"new-{number}")), ())
        assert b"".join(body[:1] for _, body in again.read("T", 0)) == (b"1234", b"5678")[number]
        again.close()


def filled(root: Path, *bodies: bytes) -> None:
    """Make a store with one message in each file."""
    kept = CompactedStore(settings(root), ())
    for body in bodies:
        kept.send("T", 0, [(None, body + bytes(FILLED))])
    kept.close()


class Trimming(OfBroker):
    """A log whose first files are deleted after some reads."""

    async def read(self, position: int, end: int, bytes_max: int = READ_BYTES) -> ReadLogReply:
        if position < 3 * FILE_BYTES and self.read_bytes > FILLED:
            raise LogTrimmed(position=position, broker=self.name, log_min_offset=3 * FILE_BYTES)
        return await super().read(position, end, bytes_max)


async def test_a_log_begins_later_if_retention_is_faster_than_the_copy(tmp_path: Path) -> None:
    root, place = tmp_path / "store", DirectoryDestination(tmp_path / "backups")
    filled(root, b"1", b"2", b"3", b"4", b"5")
    async with source_of(root) as source:
        log = await copied(Trimming(source.broker), place)
    assert log.begin == log.parts[0].start == 3 * FILE_BYTES
    again = CompactedStore(settings(restored(place, log, tmp_path / "new")), ())
    assert [(at, body[:1]) for at, body in again.read("T", 0, 3)] == [(3, b"4"), (4, b"5")]
    assert ends_of(again.store) == {("T", 0): (3, 5)}
    again.close()


class Replaced(OfBroker):
    """A log that another log of the same name replaces: the broker lost its disk.

    Args:
        broker: the former broker.
        other: the broker with the other log.
        after: method; the other log answers after its calls.
        calls: number of calls of `after`.
    """

    def __init__(self, broker: RunningBroker, other: RunningBroker, after: str, calls: int) -> None:
        super().__init__(broker)
        self._other = other
        self._after = after
        self._calls = calls

    async def ends(self) -> ReadLogReply:
        reply = await super().ends()
        self._replace("ends")
        return reply

    async def read(self, position: int, end: int, bytes_max: int = READ_BYTES) -> ReadLogReply:
        reply = await super().read(position, end, bytes_max)
        self._replace("read")
        return reply

    def _replace(self, call: str) -> None:
        self._calls -= call == self._after
        if not self._calls:
            self.broker = self._other


@pytest.mark.parametrize(
    ("bodies", "after", "calls", "message"),
    [
        ((b"4",), "read", 1, "it has lost records during the backup"),
        ((b"4", b"5", b"6", b"7"), "read", 1, "another log has replaced the log of broker-a"),
        # The first call reads the ends of the queues at the cut.
        ((b"4", b"5", b"6", b"7"), "ends", 2, "another log has replaced the log of broker-a"),
    ],
)
async def test_a_log_that_is_replaced_during_the_copy_ends_the_backup(
    tmp_path: Path, bodies: Sequence[bytes], after: str, calls: int, message: str
) -> None:
    place = DirectoryDestination(tmp_path / "backups")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    filled(tmp_path / "a" / "store", b"1", b"2", b"3")
    filled(tmp_path / "b" / "store", *bodies)
    async with (
        source_of(tmp_path / "a" / "store") as source,
        source_of(tmp_path / "b" / "store") as other,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        listed: list[LogPart] = []
        replaced = Replaced(source.broker, other.broker, after, calls)
        with pytest.raises(BackupError, match=message):
            await copied(replaced, place, interrupted=listed)
        assert not [name for name in place.names() if name.endswith(PARTIAL_SUFFIX)]
        # The next backup has no part of the former log.
        log = await copied(other, place, interrupted=listed)
    new = CompactedStore(settings(restored(place, log, tmp_path / "new")), ())
    assert [body[:1] for _, body in new.read("T", 0)] == [*bodies]
    new.close()


class NewLeader(OfBroker):
    """A log whose leader changes, and whose new leader has not synced the last records at first.

    Args:
        broker: the leaders.
        calls: calls about the records before the cut that the former leader answers.
    """

    def __init__(self, broker: RunningBroker, calls: int) -> None:
        super().__init__(broker)
        self._calls = calls
        self.unsynced = 2

    async def described(self, log_end: int = 0) -> DescribeCompactionReply:
        self._calls -= bool(log_end)
        if self._calls < 0 and self.unsynced:
            raise InvalidOffset(offset=log_end)
        return await super().described(log_end)

    async def ends(self) -> ReadLogReply:
        reply = await super().ends()
        if self._calls < 0 and self.unsynced:
            self.unsynced -= 1
            reply.durable_end = 0
        return reply


# During the cut; after the first and the last file.
@pytest.mark.parametrize("calls", [0, 1, 3])
async def test_a_new_leader_that_has_not_synced_the_cut_yet_has_the_same_log(
    tmp_path: Path, calls: int
) -> None:
    root, place = tmp_path / "store", DirectoryDestination(tmp_path / "backups")
    filled(root, b"1", b"2", b"3")
    async with source_of(root) as source, asyncio.timeout(DEADLINE_SECONDS):
        changing = NewLeader(source.broker, calls)
        log = await copied(changing, place)
    assert not changing.unsynced
    assert len(log.parts) == 3


class Deleting(OfBroker):
    """A log that loses a topic before each call, until `is_over`."""

    is_over = False
    deleted = 0

    async def described(self, log_end: int = 0) -> DescribeCompactionReply:
        reply = await super().described(log_end)
        self.deleted += not self.is_over
        reply.dropped.add(topic="X", dropped_below=self.deleted)
        return reply


async def test_a_cut_waits_until_changes_of_the_log_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, place = tmp_path / "store", DirectoryDestination(tmp_path / "backups")
    filled(root, b"1")
    async with source_of(root) as source, asyncio.timeout(DEADLINE_SECONDS):
        deleting = Deleting(source.broker)
        asyncio.get_running_loop().call_later(0.5, setattr, deleting, "is_over", True)
        assert (await copied(deleting, place)).parts
        monkeypatch.setattr("rockoon.backup.copying.CUT_PAUSE_SECONDS", 0.0)
        with pytest.raises(BackupError, match=r"in each of 5 attempts.*by deletions of topics"):
            await copied(Deleting(source.broker), place)


class Compacting(OfBroker):
    """A log that is compacted, and whose oldest files are deleted, between the first two calls.

    Args:
        before: the broker before that.
        after: the broker after that.
    """

    def __init__(self, before: RunningBroker, after: RunningBroker) -> None:
        super().__init__(before)
        self._before = before
        self._after = after

    async def call(self, method: str, request: Any) -> Any:
        if method == "ReadGeneration" and request.generation == 1:
            # A broker keeps a replaced generation for some minutes.
            return await self._before.call(method, request, DEADLINE_SECONDS)
        reply = await super().call(method, request)
        self.broker = self._after
        return reply


def compacted_during_the_backup(root: Path, *, is_first: bool) -> tuple[Path, Path]:
    """Make a store; return it with its copy after a compaction and retention.

    Args:
        is_first: the store had no compaction before.
    """
    before, after = (root / each / "store" for each in ("a", "b"))
    before.parent.mkdir()
    kept = CompactedStore(settings(before, **DELETES_ALL), ("C",))
    kept.send("C", 0, [("a", b"1"), ("b", b"2")])
    if not is_first:
        kept.compact()
    kept.send("C", 0, [("a", b"3")])
    for _ in range(3):
        kept.send("U", 0, [(None, bytes(FILLED))])
    kept.owner.write_point()
    kept.close()
    shutil.copytree(before.parent, after.parent)
    again = CompactedStore(settings(after, **DELETES_ALL), ("C",))
    again.compact()
    again.owner.write_point()
    again.store.clean(again.owner.clock.time_ms)
    again.owner.wait_for_removals()
    assert again.store.log_min_offset > 0
    again.close()
    return before, after


async def test_the_generation_of_a_backup_has_all_messages_before_its_log(tmp_path: Path) -> None:
    place = DirectoryDestination(tmp_path / "backups")
    before, after = compacted_during_the_backup(tmp_path, is_first=False)
    async with source_of(before) as first, source_of(after) as second:
        log = await copied(Compacting(first.broker, second.broker), place)
    new = CompactedStore(settings(restored(place, log, tmp_path / "new"), **DELETES_ALL), ("C",))
    assert new.read("C", 0) == [(1, b"2"), (2, b"3")]
    new.close()
    for number, file in enumerate(log.generation_files.values()):
        path = tmp_path / "backups" / file.name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(BackupError, match=f"{file.name} is damaged"):
            restored(place, log, tmp_path / f"damaged-{number}")
        path.write_bytes(content)


async def test_a_first_compaction_during_the_copy_loses_no_message(tmp_path: Path) -> None:
    place = DirectoryDestination(tmp_path / "backups")
    before, after = compacted_during_the_backup(tmp_path, is_first=True)
    async with source_of(before) as first, source_of(after) as second:
        # The calls of the cut, and the wait for its durability, precede the compaction.
        overtaken = Replaced(first.broker, second.broker, "ends", 2)
        with pytest.raises(BackupError, match="retention has deleted compacted messages"):
            await copied(overtaken, place)
        log = await copied(second, place)
    new = CompactedStore(settings(restored(place, log, tmp_path / "new"), **DELETES_ALL), ("C",))
    assert new.read("C", 0) == [(1, b"2"), (2, b"3")]
    new.close()


class Unsynced(OfBroker):
    """The log of a broker with `flush = async` that cannot sync until the copy waits for it."""

    def __init__(self, broker: RunningBroker, disk: HoldingDisk) -> None:
        super().__init__(broker)
        self._disk = disk
        self.unsynced = 0

    async def ends(self) -> ReadLogReply:
        reply = await super().ends()
        self.unsynced += reply.durable_end < reply.visible_end
        # The first call is the cut, and the second one is the first check.
        if self.unsynced == 2:
            self._disk.release()
        return reply

    async def read(self, position: int, end: int, bytes_max: int = READ_BYTES) -> ReadLogReply:
        reply = await super().read(position, end, bytes_max)
        assert reply.durable_end >= end, "it was read before it was synced"
        return reply


async def test_records_are_copied_once_the_broker_has_synced_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, disk = DirectoryDestination(tmp_path / "backups"), HoldingDisk()
    async with BrokerRoutes() as nameserver, AsyncExitStack() as stack:
        await nameserver.create_topic("T", {"broker-a": 1})
        lazy = {"flush": "async", "flush_interval_ms": 1, "commit_log_file_bytes": FILE_BYTES}
        running = running_broker(tmp_path / "store", [nameserver.address], disk=disk, **lazy)
        broker = await stack.enter_async_context(running)
        disk.hold()
        try:
            await broker.append("T", 0, b"1")
            with monkeypatch.context() as patched:
                patched.setattr("rockoon.backup.copying.DURABLE_SECONDS_MAX", 0.0)
                source = OfBroker(broker)
                with pytest.raises(BackupError, match="broker-a has not synced its log"):
                    await copied(source, place)
                assert not source.read_bytes
            unsynced = Unsynced(broker, disk)
            log = await copied(unsynced, place)
        finally:
            disk.release()
    assert unsynced.unsynced == 2
    again = CompactedStore(settings(restored(place, log, tmp_path / "new")), ())
    assert again.read("T", 0) == [(0, b"1")]
    again.close()


async def test_a_damaged_log_is_not_backed_up(tmp_path: Path) -> None:
    root, place = tmp_path / "store", DirectoryDestination(tmp_path / "backups")
    filled(root, b"1", b"2", b"3")
    file = root / "commitlog" / f"{FILE_BYTES:020d}"
    content = bytearray(file.read_bytes())
    content[FILLED // 2] ^= 1
    file.write_bytes(content)
    async with source_of(root) as source:
        with pytest.raises(BackupError, match=f"the log of broker-a is damaged at {FILE_BYTES}"):
            await copied(source, place)


async def test_the_ends_of_queues_are_reported_on_request_only(tmp_path: Path) -> None:
    kept = CompactedStore(settings(tmp_path / "store"), ())
    kept.send("T", 0, [(None, b"1")])
    kept.send("T", 2, [(None, b"1")] * 2)
    kept.close()
    async with source_of(tmp_path / "store") as source:
        (found,) = (await source.ends()).queue_ends
        assert (found.topic, list(found.queue_ids), list(found.end_offsets)) == (
            "T",
            [0, 2],
            [1, 2],
        )
        assert not (await source.call("ReadLog", ReadLogRequest())).queue_ends
        # A caller with `read` on one topic gets no names of other topics.
        of_other = ReadLogRequest(topics=["U"], with_queue_ends=True)
        assert not (await source.call("ReadLog", of_other)).queue_ends


async def test_a_deposed_leader_makes_no_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = BrokerService.serve

    async def confirmed() -> None:
        raise NotLeader(replica="broker-a-0", log="broker-a")

    monkeypatch.setattr(
        BrokerService, "serve", lambda service, broker: serve(service, broker, confirmed)
    )
    filled(tmp_path / "store", b"1")
    async with source_of(tmp_path / "store") as source:
        # Its end may be older than progress that the offset service has.
        with pytest.raises(NotLeader):
            await source.ends()
        # Committed records are the same at all leaders.
        assert (await source.read(0, FILE_BYTES)).frames
