"""A disk of 48 MB fills up behind a slow reader: the policy decides about unread messages."""

import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import rockoon
from rockoon.cli.lag import disk_text, loss_text
from rockoon.cli.offsets import story_lines
from rockoon.errors import RockoonError, StoreNotWritable, TimedOut
from rockoon.local import LocalCluster
from rockoon_proto.v1 import broker_pb2
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply
from rockoon_proto.v1.offset_pb2 import QueueLag
from support.eventually import answered

TOPIC, GROUP, BROKER = "orders", "slow", "broker-a"
FILE_BYTES = 1 << 20
BODY = bytes(1000)
READ_FIRST = 100
SETTINGS = {
    "flush": "async",
    "index": "off",
    "commit_log_file_bytes": FILE_BYTES,
    "consume_queue_file_entries": 1000,
    "disk_check_interval_ms": 100,
}


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A partition of 48 MB at a path."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    path.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs", str(path)]
    mounted = subprocess.run(["mount", *options], check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a partition cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def local(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    directory = tmp_path / "cluster"
    settings = {"broker": SETTINGS | {"disk_pressure_policy": request.param}}
    with (
        small_disk(directory / BROKER),
        # Brokers sign their query of the groups' progress.
        LocalCluster(directory, brokers=1, settings=settings, access="on", tls="on") as cluster,
    ):
        yield cluster


async def send(cluster: rockoon.Cluster, count: int, seconds: float = 4) -> int:
    """Send messages, each until the broker has refused it for some seconds.

    Returns:
        Number of acknowledged messages.
    """
    acknowledged = 0
    rules = {"delivery_timeout_seconds": seconds, "batch_bytes_max": 1 << 17}
    async with cluster.producer(**rules) as producer:
        receipts = []
        for _ in range(count):
            await producer.wait_capacity()
            receipts.append(producer.send(TOPIC, BODY))
        for receipt in receipts:
            try:
                await receipt
            except RockoonError as refusal:
                assert isinstance(refusal, StoreNotWritable | TimedOut), refusal
            else:
                acknowledged += 1
    return acknowledged


async def read(cluster: rockoon.Cluster, count: int) -> tuple[int, str]:
    """Read as the group, and commit; return the number of messages, and the reason of the start."""
    found = 0
    async with cluster.pull_consumer(GROUP, consume_from="first") as consumer:
        await consumer.assign_all(TOPIC)
        (start,) = consumer.starts.values()
        while found < count:
            messages = await consumer.poll(min(count - found, 1000), timeout=2)
            if not messages:
                break
            found += len(messages)
        await consumer.commit()
    return found, start.explanation


async def described(cluster: rockoon.Cluster) -> DescribeBrokerReply:
    answer = (await cluster.admin.describe_broker(BROKER)).broker
    assert answer is not None
    return answer


async def lag_of(cluster: rockoon.Cluster) -> QueueLag:
    (lag,) = (await cluster.admin.lag(GROUP)).queues
    return lag


@asynccontextmanager
async def begun(local: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    """A connection; the group has read the first messages of the topic."""
    keys = {"access": local.access, "tls": local.tls}
    async with rockoon.connect(local.nameservers, **keys) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        assert await send(cluster, READ_FIRST) == READ_FIRST
        assert (await read(cluster, READ_FIRST))[0] == READ_FIRST
        yield cluster


@pytest.mark.parametrize("local", ["refuse"], indirect=True)
async def test_messages_are_refused_before_unread_ones_are_deleted(local: LocalCluster) -> None:
    async with begun(local) as cluster:
        kept = 0
        while (sent := await send(cluster, 5000)) == 5000:
            kept += sent
            assert kept < 45_000
        kept += sent
        assert kept >= 30_000
        seen = await answered(lambda: described(cluster), lambda now: not now.writable)
        assert seen.log_min_offset == 0
        (problem,) = [each for each in seen.problems if "it takes no messages" in each]
        assert f"unread by groups: {GROUP} " in problem
        assert "disk_pressure_policy = refuse" in problem
        lag = await lag_of(cluster)
        # A message whose send failed may still be stored.
        assert lag.lost == 0
        assert lag.lag >= kept
        (disk,) = (await cluster.admin.lag(GROUP)).disks
        assert "NEW MESSAGES ARE REFUSED" in disk_text(disk)
        # Every acknowledged message can be read; then there is space for new ones.
        assert (await read(cluster, lag.lag))[0] == lag.lag
        await answered(lambda: described(cluster), lambda now: now.writable)
        assert await send(cluster, 1000) == 1000
        assert (await described(cluster)).log_min_offset > 0


@pytest.mark.parametrize("local", ["delete"], indirect=True)
async def test_the_oldest_files_are_deleted_where_the_policy_says_so(local: LocalCluster) -> None:
    async with begun(local) as cluster:
        # The forecast compares the log's end at two times; this call records the first one.
        await lag_of(cluster)
        assert await send(cluster, 20_000, 30) == 20_000
        lag = await lag_of(cluster)
        assert lag.loss_cause == broker_pb2.LOSS_DISK_FILLS
        assert 0 < lag.loss_ms < 600_000
        assert await send(cluster, 25_000, 30) == 25_000
        seen = await described(cluster)
        assert seen.log_min_offset > 0
        assert seen.log_min_offset % FILE_BYTES == 0
        assert seen.disk_used_ratio > 0.85 - 3 * FILE_BYTES / (48 << 20)
        lag = await lag_of(cluster)
        assert lag.lost > 0
        assert lag.lost_because == broker_pb2.DELETED_DISK_PRESSURE
        assert f"{lag.lost} LOST (disk pressure)" in (loss_text(lag) or "")
        (story,) = await cluster.admin.why(GROUP)
        assert "were deleted under disk pressure" in dict(story_lines(story))["lost"]
        # One line for each file, oldest first.
        text = (local.directory / "logs" / f"{BROKER}.log").read_text()
        lines = re.findall(r"CommitLog file (\d+) is deleted: (.*)", text)
        starts = [int(start) for start, _ in lines]
        assert starts == list(range(0, len(starts) * FILE_BYTES, FILE_BYTES))
        assert len(starts) * FILE_BYTES >= seen.log_min_offset
        assert all("disk pressure" in why for _, why in lines)
        assert all(f"unread by groups: {GROUP} " in why for _, why in lines[1:])
        found, explanation = await read(cluster, 1000)
        assert found == 1000
        assert "messages were deleted under disk pressure unread" in explanation
