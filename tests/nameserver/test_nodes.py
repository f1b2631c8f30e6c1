"""Brokers and offset services register, stay, are replaced and leave."""

import asyncio
from typing import Any

import pytest

from rockoon_core.errors import Busy, InvalidArgument, NodeNameTaken, WrongCluster
from rockoon_nameserver.nodes import RENEW_SHARE_MAX
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    OFFSET_SERVICE,
    GetRouteRequest,
    Node,
    RegisterNodeRequest,
    UnregisterNodeRequest,
)
from support.etcd import EtcdServer
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver

A = (BROKER, "broker-a")


async def register(nameserver: Nameserver, node: Node, lease_id: int = 0) -> Any:
    reply = await nameserver.call("RegisterNode", RegisterNodeRequest(node=node, lease_id=lease_id))
    assert 0 < reply.renew_seconds <= reply.ttl_seconds * RENEW_SHARE_MAX
    # Depends on the time of the call (test_rounds.py).
    reply.ClearField("renew_seconds")
    return reply


async def test_a_node_is_visible_at_the_revision_of_the_reply_and_renewals_make_none(
    own_etcd: EtcdServer,
) -> None:
    async with (
        running_nameserver(etcd=(own_etcd.endpoint,), node_lease_seconds=90) as one,
        running_nameserver(etcd=(own_etcd.endpoint,), node_lease_seconds=90) as two,
    ):
        first = await register(one, broker_node())
        assert first.ttl_seconds == 90
        # Any nameserver renews any node's lease.
        for nameserver in (two, one, two):
            assert await register(nameserver, broker_node(), first.lease_id) == first
        route = await two.call("GetRoute", GetRouteRequest(min_revision=first.revision))
        assert list(route.nodes) == [broker_node()]
        assert route.revision == first.revision
        moved = broker_node(address="elsewhere:1")
        changed = await register(two, moved, first.lease_id)
        assert changed.revision > first.revision
        route = await one.call("GetRoute", GetRouteRequest(min_revision=changed.revision))
        assert list(route.nodes) == [moved]


async def test_a_node_is_compared_with_its_cluster_before_it_is_in_the_routes(
    own_etcd: EtcdServer,
) -> None:
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        ours = (await nameserver.call("GetRoute", GetRouteRequest())).cluster_id
        assert ours != 0
        other = RegisterNodeRequest(node=broker_node(), cluster_id=ours ^ 1)
        with pytest.raises(WrongCluster, match=f"belongs to cluster {ours ^ 1:016x}"):
            await nameserver.call("RegisterNode", other)
        route = await nameserver.call("GetRoute", GetRouteRequest())
        assert list(route.nodes) == []
        differing = broker_node(shared_settings={"tls": '"mutual"'})
        request = RegisterNodeRequest(node=differing, cluster_id=ours)
        reply = await nameserver.call("RegisterNode", request)
        (difference,) = reply.differences
        assert difference.startswith('tls = "mutual", and "off" at nameserver')


async def test_a_node_that_falls_silent_leaves_when_its_lease_ends(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=1
        ) as nameserver,
        Watching(nameserver) as watching,
    ):
        first = await register(nameserver, broker_node())
        await watching.until(lambda view: A in view.nodes)
        await watching.until(lambda view: A not in view.nodes)
        # Its next renewal, with an expired lease, registers it again in the same call.
        again = await register(nameserver, broker_node(), first.lease_id)
        assert again.lease_id != first.lease_id
        await watching.until(lambda view: A in view.nodes)


async def test_a_node_that_says_goodbye_leaves_at_once(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=600
        ) as nameserver,
        Watching(nameserver) as watching,
    ):
        await register(nameserver, broker_node())
        await watching.until(lambda view: A in view.nodes)
        stranger = UnregisterNodeRequest(kind=BROKER, name="broker-a", store_id="another")
        with pytest.raises(NodeNameTaken):
            await nameserver.call("UnregisterNode", stranger)
        own = UnregisterNodeRequest(kind=BROKER, name="broker-a", store_id=broker_node().store_id)
        left = await nameserver.call("UnregisterNode", own)
        view = await watching.until(lambda view: A not in view.nodes)
        assert view.revision == left.revision
        assert (await nameserver.call("UnregisterNode", own)).revision == 0


async def test_another_store_is_refused_a_live_name(shared_etcd: EtcdServer, cluster: str) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await register(nameserver, broker_node())
        with pytest.raises(NodeNameTaken, match="broker-a:10911") as refusal:
            await register(nameserver, broker_node(store_id="another", address="thief:1"))
        assert not refusal.value.retriable
        # The offset services have their own names.
        await register(nameserver, broker_node(kind=OFFSET_SERVICE, store_id="progress"))


async def test_a_new_process_of_the_same_store_takes_over_and_the_old_one_is_over(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=2
        ) as nameserver,
        Watching(nameserver) as watching,
    ):
        old = broker_node(started_at_ms=1_000, address="old:1", place="here")
        new = broker_node(started_at_ms=2_000, address="new:1", place="here")
        first = await register(nameserver, old)
        second = await register(nameserver, new)
        # It could not have opened the store while the old one has it.
        assert second.predecessor_seconds == 0
        assert second.lease_id != first.lease_id
        await watching.until(lambda view: view.nodes.get(A) == new)
        # A renewal of the old process that was under way for the whole time.
        with pytest.raises(NodeNameTaken, match="this process is over"):
            await register(nameserver, old, first.lease_id)
        # The new lease holds the key: the end of the old one did not remove it.
        await register(nameserver, new, second.lease_id)
        assert all(len(update.removed_nodes) == 0 for update in watching.updates)


async def test_a_copy_of_a_store_waits_until_the_process_with_the_other_has_ended(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(
        etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=600
    ) as nameserver:
        old = broker_node(started_at_ms=1_000, address="old:1", place="here")
        new = broker_node(started_at_ms=2_000, address="new:1", place="there")
        third = broker_node(started_at_ms=3_000, address="third:1", place="elsewhere")
        first = await register(nameserver, old)
        second = await register(nameserver, new)
        assert second.predecessor_seconds > 500
        # Also sent to a node whose reply was lost, that was started again, or that repeats its
        # call.
        assert (await register(nameserver, new)).predecessor_seconds > 500
        again = broker_node(started_at_ms=2_500, address="new:1", place="there")
        second = await register(nameserver, again)
        assert second.predecessor_seconds > 500
        second = await register(nameserver, again, second.lease_id)
        assert second.predecessor_seconds > 500
        with pytest.raises(Busy, match="has just taken over"):
            await register(nameserver, third)
        with pytest.raises(NodeNameTaken, match="this process is over"):
            await register(nameserver, old, first.lease_id)
        # Its unregistration removes no entry of another node, and lets that one begin.
        goodbye = UnregisterNodeRequest(
            kind=BROKER, name="broker-a", store_id=old.store_id, lease_id=first.lease_id
        )
        assert (await nameserver.call("UnregisterNode", goodbye)).revision == 0
        second = await register(nameserver, again, second.lease_id)
        assert second.predecessor_seconds == 0
        assert (await register(nameserver, third)).predecessor_seconds > 500


async def test_of_many_stores_that_want_a_name_at_once_one_gets_it(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as one,
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as two,
    ):
        won: list[Node] = []

        async def attempt(nameserver: Nameserver, node: Node) -> None:
            try:
                await register(nameserver, node)
            except NodeNameTaken:
                return
            won.append(node)

        async with asyncio.TaskGroup() as tasks:
            for number in range(12):
                node = broker_node(store_id=f"store-{number}")
                tasks.create_task(attempt((one, two)[number % 2], node))
        assert len(won) == 1
        async with Watching(two) as watching:
            view = await watching.until(lambda view: view.nodes)
        assert list(view.nodes.values()) == won


async def test_a_cluster_has_one_offset_service_whatever_the_others_are_called(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        active = broker_node("offset-a", kind=OFFSET_SERVICE)
        standby = broker_node("offset-b", kind=OFFSET_SERVICE)
        first = await register(nameserver, active)
        with pytest.raises(NodeNameTaken, match="has only one"):
            await register(nameserver, standby)
        assert await register(nameserver, active, first.lease_id) == first
        await nameserver.call(
            "UnregisterNode",
            UnregisterNodeRequest(kind=OFFSET_SERVICE, name="offset-a", store_id=active.store_id),
        )
        await register(nameserver, standby)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 0},
        {"name": ""},
        {"name": "a/b"},
        {"address": "no-port"},
        {"address": ""},
        {"store_id": ""},
        {"external_address": "outside"},
        {"ip_address": "broker-a.example"},
    ],
)
async def test_a_node_that_lacks_something_is_refused(
    shared_etcd: EtcdServer, cluster: str, wrong: dict[str, Any]
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        with pytest.raises(InvalidArgument):
            await register(nameserver, broker_node(**wrong))
