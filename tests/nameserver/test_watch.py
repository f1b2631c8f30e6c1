"""A watcher has the content of etcd in the end, whatever breaks in between."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from rockoon_core.errors import NameserverUnavailable, WrongCluster
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import LEVEL
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    CreateGroupRequest,
    DeleteGroupRequest,
    GetRouteRequest,
    GroupConfig,
    ListGroupsRequest,
    RegisterNodeRequest,
    RouteUpdate,
    UnregisterNodeRequest,
    UpdateGroupRequest,
)
from support.etcd import EtcdServer
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver
from support.tcp_gate import TcpGate
from support.waiting import DEADLINE_SECONDS


async def create_group(nameserver: Nameserver, name: str) -> Any:
    request = CreateGroupRequest(config=GroupConfig(name=name))
    return await nameserver.call("CreateGroup", request)


async def delete_group(nameserver: Nameserver, name: str) -> Any:
    return await nameserver.call("DeleteGroup", DeleteGroupRequest(name=name))


async def test_who_has_changed_something_reads_it_at_the_same_nameserver(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        for number in range(50):
            await create_group(nameserver, f"group-{number}")
            listed = await nameserver.call("ListGroups", ListGroupsRequest())
            assert len(listed.groups) == number + 1


async def test_the_first_update_is_a_snapshot_and_the_next_ones_are_changes(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        first = await create_group(nameserver, "a")
        async with Watching(nameserver) as watching:
            update = await watching.next()
            assert update.snapshot
            assert update.etcd_reachable
            assert update.cluster == cluster
            assert update.etcd_cluster_id != 0
            assert update.revision >= first.revision
            etcd_cluster_id, cluster_id = update.etcd_cluster_id, update.cluster_id
            assert cluster_id not in (0, etcd_cluster_id)
            second = await create_group(nameserver, "b")
            update = await watching.next()
            assert update.deletions_since
            update.ClearField("deletions_since")
            update.ClearField("history")
            assert update == RouteUpdate(
                revision=second.revision,
                groups=[second.group],
                etcd_reachable=True,
                cluster=cluster,
                etcd_cluster_id=etcd_cluster_id,
                cluster_id=cluster_id,
                level=LEVEL,
            )


async def test_a_watch_is_resumed_at_another_nameserver_without_a_snapshot(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as one,
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as two,
    ):
        await create_group(one, "a")
        await create_group(one, "b")
        async with Watching(one) as watching:
            view = await watching.until(lambda view: len(view.groups) == 2)
        await delete_group(two, "a")
        await create_group(two, "c")
        async with Watching(two, view) as watching:
            await watching.until(lambda view: "c" in view.groups)
        assert sorted(view.groups) == ["b", "c"]
        assert view.snapshots == 1


async def test_a_reader_that_is_ahead_of_this_nameserver_is_not_sent_into_the_past(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        TcpGate(shared_etcd.endpoint) as gate,
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as ahead,
        running_nameserver(etcd=(gate.address,), cluster=cluster) as behind,
    ):
        async with Watching(ahead) as watching:
            await create_group(ahead, "a")
            view = await watching.until(lambda view: "a" in view.groups)
            gate.freeze()
            await create_group(ahead, "b")
            await watching.until(lambda view: "b" in view.groups)
        held = view.revision
        async with Watching(behind, view) as watching:
            update = await watching.next()
            assert update.revision == held
            assert not update.snapshot
            await create_group(ahead, "c")
            await gate.open()
            await watching.until(lambda view: "c" in view.groups)
        assert view.snapshots == 1
        assert sorted(view.groups) == ["a", "b", "c"]


async def test_a_reader_that_is_older_than_the_log_gets_a_snapshot(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(
        etcd=(shared_etcd.endpoint,), cluster=cluster, route_log_revisions_max=3
    ) as nameserver:
        await create_group(nameserver, "gone")
        async with Watching(nameserver) as watching:
            view = await watching.until(lambda view: "gone" in view.groups)
        await delete_group(nameserver, "gone")
        for number in range(4):
            last = await create_group(nameserver, f"g{number}")
        await nameserver.call("GetRoute", GetRouteRequest(min_revision=last.revision))
        async with Watching(nameserver, view) as watching:
            assert (await watching.next()).snapshot
        assert sorted(view.groups) == ["g0", "g1", "g2", "g3"]


async def test_a_slow_watcher_costs_no_memory_and_gets_a_snapshot_when_it_wakes(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    changes = 120
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, route_log_revisions_max=5
        ) as nameserver,
        Watching(nameserver) as slow,
    ):
        await slow.next()
        await create_group(nameserver, "g")
        for number in range(changes):
            # Large, so that the buffers to a reader that does not read are soon full.
            attributes = {"n": str(number), **{f"filler-{k}": "x" * 4_000 for k in range(60)}}
            config = GroupConfig(name="g", attributes=attributes)
            last = await nameserver.call("UpdateGroup", UpdateGroupRequest(config=config))
        await nameserver.call("GetRoute", GetRouteRequest(min_revision=last.revision))
        view = await slow.until(lambda view: view.revision >= last.revision)
        assert view.groups["g"] == last.group
        assert view.snapshots == 2
        assert len(slow.updates) < changes / 2


async def test_what_was_deleted_while_etcd_was_cut_off_and_compacted_is_removed(
    own_etcd: EtcdServer,
) -> None:
    async with (
        TcpGate(own_etcd.endpoint) as gate,
        running_nameserver(etcd=(own_etcd.endpoint,)) as direct,
        running_nameserver(etcd=(gate.address,)) as cut_off,
        Watching(cut_off) as watching,
    ):
        await direct.call("RegisterNode", RegisterNodeRequest(node=broker_node()))
        for name in ("a", "b"):
            await create_group(direct, name)
        view = await watching.until(lambda view: len(view.groups) == 2)
        await gate.cut()
        await watching.until(lambda view: not view.reachable)
        await delete_group(direct, "a")
        leave = UnregisterNodeRequest(kind=BROKER, name="broker-a", store_id=broker_node().store_id)
        await direct.call("UnregisterNode", leave)
        last = await create_group(direct, "c")
        own_etcd.control("compact", str(last.revision))
        await gate.open()
        await watching.until(lambda view: "c" in view.groups)
        assert sorted(view.groups) == ["b", "c"]
        assert not view.nodes
        await watching.until(lambda view: view.reachable)
        # It knew its keys, so it could report the deleted ones.
        assert view.snapshots == 1
        # And it follows again.
        await create_group(direct, "d")
        await watching.until(lambda view: "d" in view.groups)


async def test_a_caller_of_another_cluster_is_refused(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        metadata = (("rockoon-cluster", "another"),)
        with pytest.raises(grpc.RpcError) as refusal:
            await nameserver.stub.GetRoute(GetRouteRequest(), metadata=metadata)
        failure = from_rpc_error(refusal.value, NameserverUnavailable, address="here")
        assert isinstance(failure, WrongCluster)
        own = (("rockoon-cluster", cluster),)
        assert (await nameserver.stub.GetRoute(GetRouteRequest(), metadata=own)).cluster == cluster


async def test_two_clusters_on_one_etcd_see_nothing_of_each_other(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as one,
        # The second one's name begins with the first one's.
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster + "-2") as two,
    ):
        made = await create_group(two, "g")
        await two.call("GetRoute", GetRouteRequest(min_revision=made.revision))
        route = await one.call(
            "GetRoute", GetRouteRequest(min_revision=made.revision, include_groups=True)
        )
        assert not route.groups


async def test_a_nameserver_that_stops_ends_its_watches(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        Watching(nameserver) as watching,
    ):
        await watching.next()
        nameserver.stop.request("test")
        async with asyncio.timeout(DEADLINE_SECONDS):
            with contextlib.suppress(EOFError):
                # Updates of other keys in etcd may arrive before the end.
                while True:
                    await watching.next()


async def test_a_nameserver_that_runs_while_etcd_is_restored_and_counts_on_tells_what_is_there(
    own_etcd: EtcdServer,
) -> None:
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        await create_group(nameserver, "in-the-backup")
        async with Watching(nameserver) as watching:
            await watching.until(lambda view: view.groups)
            own_etcd.stop()
            own_etcd.back_up("backup")
            own_etcd.start()
            await watching.until(lambda view: view.reachable)
            last = await create_group(nameserver, "lost")
            await watching.until(lambda view: "lost" in view.groups)
            own_etcd.stop()
            await watching.until(lambda view: not view.reachable)
            own_etcd.restore("backup")
            # In another cluster, so that no nameserver sees the revisions in between.
            own_etcd.move()
            own_etcd.start()
            while own_etcd.revision() <= last.revision:
                own_etcd.control("put", "/others", "x")
            own_etcd.stop()
            own_etcd.move_back()
            own_etcd.start()
            view = await watching.until(lambda view: "lost" not in view.groups)
            assert list(view.groups) == ["in-the-backup"]
            # No update reports its deletion.
            assert not any(update.deletions for update in watching.updates)
