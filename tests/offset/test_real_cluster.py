"""The most important scenarios again, with a real nameserver, a real etcd and a real broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import running

from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import Stop
from support.broker import RunningBroker, batch, running_broker
from support.etcd import EtcdServer
from support.nameserver import Nameserver, running_nameserver

PLACED = [ns.Placement(broker="broker-a", queues=1)]


class World:
    """All services, and the latest known revision."""

    def __init__(self, nameserver: Nameserver, broker: RunningBroker, settings: Any) -> None:
        self.nameserver = nameserver
        self.broker = broker
        self.settings = settings
        self.revision = 0

    async def change(self, method: str, request: Any) -> Any:
        reply = await self.nameserver.call(method, request)
        self.revision = reply.revision
        return reply

    async def send(self, queue_id: int, count: int) -> None:
        bodies = [b"x"] * count
        wanted = batch("orders", queue_id, *bodies, route_revision=self.revision)
        appended = await self.broker.call("Append", wanted)
        assert not appended.HasField("error"), appended.error.message

    async def start(self, queue_id: int) -> tuple[str, int]:
        """Start a service, ask it for a start position, and stop it."""
        async with (
            running(self.settings, Stop()) as address,
            aio.insecure_channel(address) as channel,
        ):
            stub: Any = OffsetServiceStub(channel)
            queue = pb.QueueRef(topic="orders", broker="broker-a", queue_id=queue_id)
            request = pb.ResolveRequest(
                group="billing", queues=[queue], route_revision=self.revision
            )
            (start,) = (await stub.Resolve(request)).starts
            assert not start.HasField("error"), start.error.message
            return pb.StartReason.Name(start.reason), start.offset


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    etcd = EtcdServer(tmp_path)
    await asyncio.to_thread(etcd.start)
    try:
        async with (
            running_nameserver(etcd=(etcd.endpoint,), node_lease_seconds=2) as nameserver,
            running_broker(tmp_path / "broker", [nameserver.address]) as broker,
        ):
            settings = OffsetSettings(
                listen="127.0.0.1:0",
                nameservers=(nameserver.address,),
                store_path=tmp_path / "offset",
            )
            yield World(nameserver, broker, settings)
    finally:
        etcd.kill()


async def test_where_a_group_starts_over_the_life_of_a_topic(world: World) -> None:
    config = ns.TopicConfig(name="orders")
    await world.change("CreateTopic", ns.CreateTopicRequest(config=config, placements=PLACED))
    group = ns.GroupConfig(name="billing")
    await world.change("CreateGroup", ns.CreateGroupRequest(config=group))
    # LAST on an empty queue, then a stop, then messages, then a start.
    assert await world.start(0) == ("LAST", 0)
    await world.send(0, 5)
    assert await world.start(0) == ("COMMITTED", 0)
    # A queue that was added while no process ran.
    await world.change("UpdateTopic", ns.UpdateTopicRequest(name="orders", add=PLACED))
    await world.send(1, 3)
    assert await world.start(1) == ("NEW_QUEUE", 0)
    # Deleted and created again while no process ran.
    await world.change("DeleteTopic", ns.DeleteTopicRequest(name="orders"))
    await world.change("CreateTopic", ns.CreateTopicRequest(config=config, placements=PLACED))
    await world.send(0, 2)
    assert await world.start(0) == ("OTHER_INCARNATION", 0)
    assert await world.start(0) == ("COMMITTED", 0)
