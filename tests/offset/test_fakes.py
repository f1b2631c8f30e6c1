"""The fakes that other tests use, compared with the real services."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from rockoon_core.errors import NameserverUnavailable
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import LEVEL
from rockoon_format.record import decode_record
from rockoon_proto.v1 import broker_pb2 as bpb
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from support.broker import batch, running_broker
from support.etcd import EtcdServer
from support.fake_broker import FakeBroker
from support.fake_nameserver import FakeNameserver
from support.nameserver import running_nameserver
from support.waiting import DEADLINE_SECONDS


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["fake", "real"])
async def nameserver(
    request: pytest.FixtureRequest, etcd: EtcdServer, tmp_path: Path
) -> AsyncIterator[Any]:
    """Return a stub to a nameserver of either kind, with one broker registered."""
    if request.param == "fake":
        async with FakeNameserver() as fake, aio.insecure_channel(fake.address) as channel:
            yield await with_broker(NameServerStub(channel))
        return
    cluster = tmp_path.name.replace("_", "-")[-40:].strip("-[]")
    async with (
        running_nameserver(etcd=(etcd.endpoint,), cluster=cluster) as real,
        aio.insecure_channel(real.address) as channel,
    ):
        yield await with_broker(NameServerStub(channel))


async def with_broker(stub: Any) -> Any:
    node = ns.Node(
        kind=ns.BROKER, name="broker-a", address="127.0.0.1:1", store_id="s1", level=LEVEL
    )
    await stub.RegisterNode(ns.RegisterNodeRequest(node=node))
    return stub


def placed(topic: str, queues: int = 2) -> ns.CreateTopicRequest:
    return ns.CreateTopicRequest(
        config=ns.TopicConfig(name=topic),
        placements=[ns.Placement(broker="broker-a", queues=queues)],
    )


async def refused(call: Any) -> int:
    with pytest.raises(grpc.RpcError) as failure:
        await call
    error = from_rpc_error(failure.value, NameserverUnavailable, address="")
    return int(error.code)


async def told(watch: Any, revision: int) -> list[ns.RouteUpdate]:
    """Return the updates up to a revision."""
    updates: list[ns.RouteUpdate] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not updates or updates[-1].revision < revision:
            updates.append(await watch.read())
    return updates


def watch(stub: Any, after: int = 0) -> Any:
    return stub.WatchRoutes(ns.WatchRoutesRequest(include_groups=True, after_revision=after))


async def test_create_revisions_and_subscriptions_are_ordered_by_revision(nameserver: Any) -> None:
    topic = (await nameserver.CreateTopic(placed("orders"))).topic
    subscribe = ns.SubscribeRequest(group="billing", topic="orders", create_group=True)
    first = await nameserver.Subscribe(subscribe)
    assert first.created
    again = await nameserver.Subscribe(subscribe)
    assert not again.created
    assert again.subscription == first.subscription
    assert again.group == first.group
    more = ns.UpdateTopicRequest(name="orders", add=[ns.Placement(broker="broker-a", queues=1)])
    grown = (await nameserver.UpdateTopic(more)).topic
    blocks = [(block.first_queue_id, block.queues) for block in grown.blocks]
    assert blocks == [(0, 2), (2, 1)]
    assert (
        topic.blocks[0].create_revision
        == grown.blocks[0].create_revision
        < first.subscription.revision
        < grown.blocks[1].create_revision
    )
    assert grown.incarnation == topic.incarnation
    assert grown.modified_revision > topic.modified_revision


async def test_a_groups_own_topics_are_made_when_asked_for_and_go_with_it(nameserver: Any) -> None:
    def wanted(kind: ns.GroupTopic, broker: str = "") -> ns.ProvideGroupTopicRequest:
        return ns.ProvideGroupTopicRequest(group="billing", topic=kind, broker=broker)

    assert await refused(nameserver.ProvideGroupTopic(wanted(ns.GROUP_RETRY))) == (
        Error.GROUP_NOT_FOUND
    )
    config = ns.GroupConfig(name="billing", retry_queues=2)
    await nameserver.CreateGroup(ns.CreateGroupRequest(config=config))
    first = await nameserver.ProvideGroupTopic(wanted(ns.GROUP_RETRY))
    assert first.created
    assert first.topic.config == ns.TopicConfig(name="%RETRY%billing", permissions=6)
    assert [(block.broker, block.queues) for block in first.topic.blocks] == [("broker-a", 2)]
    again = await nameserver.ProvideGroupTopic(wanted(ns.GROUP_RETRY))
    assert (again.created, again.topic) == (False, first.topic)
    late = await nameserver.ProvideGroupTopic(wanted(ns.GROUP_RETRY, "broker-z"))
    assert [(block.broker, block.queues) for block in late.topic.blocks] == [
        ("broker-a", 2),
        ("broker-z", 2),
    ]
    more = wanted(ns.GROUP_RETRY, "broker-z")
    more.queues = 3
    grown = await nameserver.ProvideGroupTopic(more)
    assert [(each.broker, each.first_queue_id, each.queues) for each in grown.topic.blocks] == [
        ("broker-a", 0, 2),
        ("broker-z", 0, 2),
        ("broker-z", 2, 1),
    ]
    dead = await nameserver.ProvideGroupTopic(wanted(ns.GROUP_DEAD_LETTERS, "broker-z"))
    assert [(block.broker, block.queues) for block in dead.topic.blocks] == [("broker-z", 1)]
    deleted = await nameserver.DeleteGroup(ns.DeleteGroupRequest(name="billing"))
    updates = await told(watch(nameserver, after=dead.revision), deleted.revision)
    gone = sorted(name for update in updates for name in update.removed_topics)
    assert gone == ["%DLQ%billing", "%RETRY%billing"]


async def test_a_watch_begins_with_a_snapshot_and_goes_on_from_a_revision(nameserver: Any) -> None:
    await nameserver.CreateTopic(placed("orders"))
    subscribe = ns.SubscribeRequest(group="billing", topic="orders", create_group=True)
    revision = (await nameserver.Subscribe(subscribe)).revision
    first = watch(nameserver)
    updates = await told(first, revision)
    assert updates[0].snapshot
    assert [topic.config.name for topic in updates[-1].topics or updates[0].topics] == ["orders"]
    first.cancel()
    deleted = await nameserver.DeleteTopic(ns.DeleteTopicRequest(name="orders"))
    resumed = watch(nameserver, after=revision)
    later = await told(resumed, deleted.revision)
    assert not later[0].snapshot
    assert [name for update in later for name in update.removed_topics] == ["orders"]
    assert [
        (entry.group, entry.topic) for update in later for entry in update.removed_subscriptions
    ] == [("billing", "orders")]
    resumed.cancel()


async def test_deletions_are_noted_for_who_was_away_as_for_who_follows(nameserver: Any) -> None:
    await nameserver.CreateTopic(placed("orders"))
    config = ns.GroupConfig(name="billing")
    known = await nameserver.CreateGroup(ns.CreateGroupRequest(config=config))
    topic_gone = (await nameserver.DeleteTopic(ns.DeleteTopicRequest(name="orders"))).revision
    group_gone = (await nameserver.DeleteGroup(ns.DeleteGroupRequest(name="billing"))).revision
    # Created again; the update has this together with the deletion.
    last = (await nameserver.CreateTopic(placed("orders"))).revision
    expected = {
        ("orders", "", topic_gone),
        ("", "billing", group_gone),
        ("%RETRY%billing", "", group_gone),
        ("%DLQ%billing", "", group_gone),
    }
    histories = set()
    for after in (0, known.revision):
        updates = await told(watch(nameserver, after), last)
        noted = {
            (each.topic, each.group, each.revision)
            for update in updates
            for each in update.deletions
        }
        assert noted == expected
        assert {update.deletions_since for update in updates} < set(range(1, known.revision))
        histories |= {update.history for update in updates}
    (history,) = histories
    # State of another history is replaced, even if it is newer.
    request = ns.WatchRoutesRequest(after_revision=last, history=history + 1)
    (update,) = await told(nameserver.WatchRoutes(request), last)
    assert update.snapshot
    assert not update.etcd_went_back


async def test_who_has_seen_a_revision_that_etcd_lacks_is_told_that_it_went_back(
    nameserver: Any,
) -> None:
    topic = await nameserver.CreateTopic(placed("orders"))
    request = ns.WatchRoutesRequest(seen_revision=topic.revision + 100)
    called = nameserver.WatchRoutes(request)
    async with asyncio.timeout(DEADLINE_SECONDS):
        update = await called.read()
        while not update.etcd_went_back:
            update = await called.read()
    assert update.snapshot
    called.cancel()


async def test_the_fake_tells_what_changes_while_its_snapshot_is_on_the_way() -> None:
    # It continues after the snapshot only on the next read, as with a fast reader.
    fake = FakeNameserver()
    watch = aiter(fake.WatchRoutes(ns.WatchRoutesRequest(), None))
    assert not (await anext(watch)).topics
    await fake.CreateTopic(placed("T"), None)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert [topic.config.name for topic in (await anext(watch)).topics] == ["T"]


async def test_what_is_created_again_is_another_incarnation(nameserver: Any) -> None:
    topic = (await nameserver.CreateTopic(placed("orders"))).topic
    config = ns.GroupConfig(name="billing")
    group = (await nameserver.CreateGroup(ns.CreateGroupRequest(config=config))).group
    await nameserver.DeleteTopic(ns.DeleteTopicRequest(name="orders"))
    await nameserver.DeleteGroup(ns.DeleteGroupRequest(name="billing"))
    again = (await nameserver.CreateTopic(placed("orders"))).topic
    assert again.incarnation > topic.incarnation
    assert again.blocks[0].create_revision > topic.blocks[0].create_revision
    fresh = (await nameserver.CreateGroup(ns.CreateGroupRequest(config=config))).group
    assert fresh.incarnation > group.incarnation


async def test_what_does_not_exist_is_refused(nameserver: Any) -> None:
    subscribe = ns.SubscribeRequest(group="billing", topic="nowhere", create_group=True)
    assert await refused(nameserver.Subscribe(subscribe)) == Error.TOPIC_NOT_FOUND
    gone = ns.DeleteGroupRequest(name="billing")
    assert await refused(nameserver.DeleteGroup(gone)) == Error.GROUP_NOT_FOUND
    await nameserver.CreateTopic(placed("orders"))
    assert await refused(nameserver.CreateTopic(placed("orders"))) == Error.TOPIC_EXISTS


async def test_a_cluster_has_one_offset_service(nameserver: Any) -> None:
    def node(name: str, store_id: str) -> ns.RegisterNodeRequest:
        return ns.RegisterNodeRequest(
            node=ns.Node(
                kind=ns.OFFSET_SERVICE,
                name=name,
                address="127.0.0.1:2",
                store_id=store_id,
                level=LEVEL,
            )
        )

    reply = await nameserver.RegisterNode(node("offset", "one"))
    assert reply.lease_id
    assert 0 < reply.renew_seconds < reply.ttl_seconds
    assert await refused(nameserver.RegisterNode(node("offset", "two"))) == Error.NODE_NAME_TAKEN
    assert await refused(nameserver.RegisterNode(node("other", "two"))) == Error.NODE_NAME_TAKEN
    await nameserver.RegisterNode(node("offset", "one"))
    goodbye = ns.UnregisterNodeRequest(kind=ns.OFFSET_SERVICE, name="offset", store_id="one")
    await nameserver.UnregisterNode(goodbye)
    await nameserver.RegisterNode(node("other", "two"))


class BrokerWorld:
    """A broker with topic `orders` of two queues; three messages in the first."""

    def __init__(self, stub: Any, times_ms: list[int]) -> None:
        self.stub = stub
        self.times_ms = times_ms


@pytest.fixture(params=["fake", "real"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with FakeNameserver() as nameserver:
        if request.param == "fake":
            async with FakeBroker() as fake, aio.insecure_channel(fake.address) as channel:
                fake.queue("orders", 1)
                fake.queue("orders", 0).times_ms = [1000, 2000, 2000]
                yield BrokerWorld(BrokerStub(channel), [1000, 2000, 2000])
            return
        async with running_broker(tmp_path / "store", [nameserver.address]) as real:
            created = await nameserver.CreateTopic(placed("orders"), None)
            times = []
            for _ in range(3):
                appended = await real.call(
                    "Append", batch("orders", 0, b"x", route_revision=created.revision)
                )
                times.append(appended.appended.store_timestamp_ms)
            yield BrokerWorld(real.stub, times)


def refs(*queue_ids: int) -> list[bpb.BrokerQueue]:
    return [bpb.BrokerQueue(topic="orders", queue_id=queue_id) for queue_id in queue_ids]


async def test_a_queue_s_state(broker: BrokerWorld) -> None:
    reply = await broker.stub.QueueStatus(bpb.QueueStatusRequest(queues=refs(0, 1, 9)))
    full, empty, unknown = reply.queues
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert full.first_store_timestamp_ms == broker.times_ms[0]
    assert full.last_store_timestamp_ms == broker.times_ms[-1]
    assert full.HasField("first_in_memory_by_distance")
    assert full.first_in_memory_by_distance
    assert (empty.min_offset, empty.max_offset) == (0, 0)
    assert not empty.HasField("first_in_memory_by_distance")
    assert not empty.HasField("first_store_timestamp_ms")
    assert unknown.error.code == Error.QUEUE_NOT_FOUND
    assert reply.as_of_ms >= broker.times_ms[-1]


async def test_the_fate_of_a_message_in_each_queue(broker: BrokerWorld) -> None:
    def asked(*offsets: int) -> bpb.QueueStatusRequest:
        return bpb.QueueStatusRequest(queues=refs(0, 0, 0, 1, 9), offsets=offsets)

    reply = await broker.stub.QueueStatus(asked(0, 2, 3, 0, 0))
    oldest, newest, end, empty, unknown = reply.queues
    for state, time_ms in ((oldest, broker.times_ms[0]), (newest, broker.times_ms[2])):
        assert state.asked_store_timestamp_ms == time_ms
        assert state.asked_loss_at_ms >= reply.as_of_ms
        assert state.asked_loss_cause != bpb.LOSS_CAUSE_UNSPECIFIED
    for state in (end, empty, unknown):
        assert not state.HasField("asked_store_timestamp_ms")
        assert not state.HasField("asked_loss_at_ms")
        assert state.asked_loss_cause == bpb.LOSS_CAUSE_UNSPECIFIED
    assert unknown.error.code == Error.QUEUE_NOT_FOUND


async def test_the_first_message_at_or_after_a_time(broker: BrokerWorld) -> None:
    async def search(time_ms: int) -> list[int]:
        request = bpb.SearchOffsetRequest(queues=refs(0, 1), timestamp_ms=time_ms)
        return [found.offset for found in (await broker.stub.SearchOffset(request)).offsets]

    assert await search(0) == [0, 0]
    first_of_last = broker.times_ms.index(broker.times_ms[-1])
    assert await search(broker.times_ms[-1]) == [first_of_last, 0]
    assert await search(broker.times_ms[-1] + 1) == [3, 0]


async def test_one_message_can_be_read(broker: BrokerWorld) -> None:
    wanted = bpb.QueueRange(topic="orders", queue_id=0, offset=1, messages=1)
    reply = await broker.stub.Read(bpb.ReadRequest(range=wanted))
    record = decode_record(reply.frames, check_crc=False)
    assert (record.queue_offset, record.store_timestamp_ms) == (1, broker.times_ms[1])
    wanted.offset = 3
    assert await refused(broker.stub.Read(bpb.ReadRequest(range=wanted))) == Error.MESSAGE_NOT_FOUND
