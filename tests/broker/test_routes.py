"""A broker and the routes: served topics, their updates, and operation without nameservers."""

import asyncio
from pathlib import Path

import pytest

from rockoon_core import errors
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1 import nameserver_pb2
from rockoon_runtime.process import ExitStatus, Fatal
from support.broker import RunningBroker, batch, running_broker
from support.broker_routes import BrokerRoutes


async def test_a_broker_is_in_the_routes_while_it_serves(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        node = nameserver.nodes[nameserver_pb2.BROKER, "broker-a"]
        assert node.address == broker.address
        assert node.store_id
        assert node.version
        await nameserver.wait_until(lambda: nameserver.registrations >= 3)
    assert nameserver.nodes == {}


async def test_others_are_told_the_advertised_address(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    settings = {"advertise": "127.0.0.1:4711"}
    stop_at_once = running_broker(tmp_path, [nameserver.address], **settings)
    async with stop_at_once as broker:
        assert nameserver.nodes[nameserver_pb2.BROKER, "broker-a"].address == broker.address
        assert broker.address == "127.0.0.1:4711"


async def test_a_store_keeps_its_identity(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    found = []
    for _ in range(2):
        async with running_broker(tmp_path / "one", [nameserver.address]):
            found.append(nameserver.nodes[nameserver_pb2.BROKER, "broker-a"].store_id)
    async with running_broker(tmp_path / "two", [nameserver.address]):
        found.append(nameserver.nodes[nameserver_pb2.BROKER, "broker-a"].store_id)
    assert found[0] == found[1] != found[2]


async def test_a_broker_whose_name_is_taken_ends_with_that_sentence(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path / "one", [nameserver.address]) as first:
        await refused(tmp_path / "two", nameserver, "'broker-a' is the name of a live node")
        await first.describe()
        assert nameserver.node_names == {"broker-a"}


async def test_a_broker_that_lost_its_name_meanwhile_ends(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        nameserver.refuse_register = errors.NodeNameTaken(name="broker-a", address="there:1")
        assert "at there:1" in await broker.stop.wait()
    assert broker.stop.fatal is not None
    assert broker.stop.fatal.status is ExitStatus.CONFIGURATION


async def test_a_nameserver_of_another_cluster_ends_the_start(tmp_path: Path) -> None:
    other = BrokerRoutes()
    other.cluster = "other"
    async with other:
        await refused(tmp_path, other, "this is cluster 'other'")


async def refused(root: Path, nameserver: BrokerRoutes, text: str) -> None:
    with pytest.raises(BaseExceptionGroup) as failure:
        async with running_broker(root, [nameserver.address]):
            pass
    (cause,) = failure.value.exceptions
    assert isinstance(cause, Fatal)
    assert cause.status is ExitStatus.CONFIGURATION
    assert text in str(cause)


async def test_a_dead_nameserver_is_passed_over(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    dead = "127.0.0.1:1"
    async with running_broker(tmp_path, [dead, nameserver.address]) as broker:
        await nameserver.wait_until(lambda: nameserver.nodes)
        await broker.until(lambda seen: seen.topics == 1)
        await broker.append("T", 0, b"x")


async def test_a_broker_serves_on_while_every_nameserver_is_away(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0")
        await nameserver.stop()
        await broker.append("T", 0, b"1")
        assert await broker.bodies("T") == [b"0", b"1"]

        nameserver.nodes.clear()
        await nameserver.start()
        await nameserver.wait_until(lambda: nameserver.nodes)
        await nameserver.create_topic("U", {"broker-a": 1})
        await broker.until(lambda seen: seen.topics == 2)


async def test_a_restarted_broker_serves_what_it_knew_while_every_nameserver_is_away(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    await nameserver.create_topic("ReadOnly", {"broker-a": 1}, permissions=4)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 1, b"0")
    await nameserver.stop()
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 1, b"1")
        assert await broker.bodies("T", 1) == [b"0", b"1"]
        with pytest.raises(errors.TopicNotWritable):
            await broker.append("ReadOnly", 0, b"x")
        with pytest.raises(errors.QueueNotFound):
            await broker.append("T", 2, b"x")
    await nameserver.start()


async def test_a_topic_that_a_caller_has_seen_is_waited_for(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        nameserver.telling.clear()
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        with pytest.raises(errors.TopicNotFound):
            await broker.append("T", 0, b"x")
        appending = tasks.create_task(broker.append("T", 0, b"0", route_revision=revision))
        pulling = tasks.create_task(broker.pull("T", route_revision=revision, wait_ms=9000))
        queue = pb.BrokerQueue(topic="T")
        asking = tasks.create_task(
            broker.call(
                "QueueStatus", pb.QueueStatusRequest(queues=[queue], route_revision=revision)
            )
        )
        await broker.describe()
        nameserver.telling.set()
        assert (await appending).first_queue_offset == 0
        assert (await pulling).status == pb.FOUND
        assert not (await asking).queues[0].HasField("error")


async def test_a_topic_that_the_sender_has_seen_is_not_denied_by_a_broker_that_is_behind(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """For a producer "no such topic" is final, and it would discard its messages."""
    revision = await nameserver.create_topic("U", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.RouteNotReached) as behind:
            await broker.append("T", 0, b"0", route_revision=1 << 40)
        assert asyncio.get_running_loop().time() - began > 1.5
        assert behind.value.retriable
        with pytest.raises(errors.RouteNotReached):
            await broker.pull("U", 7, route_revision=1 << 40)
        with pytest.raises(errors.TopicNotFound):
            await broker.append("T", 0, b"0", route_revision=revision)


async def test_a_known_topic_does_not_wait_for_routes_when_no_nameserver_could_tell(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """Otherwise every append after the start of an outage would wait in vain."""
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await nameserver.stop()
        began = asyncio.get_running_loop().time()
        for _ in range(20):
            await broker.append("T", 0, b"0", route_revision=1 << 40)
        # Half of the time if each append waited.
        assert asyncio.get_running_loop().time() - began < 20
        await nameserver.start()


async def test_what_is_sent_to_a_re_created_topic_is_not_lost_with_the_old_one(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """The producer has seen the new topic; the broker still knows only the old one."""
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.append("T", 0, b"old")
        nameserver.telling.clear()
        await nameserver.delete_topic("T")
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        appending = tasks.create_task(broker.append("T", 0, b"new", route_revision=revision))
        await broker.describe()
        nameserver.telling.set()
        assert (await appending).first_queue_offset == 0
        assert await broker.bodies("T") == [b"new"]


async def test_nothing_is_acknowledged_for_a_topic_that_may_be_another_by_now(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"old")
        nameserver.telling.clear()
        await nameserver.delete_topic("T")
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        for _ in range(2):
            with pytest.raises(errors.NotReady):
                await broker.append("T", 0, b"too early", route_revision=revision)
        nameserver.telling.set()
        await broker.until(lambda seen: seen.route_revision >= revision)
        await broker.append("T", 0, b"new", route_revision=revision)
        assert await broker.bodies("T") == [b"new"]


async def test_permissions_change_while_running(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0")
        revision = await nameserver.permit("T", 4)
        with pytest.raises(errors.TopicNotWritable):
            await broker.append("T", 0, b"1", route_revision=revision)
        revision = await nameserver.permit("T", 2)
        with pytest.raises(errors.TopicNotReadable):
            await broker.pull("T", route_revision=revision)


async def test_a_deleted_topic_begins_anew_when_it_is_created_again(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("Other", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"old")
        await broker.append("Other", 0, b"kept")
        revision = await nameserver.delete_topic("T")
        await broker.until(lambda seen: seen.route_revision >= revision)
        with pytest.raises(errors.TopicNotFound):
            await broker.pull("T")
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        appended = await broker.append("T", 0, b"new", route_revision=revision)
        assert appended.first_queue_offset == 0
        assert await broker.bodies("T") == [b"new"]
        assert await broker.bodies("Other") == [b"kept"]


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
async def test_a_topic_deleted_while_the_broker_was_away_is_dropped_before_it_serves(
    tmp_path: Path, nameserver: BrokerRoutes, again: bool
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("Other", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"old")
        await broker.append("Other", 0, b"kept")
    await nameserver.delete_topic("T")
    if again:
        await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        if again:
            assert (await broker.pull("T")).max_offset == 0
            assert (await broker.append("T", 0, b"new")).first_queue_offset == 0
        else:
            with pytest.raises(errors.TopicNotFound):
                await broker.pull("T")
        assert await broker.bodies("Other") == [b"kept"]
    # And it stays so, whatever records the log still has.
    await nameserver.stop()
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        if again:
            assert await broker.bodies("T") == [b"new"]
    await nameserver.start()


@pytest.mark.parametrize("etcd_cluster_id", [77, 78], ids=["same identity", "another"])
async def test_an_etcd_that_lost_its_data_costs_no_messages(
    tmp_path: Path, nameserver: BrokerRoutes, etcd_cluster_id: int
) -> None:
    """An etcd that is created again in the same way has the same identity, but starts its revisions
    from the beginning."""
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0")
    nameserver.lose_everything(etcd_cluster_id)
    if etcd_cluster_id != 77:
        for _ in range(20):
            await nameserver.create_topic(f"Grown{nameserver.revision}", {"broker-b": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"0"]
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        assert (await broker.append("T", 0, b"1", route_revision=revision)).first_queue_offset == 1
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"0", b"1"]


async def test_a_stream_waits_for_a_new_topic_without_losing_its_order(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        nameserver.telling.clear()
        revision = await nameserver.create_topic("U", {"broker-a": 1})
        call = broker.stub.AppendStream()
        await call.write(batch("T", 0, b"0", request_id=1))
        await call.write(batch("U", 0, b"1", request_id=2, route_revision=revision))
        await call.write(batch("T", 0, b"2", request_id=3))
        await call.done_writing()
        assert (await call.read()).request_id == 1
        nameserver.telling.set()
        assert [(await call.read()).request_id for _ in range(2)] == [2, 3]
        assert await appended_everywhere(broker) == [b"0", b"2", b"1"]


async def appended_everywhere(broker: RunningBroker) -> list[bytes]:
    return [*await broker.bodies("T"), *await broker.bodies("U")]
