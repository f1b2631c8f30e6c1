"""On real processes: effects of a deletion, refused callers, and damage that stops a start."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import rockoon
from rockoon import errors
from rockoon.local import LocalCluster
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.broker_pb2 import DescribeBrokerRequest, QueueRange, ReadRequest
from rockoon_proto.v1.offset_pb2 import ListMembersRequest
from support.waiting import DEADLINE_SECONDS

MESSAGES = 5
LOOK_SECONDS = 0.02
STORE_EXIT_STATUS = 74


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local.nameservers) as connection:
        yield connection


async def send(cluster: rockoon.Cluster, topic: str) -> None:
    async with cluster.producer() as producer:
        await producer.send_many(topic, [b"%d" % number for number in range(MESSAGES)])


async def read_and_commit(cluster: rockoon.Cluster, topic: str, group: str) -> None:
    async with cluster.pull_consumer(group, consume_from="first") as consumer:
        await consumer.assign_all(topic)
        read = 0
        while read < MESSAGES:
            read += len(await consumer.poll(timeout=DEADLINE_SECONDS))
        await consumer.commit()


async def stored(cluster: rockoon.Cluster, group: str) -> list[int]:
    return [entry.offset for entry in await cluster.admin.progress(group)]


async def until_stored(cluster: rockoon.Cluster, group: str, wanted: list[int]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await stored(cluster, group) != wanted:
            await asyncio.sleep(LOOK_SECONDS)


async def test_a_deleted_topic_takes_its_progress_along_and_its_successor_is_read_whole(
    cluster: rockoon.Cluster,
) -> None:
    topic, group = "deleted", "readers-of-deleted"
    await cluster.admin.create_topic(topic, queues_per_broker=1)
    await send(cluster, topic)
    await read_and_commit(cluster, topic, group)
    assert await stored(cluster, group) == [MESSAGES]
    await cluster.admin.delete_topic(topic)
    await until_stored(cluster, group, [])

    await cluster.admin.create_topic(topic, queues_per_broker=1)
    await send(cluster, topic)
    # As many messages as before: a remaining offset would skip all of them.
    await read_and_commit(cluster, topic, group)
    (entry,) = await cluster.admin.progress(group)
    assert (entry.start_offset, entry.offset) == (0, MESSAGES)


async def test_a_deleted_group_takes_its_progress_along_and_its_successor_begins_anew(
    cluster: rockoon.Cluster,
) -> None:
    topic, group = "kept", "deleted-readers"
    await cluster.admin.create_topic(topic, queues_per_broker=1)
    await send(cluster, topic)
    await read_and_commit(cluster, topic, group)
    assert await stored(cluster, group) == [MESSAGES]
    await cluster.admin.delete_group(group)
    await until_stored(cluster, group, [])
    await read_and_commit(cluster, topic, group)
    assert await stored(cluster, group) == [MESSAGES]


async def test_a_group_that_somebody_reads_with_is_not_deleted(cluster: rockoon.Cluster) -> None:
    topic, group = "read", "live-readers"
    await cluster.admin.create_topic(topic, queues_per_broker=1)

    async def ignore(message: rockoon.Message) -> None:
        pass

    async with cluster.push_consumer(group, {topic: "*"}, ignore):
        with pytest.raises(errors.GroupHasMembers, match="live-readers"):
            await cluster.admin.delete_group(group)
        names = [each.group.config.name for each in await cluster.admin.list_groups()]
        assert group in names
    await cluster.admin.delete_group(group)


async def test_brokers_and_the_offset_service_refuse_callers_of_another_cluster(
    cluster: rockoon.Cluster,
) -> None:
    service = await cluster.wait_offset_service(DEADLINE_SECONDS)
    elsewhere = (("rockoon-cluster", "elsewhere"),)
    for call, request in (
        (cluster.broker("broker-a").DescribeBroker, DescribeBrokerRequest()),
        (service.ListMembers, ListMembersRequest()),
    ):
        await call(request)
        with pytest.raises(Exception, match="elsewhere") as refusal:
            await call(request, metadata=elsewhere)
        translated = from_rpc_error(refusal.value, errors.BrokerUnavailable, broker="any")
        assert isinstance(translated, errors.WrongCluster)


async def test_reading_outside_the_queue_is_refused_on_both_sides(
    cluster: rockoon.Cluster,
) -> None:
    topic = "short"
    await cluster.admin.create_topic(topic, queues_per_broker=1)
    await send(cluster, topic)
    rows: dict[int, type[rockoon.RockoonError]] = {
        -1: errors.InvalidOffset,
        MESSAGES: errors.MessageNotFound,
        1 << 62: errors.MessageNotFound,
        (1 << 63) - 1: errors.InvalidOffset,
    }
    for offset, row in rows.items():
        request = ReadRequest(range=QueueRange(topic=topic, queue_id=0, offset=offset))
        with pytest.raises(row):
            await cluster.call(
                cluster.broker("broker-a").Read,
                request,
                unavailable=errors.BrokerUnavailable,
                broker="broker-a",
            )


@pytest.mark.parametrize(
    ("service", "file", "content"),
    [
        ("rockoon_broker", "config/topics.json", b"{"),
        ("rockoon_broker", "config/topics.json", b"\xff\xff"),
        ("rockoon_broker", "config/droppedTopics.json", b"[]"),
        ("rockoon_broker", "commitlog/notes", b""),
        ("rockoon_offset", "store_id", b"short"),
        ("rockoon_offset", "journal/000000000001.journal", b"garbage" * 100),
        ("rockoon_offset", "journal/000000000002.snapshot", b"garbage" * 100),
    ],
)
def test_a_damaged_file_stops_the_start_with_its_name_and_is_left_as_it_is(
    tmp_path: Path, service: str, file: str, content: bytes
) -> None:
    damaged = tmp_path / "store" / file
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(content)
    ended = subprocess.run(
        [sys.executable, "-m", service, "--listen", "127.0.0.1:0",
         "--nameservers", "127.0.0.1:1", "--store-path", str(tmp_path / "store")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == STORE_EXIT_STATUS, ended.stderr
    assert damaged.name in ended.stderr
    assert "Traceback" not in ended.stderr
    assert damaged.read_bytes() == content
