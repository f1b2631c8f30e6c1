"""Restores of parts of different backups, between which topics were changed or created again."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from backup.workload import GROUP, TOPIC, restored

import rockoon
from rockoon.backup.creation import create
from rockoon.backup.destination import BackupError
from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import BackupManifest
from rockoon.backup.restoring import Restore, RestoreReport, RestoreSources
from rockoon.local import LocalCluster
from support.waiting import DEADLINE_SECONDS


async def send(cluster: rockoon.Cluster, queue_id: int, *bodies: bytes) -> None:
    queue = next(each for each in (await cluster.route(TOPIC)).queues if each.queue_id == queue_id)
    async with cluster.producer() as producer:
        for body in bodies:
            await producer.send(TOPIC, body, queue=queue)


async def read_by_group(cluster: rockoon.Cluster, count: int) -> set[bytes]:
    """Read messages of the topic in the group, and commit."""
    found: set[bytes] = set()
    arrived = asyncio.Event()

    async def handle(message: rockoon.Message) -> None:
        found.add(bytes(message.body))
        if len(found) >= count:
            arrived.set()

    async with cluster.push_consumer(GROUP, {TOPIC: "*"}, handle, consume_from="first"):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await arrived.wait()
    return found


async def restore(
    place: Directory, target: Path, logs: BackupManifest, other: BackupManifest, *parts: str
) -> RestoreReport:
    progress, routes = (other if each in parts else logs for each in ("progress", "routes"))
    sources = RestoreSources(logs, progress, routes)
    return await asyncio.to_thread(Restore(place, sources, target).run)


def offsets_in(report: RestoreReport) -> list[tuple[int, int]]:
    return [(each.before, each.offset) for each in report.groups if each.topic == TOPIC]


async def created_again(place: Directory) -> tuple[BackupManifest, BackupManifest, set[bytes]]:
    """Return backups before and after a topic was created again, and bodies of the new topic."""
    async with LocalCluster(single=True) as local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        await send(cluster, 0, *(b"old %d" % number for number in range(5)))
        await read_by_group(cluster, 5)
        early = await create(cluster, place)
        await cluster.admin.delete_topic(TOPIC)
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        new = {b"new %d" % number for number in range(10)}
        await send(cluster, 0, *new)
        late = await create(cluster, place)
    return early, late, new


async def with_another_queue(place: Directory) -> tuple[BackupManifest, BackupManifest]:
    """Return backups before and after a queue was added to a topic."""
    async with LocalCluster(single=True) as local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        await send(cluster, 0, b"read")
        await read_by_group(cluster, 1)
        early = await create(cluster, place)
        await cluster.admin.update_topic(TOPIC, add={"broker-a": 1})
        await send(cluster, 0, b"0")
        await send(cluster, 1, b"1", b"2")
        late = await create(cluster, place)
    return early, late


async def test_progress_of_a_deleted_topic_skips_no_message_of_the_new_one(tmp_path: Path) -> None:
    place, target = Directory(tmp_path / "backups"), tmp_path / "new"
    early, late, new = await created_again(place)
    report = await restore(place, target, late, early, "progress")
    assert offsets_in(report) == [(5, 0)]
    async with restored(target) as local, rockoon.connect(local.nameservers) as cluster:
        assert await read_by_group(cluster, 10) == new


@pytest.mark.parametrize("damaged", ["logs", "progress"])
def test_progress_of_another_backup_needs_the_routes_of_both(
    copied: tuple[Directory, BackupManifest], tmp_path: Path, damaged: str
) -> None:
    place, logs = copied
    content = place.content(logs.routes.name)
    routes = replace(logs.routes, name="other/routes")
    progress = replace(logs, revision=logs.revision - 1, routes=routes)
    place.write(routes.name, content)
    name = (logs if damaged == "logs" else progress).routes.name
    place.write(name, content[:-1])
    # Without them, topics that were created again between the backups are not known.
    parts, target = ["broker-a", "offset"], tmp_path / "new"
    with pytest.raises(BackupError, match=f"{name} is damaged"):
        Restore(place, RestoreSources(logs, progress, logs), target).run(parts)
    assert {path.name for path in target.iterdir()} == {"lock"}
    # The directory is still free for other progress.
    assert Restore(place, RestoreSources(logs, logs, logs), target).run(parts).groups


async def test_a_queue_that_was_added_after_the_progress_is_read_from_its_start(
    tmp_path: Path,
) -> None:
    place, target = Directory(tmp_path / "backups"), tmp_path / "new"
    early, late = await with_another_queue(place)
    await restore(place, target, late, early, "progress")
    async with restored(target) as local, rockoon.connect(local.nameservers) as cluster:
        assert await read_by_group(cluster, 3) == {b"0", b"1", b"2"}


async def test_routes_before_an_added_queue_keep_its_messages(tmp_path: Path) -> None:
    place, target = Directory(tmp_path / "backups"), tmp_path / "new"
    early, late = await with_another_queue(place)
    await restore(place, target, late, early, "progress", "routes")
    async with restored(target) as local, rockoon.connect(local.nameservers) as cluster:
        assert await read_by_group(cluster, 1) == {b"0"}
        # The route lacks the queue. Once it is added again, its messages are read.
        await cluster.admin.update_topic(TOPIC, add={"broker-a": 1})
        assert await read_by_group(cluster, 2) == {b"1", b"2"}


async def test_routes_and_progress_before_a_topic_was_created_again_skip_no_message(
    tmp_path: Path,
) -> None:
    place, target = Directory(tmp_path / "backups"), tmp_path / "new"
    early, late, new = await created_again(place)
    report = await restore(place, target, late, early, "progress", "routes")
    assert offsets_in(report) == [(5, 0)]
    async with restored(target) as local, rockoon.connect(local.nameservers) as cluster:
        assert await read_by_group(cluster, 10) == new


async def test_progress_of_the_new_topic_skips_no_message_of_the_former_one(
    tmp_path: Path,
) -> None:
    place, target = Directory(tmp_path / "backups"), tmp_path / "new"
    async with LocalCluster(single=True) as local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        await send(cluster, 0, *(b"old %d" % number for number in range(5)))
        early = await create(cluster, place)
        await cluster.admin.delete_topic(TOPIC)
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        await send(cluster, 0, *(b"new %d" % number for number in range(3)))
        await read_by_group(cluster, 3)
        late = await create(cluster, place)
    await restore(place, target, early, late, "progress", "routes")
    async with restored(target) as local, rockoon.connect(local.nameservers) as cluster:
        later = {b"later %d" % number for number in range(5)}
        await send(cluster, 0, *later)
        # Offset 3 of the new topic is no offset of the former topic's queue with five messages.
        old = {b"old %d" % number for number in range(5)}
        assert await read_by_group(cluster, 10) == old | later
