"""Every request of a caller gets a row of the error table; no message is lost, and no process
ends."""

import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

import rockoon
from rockoon import errors
from rockoon.local import LocalCluster
from rockoon_core.message_queue import MessageQueue
from rockoon_format.batch import encode_batch
from rockoon_format.record import encode_host
from rockoon_proto.v1.broker_pb2 import (
    OFFSET_OVERFLOW_BADLY,
    OFFSET_OVERFLOW_ONE,
    AppendReply,
    AppendRequest,
    BrokerQueue,
    PullRequest,
    QueueRange,
    QueueStatusRequest,
    ReadRequest,
)
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from rockoon_proto.v1.offset_pb2 import (
    CommitEntry,
    CommitRequest,
    QueueRef,
    ResolveRequest,
)

TOPIC = "orders"
BODY_BYTES_MAX = 4 << 20
PROPERTIES_BYTES_MAX = 32767
HOST = encode_host("127.0.0.1", 10911)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    settings = {"broker": {"commit_log_file_bytes": "16MiB"}}
    with LocalCluster(folder, brokers=1, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local.nameservers) as connection:
        topic = await connection.admin.create_topic(TOPIC, queues_per_broker=2, if_absent=True)
        await connection.route(TOPIC, min_revision=topic.modified_revision)
        await connection.admin.create_group("readers", if_absent=True)
        yield connection
        # After each test all nodes still run, and a message can be sent and read.
        assert all(node.running for node in local.nodes)
        async with connection.producer() as producer:
            result = await producer.send(TOPIC, b"still here")
        reply = await read(connection, result.queue, result.queue_offset)
        assert b"still here" in reply.frames


def batch(bodies: list[bytes], properties: bytes = b"", queue_id: int = 0) -> AppendRequest:
    frames, lengths = encode_batch(
        TOPIC.encode(), queue_id, bodies, [properties] * len(bodies), 1, HOST
    )
    return AppendRequest(
        topic=TOPIC,
        queue_id=queue_id,
        frames=frames,
        record_lengths=lengths.astype("<u4").tobytes(),
    )


async def append(cluster: rockoon.Cluster, request: AppendRequest) -> AppendReply:
    request.route_revision = cluster.routes.topic_revision(TOPIC)
    stub = cluster.broker("broker-a")
    reply = await cluster.call(
        stub.Append, request, unavailable=errors.BrokerUnavailable, broker="broker-a"
    )
    if reply.HasField("error"):
        raise errors.from_wire(reply.error)
    return reply


async def read(cluster: rockoon.Cluster, queue: MessageQueue, offset: int):
    request = ReadRequest(
        range=QueueRange(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
    )
    stub = cluster.broker(queue.broker)
    return await cluster.call(
        stub.Read, request, unavailable=errors.BrokerUnavailable, broker=queue.broker
    )


def with_bytes(request: AppendRequest, position: int, new: bytes) -> AppendRequest:
    frames = bytearray(request.frames)
    frames[position : position + len(new)] = new
    request.frames = bytes(frames)
    return request


def wrong_lengths() -> AppendRequest:
    request = batch([b"one", b"two"])
    lengths = np.frombuffer(request.record_lengths, "<u4").copy()
    lengths[0] += 1
    request.record_lengths = lengths.tobytes()
    return request


def odd_lengths() -> AppendRequest:
    request = batch([b"one"])
    request.record_lengths += b"\0"
    return request


def lengths_that_hide_a_record() -> AppendRequest:
    request = batch([b"one", b"two"])
    request.record_lengths = struct.pack("<I", len(request.frames))
    return request


def other_queue() -> AppendRequest:
    request = batch([b"one"], queue_id=0)
    request.queue_id = 1
    return request


def empty() -> AppendRequest:
    return AppendRequest(topic=TOPIC, queue_id=0)


@pytest.mark.parametrize(
    "request_of",
    [
        wrong_lengths,
        odd_lengths,
        lengths_that_hide_a_record,
        other_queue,
        empty,
        lambda: with_bytes(batch([b"one"]), 4, b"\0\0\0\0"),
        lambda: with_bytes(batch([b"one"]), 8, b"\x01\x02\x03\x04"),
        lambda: with_bytes(batch([b"one"]), 0, b"\x7f\xff\xff\xff"),
        lambda: with_bytes(batch([b"one"]), 84, b"\xff\xff\xff\xff"),
        lambda: with_bytes(batch([b"one"]), 92, b"xrders"),
    ],
    ids=[
        "lengths that do not add up",
        "lengths that are not whole numbers",
        "a length that hides a record",
        "records of another queue",
        "nothing at all",
        "wrong magic",
        "wrong CRC",
        "absurd size",
        "negative body length",
        "records of another topic",
    ],
)
async def test_a_malformed_batch_is_refused_whole(cluster: rockoon.Cluster, request_of) -> None:
    before = await queue_end(cluster)
    with pytest.raises(errors.MalformedBatch):
        await append(cluster, request_of())
    assert await queue_end(cluster) == before


async def queue_end(cluster: rockoon.Cluster) -> int:
    request = QueueStatusRequest(queues=[BrokerQueue(topic=TOPIC, queue_id=0)])
    stub = cluster.broker("broker-a")
    reply = await cluster.call(
        stub.QueueStatus, request, unavailable=errors.BrokerUnavailable, broker="broker-a"
    )
    return reply.queues[0].max_offset


async def test_a_body_that_is_too_large_is_refused_by_sdk_and_broker(
    cluster: rockoon.Cluster,
) -> None:
    body = bytes(BODY_BYTES_MAX + 1)
    async with cluster.producer() as producer:
        with pytest.raises(errors.BodyTooLarge):
            await producer.send(TOPIC, body)
    with pytest.raises(errors.BodyTooLarge):
        await append(cluster, batch([body]))


async def test_properties_that_are_too_large_are_refused_by_sdk(cluster: rockoon.Cluster) -> None:
    async with cluster.producer() as producer:
        with pytest.raises(errors.PropertiesTooLarge):
            await producer.send(TOPIC, b"", properties={"note": "x" * PROPERTIES_BYTES_MAX})


@pytest.mark.parametrize("name", ["", "with space", "slash/y", "x" * 128, "ümlaut", "semi;colon"])
async def test_illegal_topic_and_group_names_are_refused(
    cluster: rockoon.Cluster, name: str
) -> None:
    with pytest.raises(errors.InvalidTopicName):
        await cluster.admin.create_topic(name)
    with pytest.raises(errors.InvalidGroupName):
        await cluster.admin.create_group(GroupConfig(name=name))


async def test_unknown_topics_queues_and_groups_are_named_in_the_answer(
    cluster: rockoon.Cluster,
) -> None:
    async with cluster.producer() as producer:
        with pytest.raises(errors.TopicNotFound, match="nosuch"):
            await producer.send("nosuch", b"")
    with pytest.raises(errors.TopicNotFound, match="nosuch"):
        await cluster.admin.describe_topic("nosuch")
    with pytest.raises(errors.GroupNotFound, match="nosuch"):
        await cluster.admin.lag("nosuch")
    request = batch([b"one"], queue_id=77)
    with pytest.raises(errors.QueueNotFound, match="77"):
        await append(cluster, request)
    pulled = PullRequest(topic=TOPIC, queue_id=77, offset=0)
    with pytest.raises(errors.QueueNotFound, match="77"):
        await pull(cluster, pulled)
    entry = CommitEntry(queue=QueueRef(topic=TOPIC, broker="broker-a"), offset=1, epoch=1)
    reply = await offset_call(cluster, "Commit", CommitRequest(group="nosuch", entries=[entry]))
    assert isinstance(errors.from_wire(reply.results[0].error), errors.GroupNotFound)


async def pull(cluster: rockoon.Cluster, request: PullRequest):
    stub = cluster.broker("broker-a")
    return await cluster.call(
        stub.Pull, request, unavailable=errors.BrokerUnavailable, broker="broker-a"
    )


async def offset_call(cluster: rockoon.Cluster, method: str, request):
    stub = await cluster.wait_offset_service(10)
    return await cluster.call(
        getattr(stub, method), request, unavailable=errors.OffsetServiceUnavailable
    )


async def test_offsets_outside_the_queue_are_answered_with_where_to_go_on(
    cluster: rockoon.Cluster,
) -> None:
    await append(cluster, batch([b"one"]))
    end = await queue_end(cluster)
    with pytest.raises(errors.InvalidOffset, match="-1"):
        await pull(cluster, PullRequest(topic=TOPIC, queue_id=0, offset=-1))
    for offset, status, go_on in (
        (end, OFFSET_OVERFLOW_ONE, end),
        (end + 1000, OFFSET_OVERFLOW_BADLY, end),
    ):
        reply = await pull(cluster, PullRequest(topic=TOPIC, queue_id=0, offset=offset))
        assert (reply.status, reply.next_offset) == (status, go_on)


async def test_negative_absurd_and_stale_commits_change_nothing(cluster: rockoon.Cluster) -> None:
    await append(cluster, batch([b"one", b"two"]))
    queue = QueueRef(topic=TOPIC, broker="broker-a", queue_id=0)
    end = await queue_end(cluster)
    resolved = await offset_call(
        cluster, "Resolve", ResolveRequest(group="readers", member_id="m", queues=[queue])
    )
    start = resolved.starts[0]

    async def commit(offset: int, epoch: int):
        entry = CommitEntry(queue=queue, offset=offset, epoch=epoch)
        request = CommitRequest(group="readers", member_id="m", entries=[entry])
        return (await offset_call(cluster, "Commit", request)).results[0]

    good = await commit(end, start.epoch)
    assert not good.HasField("error")
    for offset, epoch, row in (
        (-1, start.epoch, errors.InvalidOffset),
        (2**63 - 1, start.epoch, errors.InvalidOffset),
        (end + 1_000_000, start.epoch, errors.OffsetBeyondEnd),
        (end - 1, start.epoch, errors.CommitBehind),
        (end, start.epoch - 1, errors.Fenced),
        (end, start.epoch + 1, errors.Fenced),
    ):
        result = await commit(offset, epoch)
        assert isinstance(errors.from_wire(result.error), row), (offset, epoch)
        assert result.offset == end


async def test_a_caller_of_another_cluster_is_refused(local: LocalCluster) -> None:
    with pytest.raises(errors.WrongCluster):
        async with rockoon.connect(local.nameservers, cluster="elsewhere"):
            pass


def start_broker(store: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Start a broker that is expected to refuse its store; no nameserver is needed for that."""
    command = [
        sys.executable, "-m", "rockoon_broker", "--name", "broker-z", "--listen", "127.0.0.1:0",
        "--nameservers", "127.0.0.1:1", "--store-path", str(store), *flags,
    ]  # fmt: skip
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


STORE_EXIT_STATUS = 74


def test_a_store_that_another_process_has_open_is_refused(local: LocalCluster) -> None:
    ended = start_broker(next(local.directory.rglob("commitlog")).parent)
    assert ended.returncode == STORE_EXIT_STATUS
    assert "in use by another process" in ended.stderr
    assert "Traceback" not in ended.stderr


def file_of_another_size(store: Path) -> str:
    (store / "commitlog" / ("0" * 20)).write_bytes(b"x" * 8192)
    return "8192"


def foreign_file(store: Path) -> str:
    (store / "commitlog" / "notes.tmp").write_bytes(bytes(16 << 20))
    return "notes.tmp"


@pytest.mark.parametrize("damage", [file_of_another_size, foreign_file])
def test_a_store_of_another_shape_stops_the_start_with_the_file_named(
    tmp_path: Path, damage
) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / ("0" * 20)).write_bytes(bytes(16 << 20))
    named = damage(store)
    before = sorted((path, path.stat().st_size) for path in store.rglob("*") if path.is_file())
    ended = start_broker(store, "--commit-log-file-bytes", "16MiB")
    assert ended.returncode == STORE_EXIT_STATUS, ended.stderr
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr
    after = {path: path.stat().st_size for path in store.rglob("*") if path.is_file()}
    assert all(after.get(path) == size for path, size in before), "nothing may be deleted"


def test_etcd_out_of_reach_at_start_is_one_sentence_and_an_exit_status() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "rockoon_nameserver", "--listen", "127.0.0.1:0",
         "--etcd", "127.0.0.1:1", "--start-timeout-seconds", "1"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert ended.returncode == 69
    assert "etcd" in ended.stderr
    assert "Traceback" not in ended.stderr
