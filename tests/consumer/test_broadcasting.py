"""Members that each read all messages: their start positions, their progress, and faults."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.errors import (
    InvalidArgument,
    InvalidOffset,
    OffsetBeyondEnd,
    StoreCorrupt,
    StoreLocked,
    StoreNotWritable,
)
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.offsets.local_offsets import LocalFileOffsetStore, member_id_of
from rockoon.offsets.start import ConsumeFrom, Position, facts_of, start_on
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import (
    NewQueueRule,
    QueueState,
    policy_from_wire,
    rules_from_wire,
)
from rockoon_proto.v1 import nameserver_pb2 as wire
from rockoon_proto.v1.offset_pb2 import BROADCASTING
from support.consumer_settings import grouped
from support.eventually import answered, eventually
from support.fake_cluster import FakeCluster

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
SOON = LocalRedelivery(first_seconds=0.01, seconds_max=0.02)


class Seen:
    """A handler that records its messages, and fails once on the chosen ones."""

    def __init__(self, *failing: bytes) -> None:
        self.bodies: list[bytes] = []
        self.failing = set(failing)

    async def __call__(self, message: Message) -> None:
        if message.body in self.failing:
            self.failing.discard(message.body)
            raise RuntimeError(f"told to fail on {message.body!r}")
        self.bodies.append(message.body)

    async def wait(self, count: int) -> None:
        await eventually(lambda: len(self.bodies) >= count)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def reader(cluster: Cluster, folder: Path, name: str, seen: Seen, **settings: Any) -> PushConsumer:
    store = LocalFileOffsetStore(cluster, "prices", name, directory=folder)
    chosen: dict[str, Any] = {
        "mode": "broadcasting",
        "member_id": name,
        "offset_store": store,
        "consume_from": "first",
        "commit_seconds": 0.02,
        "redelivery": SOON,
        **settings,
    }
    return cluster.push_consumer("prices", {"orders": "*"}, seen, **grouped(chosen))


async def test_every_member_gets_every_message_and_the_offset_service_keeps_no_progress(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders", queues=2)
    for queue_id in (0, 1):
        fake.append("orders", numbered(100, 100 * queue_id), queue_id=queue_id)
    one, two = Seen(), Seen(b"7")
    async with (
        reader(cluster, tmp_path, "a", one) as first,
        reader(cluster, tmp_path, "b", two) as second,
    ):
        await one.wait(200)
        await two.wait(200)
        assert first.assignment == second.assignment == [Q0, Q1]
        assert first.statistics.starts == {"FIRST": 2}
        modes = {name: member.mode for name, member in fake.offset.members["prices"].items()}
        assert modes == {"a": BROADCASTING, "b": BROADCASTING}
    assert sorted(map(int, one.bodies)) == sorted(map(int, two.bodies)) == list(range(200))
    assert second.statistics.delivery.failures == 1
    assert fake.offset.progress == {}


async def test_a_reader_that_comes_again_goes_on_and_reads_queues_added_meanwhile_from_their_start(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    before = Seen()
    async with reader(cluster, tmp_path, "a", before, consume_from="last") as consumer:
        await eventually(lambda: consumer.assignment == [Q0])
        fake.append("orders", numbered(10, 10))
        await before.wait(10)
    fake.append("orders", numbered(10, 20))
    fake.add_queues("orders", "broker-a", 1)
    fake.append("orders", numbered(10, 100), queue_id=1)
    after = Seen()
    async with reader(cluster, tmp_path, "a", after, consume_from="last") as consumer:
        await after.wait(20)
        assert consumer.starts[Q0].reason == "COMMITTED"
        assert consumer.starts[Q1].reason == "NEW_QUEUE"
    assert before.bodies == numbered(10, 10)
    assert sorted(after.bodies) == sorted(numbered(10, 20) + numbered(10, 100))


async def test_a_queue_added_while_reading_is_read_from_its_start(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen, consume_from="last") as consumer:
        await eventually(lambda: consumer.assignment == [Q0])
        fake.add_queues("orders", "broker-a", 1)
        fake.append("orders", numbered(10), queue_id=1)
        await seen.wait(10)
        assert (consumer.starts[Q1].offset, consumer.starts[Q1].reason) == (0, "NEW_QUEUE")


async def test_a_topic_made_anew_is_read_from_its_start(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen):
        await seen.wait(10)
    fake.delete_topic("orders")
    # With the routes of the deleted topic, the reader would start at its offset first.
    await eventually(lambda: cluster.routes.topic("orders") is None)
    fake.create_topic("orders")
    fake.append("orders", numbered(20))
    again = Seen()
    async with reader(cluster, tmp_path, "a", again, consume_from="last") as consumer:
        await again.wait(20)
        assert consumer.starts[Q0].reason == "OTHER_INCARNATION"


async def test_retention_that_overtakes_a_reader_is_counted_as_a_gap(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen):
        await seen.wait(10)
    fake.append("orders", numbered(20, 10))
    fake.brokers["broker-a"].queues["orders", 0].expire(15)
    again = Seen()
    async with reader(cluster, tmp_path, "a", again) as consumer:
        await again.wait(15)
        assert consumer.statistics.starts == {"BELOW_MIN": 1}
        assert consumer.statistics.gap_total == 5


async def test_a_log_that_loses_its_tail_while_it_is_read_goes_on_at_its_end(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen) as consumer:
        await seen.wait(10)
        queue = fake.brokers["broker-a"].queues["orders", 0]
        del queue.frames[5:], queue.codes[5:]
        fake.brokers["broker-a"].appended.notify()
        await eventually(lambda: consumer.statistics.starts["ABOVE_MAX"] == 1)
        assert consumer.statistics.out_of_range == 1
        fake.append("orders", [b"new"])
        await seen.wait(11)
    assert seen.bodies == [*numbered(10), b"new"]


async def test_a_reset_of_the_group_and_the_end_of_the_membership_leave_a_reader_alone(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen) as consumer:
        await seen.wait(10)
        fake.offset.resets.append(("prices", ("orders", "broker-a", 0)))
        fake.offset.expire("prices", "a")
        await eventually(lambda: "a" in fake.offset.members["prices"])
        fake.append("orders", numbered(10, 10))
        await seen.wait(20)
        assert (consumer.statistics.queues_gained, consumer.statistics.resets) == (1, 0)
    assert seen.bodies == numbered(20)


async def test_a_second_reader_with_the_same_id_and_folder_is_refused_and_harms_nothing(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen):
        with pytest.raises(StoreLocked):
            await reader(cluster, tmp_path, "a", Seen()).start()
        fake.append("orders", numbered(10))
        await seen.wait(10)
    async with reader(cluster, tmp_path, "a", Seen()) as consumer:
        await eventually(lambda: bool(consumer.starts))
        assert consumer.starts[Q0].offset == 10


async def test_a_folder_that_cannot_be_written_is_told_at_the_start(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreNotWritable):
        await reader(cluster, tmp_path / "file", "a", Seen()).start()
    assert fake.offset.members == {}


async def test_a_start_that_fails_lets_go_of_the_folder(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    file = tmp_path / "a" / "prices" / "offsets.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"{")
    with pytest.raises(StoreCorrupt):
        await reader(cluster, tmp_path, "a", Seen()).start()
    file.unlink()
    async with reader(cluster, tmp_path, "a", Seen()) as consumer:
        await eventually(lambda: consumer.assignment == [Q0])


@pytest.mark.parametrize(("policy", "begins_at"), [("first", 0), ("last", 10)])
async def test_a_reader_whose_two_files_are_damaged_starts_by_policy_where_it_was_told_to(
    fake: FakeCluster,
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    begins_at: int,
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen):
        await seen.wait(10)
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / "a" / "prices" / name).write_bytes(b"\0" * 64)
    store = LocalFileOffsetStore(cluster, "prices", "a", directory=tmp_path, on_corrupt="policy")
    again = Seen()
    async with reader(
        cluster, tmp_path, "a", again, offset_store=store, consume_from=policy
    ) as consumer:
        await eventually(lambda: bool(consumer.starts))
        assert consumer.starts[Q0].offset == begins_at
        assert "ALL PROGRESS" in caplog.text
        fake.append("orders", [b"10"])
        await again.wait(11 - begins_at)
    assert again.bodies == numbered(11 - begins_at, begins_at)


async def test_a_reader_goes_on_while_the_offset_service_is_away_for_longer_than_its_lease(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.offset.heartbeat_seconds, fake.offset.lease_seconds = 0.02, 0.1
    fake.create_topic("orders")
    seen = Seen()
    async with reader(cluster, tmp_path, "a", seen) as consumer:
        await eventually(lambda: consumer.assignment == [Q0])
        await fake.offset.listener.stop()
        await eventually(lambda: consumer._membership.heartbeats_failed > 0)
        fake.append("orders", numbered(10))
        await seen.wait(10)
        gone_at = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() - gone_at > 0.15)
        await fake.offset.listener.start()
        await eventually(lambda: consumer._assignment._expirations_seen > 0)
        fake.append("orders", numbered(10, 10))
        await seen.wait(20)
        assert consumer.statistics.queues_gained == 1
    assert seen.bodies == numbered(20)


async def test_a_reader_without_an_id_of_its_own_is_warned_and_one_with_is_not(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders")
    async with cluster.push_consumer("prices", {"orders": "*"}, Seen(), mode="broadcasting") as it:
        assert it.member_id == cluster.client_id
    assert caplog.text.count("has no fixed id") == 1
    async with (
        rockoon.connect(fake.address, client_id="shop-7") as named,
        named.push_consumer("prices", {"orders": "*"}, Seen(), mode="broadcasting") as it,
    ):
        assert it.member_id == "shop-7"
    assert caplog.text.count("has no fixed id") == 1
    with pytest.raises(InvalidArgument, match="broadcasting"):
        cluster.push_consumer("prices", {"orders": "*"}, Seen(), mode="shared")


def test_a_reader_is_called_what_will_be_its_name_at_the_next_start(
    cluster: Cluster,
) -> None:
    def named(member_id: str | None = None, host: str = "billing-0", **environment: str) -> str:
        return member_id_of(
            cluster, BROADCASTING, member_id, environment=environment, host_name=host
        )

    assert named("mine", ROCKOON_MEMBER="theirs") == "mine"
    assert named(ROCKOON_MEMBER="theirs") == "theirs"
    assert named() == "billing-0"
    # A Deployment's pod, or a machine: these names do not return.
    for host in ("billing-7d9f8b6c5-x2x4z", "build", "billing-7d9f8b6c5-24579"):
        assert named(host=host) == cluster.client_id


def test_a_groups_policies_win_over_the_readers() -> None:
    group = wire.GroupConfig(
        start_policy=wire.StartPolicy(consume_from=wire.CONSUME_FROM_TAIL, tail_messages=3),
        below_min=wire.OUT_OF_RANGE_FAIL,
        above_max=wire.OUT_OF_RANGE_FAIL,
    )
    reader = policy_from_wire(ConsumeFrom.FIRST.to_wire())
    rules = rules_from_wire(group, reader, NewQueueRule.EXACT)

    def start(kept: int | None) -> rockoon.offsets.start.Start:
        place = None if kept is None else Position(kept)
        return start_on(Q0, facts_of(Q0, 1, QueueState(10, 20), 1, rules, place))

    assert (start(None).offset, start(None).reason) == (17, "TAIL")
    with pytest.raises(InvalidOffset):
        start(9)
    with pytest.raises(OffsetBeyondEnd):
        start(21)
    assert [start(at).offset for at in (10, 20)] == [10, 20]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    settings = {"offset": {"heartbeat_seconds": 0.2, "lease_seconds": 1.0}}
    with LocalCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def real(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        yield connected


async def test_on_real_processes_two_readers_restart_by_a_time_and_go_on(
    real: Cluster, tmp_path: Path
) -> None:
    await real.admin.create_topic("orders", queues_per_broker=2)
    async with real.producer() as producer:
        old = await producer.send_many("orders", numbered(200))
        bound_ms = max(receipt.store_timestamp_ms for receipt in old) + 1
        await answered(
            lambda: producer.send("orders", b"probe"),
            lambda sent: sent.store_timestamp_ms >= bound_ms,
        )
        one, two = Seen(), Seen()
        by_time = {"consume_from": ConsumeFrom.timestamp(bound_ms)}
        async with (
            reader(real, tmp_path, "a", one, **by_time) as first,
            reader(real, tmp_path, "b", two, consume_from="first"),
        ):
            await two.wait(201)
            await one.wait(1)
            await eventually(lambda: first.statistics.starts == {"TIMESTAMP": 4})
            members = await real.admin.members("prices")
            assert [member.mode for member in members] == [BROADCASTING, BROADCASTING]
        assert not set(one.bodies) & set(numbered(200))
        await real.admin.update_topic("orders", add={"broker-a": 1})
        await producer.send_many("orders", numbered(100, 1000))
    again = Seen()
    async with reader(real, tmp_path, "a", again) as first:
        await again.wait(100)
        await eventually(lambda: first.statistics.starts == {"COMMITTED": 4, "NEW_QUEUE": 1})
    assert sorted(again.bodies) == sorted(numbered(100, 1000))
