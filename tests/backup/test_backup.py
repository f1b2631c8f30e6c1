"""A backup is made under load; the cluster is destroyed, and restored in new directories."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
from backup.workload import GROUP, SMALL_FILES, TOPIC, Work, check_restored, destroy, restored

import rockoon
from rockoon.backup.copying import Pace
from rockoon.backup.creation import Creation, create
from rockoon.backup.destination import ArrowDestination, BackupError, Destination
from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import (
    FORMAT,
    MANIFEST,
    BackupFile,
    BackupManifest,
    Backups,
    sealed,
    unsealed,
)
from rockoon.backup.restoring import Restore, RestoreReport, RestoreSources, faults
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.receiving.received import ReceivedMessage
from rockoon.transactions.transaction import Resolution
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS


def backups_in(place: Destination) -> Backups:
    return Backups(place, place.names())


async def restore(
    place: Destination,
    target: Path,
    logs: BackupManifest,
    progress: BackupManifest | None = None,
    routes: BackupManifest | None = None,
) -> RestoreReport:
    """Restore in a thread, because a restore runs an event loop."""
    sources = RestoreSources(logs, progress or logs, routes or logs)
    return await asyncio.to_thread(Restore(place, sources, target).run)


async def test_a_destroyed_cluster_is_restored_up_to_the_cut(tmp_path: Path) -> None:
    old, place, new = tmp_path / "old", Directory(tmp_path / "backups"), tmp_path / "new"
    work = Work()
    async with (
        LocalCluster(old, settings=SMALL_FILES) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        async with work.running(cluster):
            await work.sent(500)
            first = await create(cluster, place)
            before = len(work.acknowledged)
            await work.sent(500)
            manifest = await create(cluster, place)
            await work.sent(100)
        destroy(local, old)
    # The second backup has copied the new records only.
    shared = {each.name for each in first.files()} & {each.name for each in manifest.files()}
    assert {part.file.name for part in first.log("broker-a").parts} <= shared
    assert len(work.before_cut(manifest)) >= before
    assert backups_in(place).complete == [first.backup, manifest.backup]
    assert not list(faults(place, manifest))
    report = await restore(place, new, manifest)
    assert {each.group for each in report.groups} == {GROUP}
    assert not any(each.has_gap for each in report.groups)
    async with restored(new) as local, rockoon.connect(local.nameservers) as cluster:
        await check_restored(cluster, work, manifest)
        # The group reads on: unread and new messages.
        after = Work()
        async with after.running(cluster, first=10):
            await after.sent(50)
            await after.caught_up()
        lag = await cluster.admin.lag(GROUP)
        assert lag.complete
        assert work.handled | after.handled >= work.before_cut(manifest).keys()


class SlowCreation(Creation):
    """Makes a backup of a cluster that works on between its steps.

    Attributes:
        works_on: waits until the cluster has stored more messages and offsets.
    """

    works_on: Callable[[], Awaitable[None]]

    async def _copy_progress(self) -> tuple[BackupFile, str]:
        await self.works_on()
        found = await super()._copy_progress()
        await self.works_on()
        return found


async def test_progress_is_never_beyond_the_cut_of_the_log(tmp_path: Path) -> None:
    place = Directory(tmp_path / "backups")
    async with (
        LocalCluster(single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.producer() as producer,
        cluster.pull_consumer(GROUP, consume_from="first") as consumer,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        (queue,) = (await cluster.route(TOPIC)).queues
        await consumer.assign([queue])

        async def works_on() -> None:
            result = await producer.send(TOPIC, b"x")
            await consumer.commit(queue, result.queue_offset + 1)

        making = SlowCreation(cluster, place, Pace(0), lambda _: None)
        making.works_on = works_on
        making.begin()
        manifest = await making.run(())
    report = await restore(place, tmp_path / "new", manifest)
    assert [(each.before, each.offset, each.end) for each in report.groups] == [(1, 1, 2)]


async def test_progress_of_a_later_backup_ends_where_the_restored_log_ends(tmp_path: Path) -> None:
    old, place, new = tmp_path / "old", Directory(tmp_path / "backups"), tmp_path / "new"
    work = Work()
    async with (
        LocalCluster(old, settings=SMALL_FILES, single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        async with work.running(cluster):
            await work.sent(100)
            early = await create(cluster, place)
            await cluster.admin.create_topic("later", queues_per_broker=1)
            await work.sent(200)
            await work.caught_up()
        late = await create(cluster, place)
        destroy(local, old)
    report = await restore(place, new, early, late, late)
    gaps = [each for each in report.groups if each.before > each.offset]
    assert gaps
    assert all(each.offset == each.end for each in gaps)
    async with restored(new) as local, rockoon.connect(local.nameservers) as cluster:
        await check_restored(cluster, work, early)
        stories = {each.queue.queue_id: each for each in await cluster.admin.why(GROUP, TOPIC)}
        for gap in gaps:
            progress = stories[gap.queue_id].progress
            assert progress is not None
            assert f"{gap.before - gap.offset} messages are lost" in progress.start_explanation
        # Routes are those of the later backup.
        assert (await cluster.route("later")).queues


async def test_routes_and_progress_of_an_earlier_backup_lose_no_message(tmp_path: Path) -> None:
    old, place, new = tmp_path / "old", Directory(tmp_path / "backups"), tmp_path / "new"
    work = Work()
    async with (
        LocalCluster(old, settings=SMALL_FILES, single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        async with work.running(cluster):
            await work.sent(100)
            early = await create(cluster, place)
            await work.sent(100)
            await cluster.admin.create_topic("later", queues_per_broker=1)
            async with cluster.producer() as producer:
                await producer.send("later", b"kept")
            late = await create(cluster, place)
        destroy(local, old)
    await restore(place, new, late, early, early)
    async with restored(new) as local, rockoon.connect(local.nameservers) as cluster:
        await check_restored(cluster, work, late)
        for story in await cluster.admin.why(GROUP, TOPIC):
            assert story.progress is not None
            assert "are delivered again" in story.progress.start_explanation
        # The topic is missing in the routes; its messages are there once it is created again.
        await cluster.admin.create_topic("later", queues_per_broker=1)
        async with cluster.pull_consumer() as consumer:
            await consumer.assign((await cluster.route("later")).queues)
            await consumer.seek_to_beginning()
            assert [bytes(each.body) for each in await consumer.poll(timeout=20)] == [b"kept"]


async def unsure(_message: Message) -> Resolution:
    return Resolution.UNKNOWN


async def test_pending_messages_and_acknowledgements_of_single_messages_are_restored(
    tmp_path: Path,
) -> None:
    old, place, new = tmp_path / "old", Directory(tmp_path / "backups"), tmp_path / "new"
    async with (
        LocalCluster(old, single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        async with (
            cluster.producer() as producer,
            cluster.transactional_producer("payers", check=unsure) as payer,
            cluster.simple_consumer("receivers", {TOPIC: "*"}, consume_from="first") as consumer,
        ):
            await producer.send(TOPIC, b"delayed", delay_seconds=3600)
            await payer.begin(TOPIC, b"half")
            for number in range(5):
                await producer.send(TOPIC, b"%d" % number)
            received: list[ReceivedMessage] = []
            while len(received) < 5:
                received += await consumer.receive(5, visible_after=1)
            # Of these, the first one is not acknowledged.
            await consumer.ack(received[1:])
            pending = await cluster.admin.delayed.list()
            manifest = await create(cluster, place)
        destroy(local, old)
    await restore(place, new, manifest)
    async with restored(new) as local, rockoon.connect(local.nameservers) as cluster:
        (delayed,) = (await cluster.admin.delayed.list()).messages
        assert delayed.offset_message_id == pending.messages[0].offset_message_id
        (transactions,) = await cluster.admin.transactions()
        assert transactions.reply is not None
        assert len(transactions.reply.transactions) == 1
        async with cluster.simple_consumer("receivers", {TOPIC: "*"}) as consumer:
            (again,) = await consumer.receive(5, wait=DEADLINE_SECONDS)
            assert (bytes(again.body), again.attempt) == (b"0", 2)
            await consumer.ack(again)
        assert (await cluster.admin.lag("receivers")).total_lag == 0


HARMS = ("flipped bit", "truncated", "missing")


def harm(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "missing":
        path.unlink()
        return
    if kind == "truncated":
        del content[-1]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", HARMS)
def test_damage_of_any_file_is_found_and_not_restored(
    copied: tuple[Directory, BackupManifest], tmp_path: Path, kind: str
) -> None:
    place, manifest = copied
    for number, file in enumerate(manifest.files()):
        path = tmp_path / "backups" / file.name
        intact = path.read_bytes()
        harm(path, kind)
        (found,) = faults(place, manifest)
        assert file.name in found
        target = tmp_path / f"target-{number}"
        with pytest.raises(BackupError, match=os.path.basename(file.name)):
            Restore(place, RestoreSources(manifest, manifest, manifest), target).run()
        assert not (target / "routes").exists()
        path.write_bytes(intact)
    assert not list(faults(place, manifest))


@pytest.mark.parametrize("seed", seeds(2))
def test_a_changed_byte_anywhere_is_found(
    copied: tuple[Directory, BackupManifest], tmp_path: Path, seed: int
) -> None:
    place, manifest = copied
    chance = random.Random(seed)
    names = [f"{manifest.backup}/{MANIFEST}", *(each.name for each in manifest.files())]
    for _ in range(60):
        name = chance.choice(names)
        path = tmp_path / "backups" / name
        intact = path.read_bytes()
        content = bytearray(intact)
        position = chance.choice((0, chance.randrange(len(content)), len(content) - 1))
        content[position] ^= chance.randrange(1, 256)
        path.write_bytes(content)
        try:
            found = list(faults(place, backups_in(place).manifest()))
        except BackupError as failure:
            found = [str(failure)]
        assert [name in each for each in found] == [True], f"byte {position} of {name}"
        path.write_bytes(intact)
    assert not list(faults(place, backups_in(place).manifest()))


@pytest.mark.parametrize("kind", HARMS)
def test_a_backup_with_a_damaged_manifest_is_not_used(
    copied: tuple[Directory, BackupManifest], tmp_path: Path, kind: str
) -> None:
    place, manifest = copied
    harm(tmp_path / "backups" / manifest.backup / MANIFEST, kind)
    with pytest.raises(BackupError, match="no complete backup" if kind == "missing" else "damaged"):
        backups_in(place).manifest()


def test_a_newer_format_is_refused_by_name(
    copied: tuple[Directory, BackupManifest],
) -> None:
    place, manifest = copied
    name = f"{manifest.backup}/{MANIFEST}"
    content = unsealed(place.content(name), "")
    place.write(name, sealed(content | {"format": FORMAT + 1, "version": "9.9"}))
    with pytest.raises(BackupError, match=f"has format {FORMAT + 1}.*9.9"):
        backups_in(place).manifest()


def test_a_restore_needs_a_new_directory(
    copied: tuple[Directory, BackupManifest], tmp_path: Path
) -> None:
    place, manifest = copied
    target = tmp_path / "target"
    sources = RestoreSources(manifest, manifest, manifest)
    (target / "broker-a").mkdir(parents=True)
    (target / "offset").mkdir()
    (target / "offset" / "journal").touch()
    with pytest.raises(BackupError, match="offset exists: restore into a new directory"):
        Restore(place, sources, target).run()
    assert [path.name for path in (target / "broker-a").iterdir()] == []
    # An empty directory is replaced.
    Restore(place, sources, target).run(["broker-a", "routes"])
    with pytest.raises(BackupError, match="broker-a exists"):
        Restore(place, sources, target).run(["broker-a"])
    with pytest.raises(BackupError, match="broker-z is not in the backup"):
        Restore(place, sources, tmp_path / "other").run(["broker-z"])


def test_restored_files_are_durable_and_readable_by_their_owner_alone(
    copied: tuple[Directory, BackupManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, manifest = copied
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    synced: set[int] = set()
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", recorded)
    Restore(place, RestoreSources(manifest, manifest, manifest), target).run()
    assert {"broker-a", "offset", "routes", "etcd.snapshot", "report.json", "lock"} == {
        path.name for path in target.iterdir()
    }
    for path in target.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
        assert path.stat().st_ino in synced or path.name == "lock", path


class DiesAfter(Directory):
    """A destination whose program is killed after some writes.

    Args:
        root: the directory.
        writes: number of files that are written.
    """

    def __init__(self, root: Path, writes: int) -> None:
        super().__init__(root)
        self._left = writes

    def writer(self, name: str):  # type: ignore[no-untyped-def]
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        return super().writer(name)


async def test_an_interrupted_backup_is_not_listed_as_complete_and_its_files_are_used(
    tmp_path: Path,
) -> None:
    root, work = tmp_path / "backups", Work()
    place = Directory(root)
    async with (
        LocalCluster(settings={"broker": {"commit_log_file_bytes": "16KiB"}}, single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        async with work.running(cluster):
            await work.sent(300)
        with pytest.raises(KeyboardInterrupt):
            await create(cluster, DiesAfter(root, 10))
        (interrupted,) = backups_in(place).interrupted
        assert not backups_in(place).complete
        with pytest.raises(BackupError, match="is interrupted"):
            backups_in(place).manifest(interrupted)
        left = {name for name in place.names() if name.startswith("logs/")}
        assert left
        manifest = await create(cluster, place)
        assert left & {part.file.name for part in manifest.log("broker-a").parts}
        assert not list(faults(place, manifest))
        assert backups_in(place).interrupted == []
        # A destination of another cluster is refused.
    async with (
        LocalCluster(single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        with pytest.raises(BackupError, match="backups of another cluster"):
            await create(cluster, place)


async def test_two_backups_to_one_directory_do_not_run_together(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    with place.locked(), pytest.raises(BackupError, match="another backup is being made"):
        await create(cast(rockoon.Cluster, None), place)


def test_a_full_destination_is_reported_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file.partial").symlink_to("/dev/full")
    for place in (Directory(tmp_path), ArrowDestination(tmp_path.as_uri())):
        if isinstance(place, ArrowDestination):
            (tmp_path / "file").symlink_to("/dev/full")
        with pytest.raises(BackupError, match=f"^{place.shown}/file cannot be written.*No space"):
            place.write("file", b"content")
        assert place.names() == {}


async def test_a_store_of_objects_has_the_same_backup(tmp_path: Path) -> None:
    place, work = ArrowDestination((tmp_path / "backups").as_uri()), Work()
    async with (
        LocalCluster(settings=SMALL_FILES, single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        async with work.running(cluster):
            await work.sent(20)
        await create(cluster, place)
        manifest = await create(cluster, place)
    assert manifest == backups_in(place).manifest()
    assert not list(faults(place, manifest))
    await restore(place, tmp_path / "new", manifest)
    harm(tmp_path / "backups" / manifest.progress.name, "truncated")
    assert list(faults(place, manifest))


async def test_two_backups_to_a_store_of_objects_are_both_complete(tmp_path: Path) -> None:
    place = ArrowDestination((tmp_path / "backups").as_uri())
    others: list[BackupManifest] = []
    async with LocalCluster(single=True) as local, rockoon.connect(local.nameservers) as cluster:

        async def works_on() -> None:
            # The second time, the progress of the slow backup is stored.
            others.append(await create(cluster, place))

        making = SlowCreation(cluster, place, Pace(0), lambda _: None)
        making.works_on = works_on
        making.begin()
        slow = await making.run(())
    for manifest in (slow, *others):
        assert not list(faults(place, manifest))
