"""etcd is restored from a backup: later changes are lost, and none of these topics was deleted."""

from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_proto.v1 import offset_pb2 as pb

LATER = {"start_policy": {"consume_from": "CONSUME_FROM_LAST"}}
# Whether etcd's revision is higher than all known ones when the service reads it again.
COUNTED = pytest.mark.parametrize("counted", ["behind", "past"])
# Whether the service runs in the meantime.
SEEN = pytest.mark.parametrize("seen", ["seen", "missed"])


async def read_30_of_100(cluster: Cluster, topic: str = TOPIC) -> pb.Start:
    """A group whose start is the end has read 30 messages, and 70 came since."""
    await cluster.set_group(**LATER)
    start = await cluster.start_of(topic=topic)
    cluster.broker.queue(topic).append(100)
    assert not (await cluster.commit(30, start.epoch, topic=topic)).HasField("error")
    await cluster.until_revision()
    return start


async def restore(cluster: Cluster, backup: dict[str, Any], *, seen: str, counted: str) -> int:
    """Return the latest revision that was known before."""
    before = cluster.nameserver.revision
    if seen == "missed":
        await cluster.stop_service()
    more = before - backup["revision"] + 20 if counted == "past" else 0
    await cluster.nameserver.restore(backup, revisions_more=more)
    if seen == "missed":
        await cluster.start_service()
    return before


async def create_again(cluster: Cluster) -> None:
    kept = cluster.broker.queue(TOPIC)
    await cluster.create_topic()
    cluster.broker.queues[TOPIC, 0] = kept


async def goes_on_at_30(cluster: Cluster) -> None:
    await cluster.until_revision()
    start = await cluster.start_of()
    assert (start.offset, start.reason) == (30, pb.COMMITTED), start.explanation
    assert not (await cluster.commit(31, start.epoch)).HasField("error")


@COUNTED
@SEEN
async def test_a_group_and_its_topic_that_came_after_the_backup_keep_their_place(
    bare_cluster: Cluster, seen: str, counted: str
) -> None:
    cluster = bare_cluster
    backup = cluster.nameserver.backup()
    await cluster.create_topic()
    await read_30_of_100(cluster)
    before = await restore(cluster, backup, seen=seen, counted=counted)
    # They are created again; etcd exceeds the known revisions sooner or later.
    while cluster.nameserver.revision < before:
        await cluster.create_topic(f"other-{cluster.nameserver.revision}")
    await create_again(cluster)
    await cluster.set_group(**LATER)
    await goes_on_at_30(cluster)
    await cluster.restart_service()
    (progress,) = await cluster.progress()
    assert progress.offset == 31


@COUNTED
@SEEN
async def test_made_again_at_an_earlier_revision_they_are_the_same_too(
    bare_cluster: Cluster, seen: str, counted: str
) -> None:
    cluster = bare_cluster
    backup = cluster.nameserver.backup()
    for number in range(5):
        await cluster.create_topic(f"before-{number}")
    await cluster.create_topic()
    await read_30_of_100(cluster)
    if seen == "missed":
        await cluster.stop_service()
    await cluster.nameserver.restore(backup)
    await create_again(cluster)
    await cluster.set_group(**LATER)
    if counted == "past":
        cluster.nameserver.revision += 100
    if seen == "missed":
        await cluster.start_service()
    await goes_on_at_30(cluster)


@COUNTED
@SEEN
async def test_queues_added_after_the_backup_keep_their_progress(
    cluster: Cluster, seen: str, counted: str
) -> None:
    await cluster.set_group(**LATER)
    await cluster.start_of()
    backup = cluster.nameserver.backup()
    await cluster.add_queues(1)
    start = await cluster.start_of(2)
    cluster.broker.queue(TOPIC, 2).append(100)
    assert not (await cluster.commit(30, start.epoch, queue_id=2)).HasField("error")
    await restore(cluster, backup, seen=seen, counted=counted)
    await cluster.nameserver.UpdateTopic(cluster.more_queues(1), None)
    await cluster.until_revision()
    again = await cluster.start_of(2)
    assert (again.offset, again.reason) == (30, pb.COMMITTED), again.explanation


async def test_a_queue_that_is_born_after_the_restore_is_new_to_a_member_that_came_before(
    cluster: Cluster,
) -> None:
    await cluster.set_group(broadcast_progress="BROADCAST_SERVER", **LATER)
    backup = cluster.nameserver.backup()
    await cluster.add_queues(1)
    own: dict[str, Any] = {"member": "pod-0", "mode": pb.BROADCASTING}
    await cluster.resolve(0, 1, 2, **own)
    await restore(cluster, backup, seen="missed", counted="behind")
    await cluster.nameserver.UpdateTopic(cluster.more_queues(2), None)
    cluster.broker.queue(TOPIC, 3).append(9)
    await cluster.until_revision()
    start = await cluster.start_of(3, **own)
    assert (start.offset, start.reason) == (0, pb.NEW_QUEUE), start.explanation


@COUNTED
@SEEN
async def test_what_is_deleted_after_the_restore_is_deleted(
    cluster: Cluster, seen: str, counted: str
) -> None:
    backup = cluster.nameserver.backup()
    await read_30_of_100(cluster)
    await restore(cluster, backup, seen=seen, counted=counted)
    await cluster.delete_topic()
    await cluster.until(lambda: is_empty(cluster))
    await cluster.create_topic()
    await cluster.set_group(**LATER)
    cluster.broker.queue(TOPIC).append(9)
    start = await cluster.start_of()
    assert (start.offset, start.reason) == (0, pb.OTHER_INCARNATION)


async def is_empty(cluster: Cluster) -> bool:
    return not await cluster.progress()


@pytest.mark.parametrize("forgotten", [False, True])
async def test_deleted_while_the_service_was_away_they_are_gone(
    cluster: Cluster, forgotten: bool
) -> None:
    await read_30_of_100(cluster)
    await cluster.stop_service()
    await cluster.delete_topic()
    await cluster.create_topic()
    if forgotten:
        # There were too many deletions since.
        cluster.nameserver.revision += 1000
        cluster.nameserver.deletions.clear()
        cluster.nameserver.deletions_since = cluster.nameserver.revision
    cluster.broker.queue(TOPIC).append(9)
    await cluster.start_service()
    start = await cluster.start_of()
    assert (start.offset, start.reason) == (0, pb.OTHER_INCARNATION)


async def test_a_lagging_nameserver_is_no_restored_etcd(cluster: Cluster) -> None:
    backup = cluster.nameserver.backup()
    await read_30_of_100(cluster)
    ahead = cluster.nameserver.backup()
    await cluster.stop_service()
    cluster.nameserver.lags = True
    await cluster.nameserver.restore(backup)
    await cluster.start_service()
    cluster.nameserver.lags = False
    await cluster.nameserver.restore(ahead)
    await cluster.delete_topic()
    await cluster.until(lambda: is_empty(cluster))


async def test_a_group_deleted_after_the_restore_starts_anew(cluster: Cluster) -> None:
    await read_30_of_100(cluster)
    backup = cluster.nameserver.backup()
    await cluster.add_queues(1)
    await cluster.until_revision()
    await restore(cluster, backup, seen="seen", counted="behind")
    await cluster.nameserver.DeleteGroup(cluster.deletion_of_group(), None)
    await cluster.until(lambda: is_empty(cluster))
    await cluster.set_group(**LATER)
    await cluster.until_revision()
    assert (await cluster.start_of(group=GROUP)).reason == pb.LAST
