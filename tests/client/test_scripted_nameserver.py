"""The scripted nameserver's routes equal those of the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
from grpc import aio

from rockoon_core.errors import NameserverUnavailable
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import LEVEL
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from support.etcd import EtcdServer
from support.nameserver import running_nameserver
from support.scripted_nameserver import ScriptedNameserver
from support.waiting import DEADLINE_SECONDS


class Contender(Protocol):
    """A nameserver under test: its stub, and functions that change its routes."""

    stub: Any

    async def create(self, topic: str) -> int: ...
    async def delete(self, topic: str) -> int: ...


class Scripted:
    def __init__(self, nameserver: ScriptedNameserver, stub: Any) -> None:
        self.stub, self._nameserver = stub, nameserver

    async def create(self, topic: str) -> int:
        return self._nameserver.put_topic(topic, {"broker-a": 2})

    async def delete(self, topic: str) -> int:
        return self._nameserver.delete_topic(topic)


class Real:
    def __init__(self, stub: Any) -> None:
        self.stub = stub

    async def create(self, topic: str) -> int:
        request = pb.CreateTopicRequest(
            config=pb.TopicConfig(name=topic),
            placements=[pb.Placement(broker="broker-a", queues=2)],
        )
        return int((await self.stub.CreateTopic(request)).revision)

    async def delete(self, topic: str) -> int:
        return int((await self.stub.DeleteTopic(pb.DeleteTopicRequest(name=topic))).revision)


@asynccontextmanager
async def scripted(_: Path) -> AsyncIterator[Contender]:
    async with (
        ScriptedNameserver() as nameserver,
        aio.insecure_channel(nameserver.address) as channel,
    ):
        nameserver.put_node("broker-a", "a:1")
        yield Scripted(nameserver, NameServerStub(channel))


@asynccontextmanager
async def real(directory: Path) -> AsyncIterator[Contender]:
    with EtcdServer(directory) as etcd:
        async with running_nameserver(etcd=(etcd.endpoint,)) as nameserver:
            node = pb.Node(
                kind=pb.BROKER, name="broker-a", address="a:1", store_id="s", level=LEVEL
            )
            await nameserver.stub.RegisterNode(pb.RegisterNodeRequest(node=node))
            yield Real(nameserver.stub)


@pytest.fixture(params=[scripted, real])
async def contender(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Contender]:
    async with request.param(tmp_path) as made:
        yield made


async def updates_until(call: Any, revision: int) -> list[pb.RouteUpdate]:
    """Return the updates of a watch up to a revision."""
    told: list[pb.RouteUpdate] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not told or told[-1].revision < revision:
            told.append(await call.read())
    return told


def names(updates: list[pb.RouteUpdate]) -> list[str]:
    return [topic.config.name for update in updates for topic in update.topics]


async def test_get_route_lists_what_was_asked_for_and_exists(contender: Contender) -> None:
    await contender.create("orders")
    revision = await contender.create("payments")
    request = pb.GetRouteRequest(topics=["orders", "absent"], min_revision=revision)
    reply = await contender.stub.GetRoute(request)
    assert names([reply]) == ["orders"]
    assert reply.revision >= revision
    assert reply.cluster == "rockoon"
    assert [node.name for node in reply.nodes] == ["broker-a"]
    (block,) = reply.topics[0].blocks
    assert (block.broker, block.first_queue_id, block.queues) == ("broker-a", 0, 2)
    assert 0 < block.create_revision <= revision


async def test_a_revision_that_is_not_there_yet_is_refused(contender: Contender) -> None:
    revision = await contender.create("orders")
    with pytest.raises(grpc.RpcError) as refused:
        await contender.stub.GetRoute(pb.GetRouteRequest(min_revision=revision + 100))
    error = from_rpc_error(refused.value, NameserverUnavailable, address="x")
    assert error.name == "ROUTE_NOT_REACHED"
    assert error.retriable


async def test_a_watch_begins_with_a_snapshot_and_tells_of_its_topics_and_all_nodes(
    contender: Contender,
) -> None:
    await contender.create("orders")
    call = contender.stub.WatchRoutes(pb.WatchRoutesRequest(topics=["orders", "later"]))
    first = await call.read()
    assert first.snapshot
    assert names([first]) == ["orders"]
    assert [node.name for node in first.nodes] == ["broker-a"]
    await contender.create("payments")
    told = await updates_until(call, await contender.create("later"))
    assert names(told) == ["later"]
    assert not any(update.snapshot for update in told)
    told = await updates_until(call, await contender.delete("orders"))
    assert [name for update in told for name in update.removed_topics] == ["orders"]
    call.cancel()


async def test_a_watch_goes_on_behind_a_revision(contender: Contender) -> None:
    before = await contender.create("orders")
    after = await contender.create("payments")
    request = pb.WatchRoutesRequest(topics=["orders", "payments"], after_revision=before)
    call = contender.stub.WatchRoutes(request)
    told = await updates_until(call, after)
    assert names(told) == ["payments"]
    assert not any(update.snapshot for update in told)
    call.cancel()
