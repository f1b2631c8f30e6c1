"""etcd is killed, stops replying, returns, or is replaced by another etcd."""

import json
import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon_core.errors import EtcdUnavailable, NotReady, RockoonError
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    CreateGroupRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    GetRouteRequest,
    GroupConfig,
    ListGroupsRequest,
    ListTopicsRequest,
    RegisterNodeRequest,
    SubscribeRequest,
    TopicConfig,
    UpdateTopicRequest,
)
from support.etcd import EtcdServer
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver
from support.own_logs import own_warnings
from support.tcp_gate import TcpGate

WRITES = (
    ("CreateTopic", CreateTopicRequest(config=TopicConfig(name="u"))),
    ("UpdateTopic", UpdateTopicRequest(name="t", permissions=4)),
    ("DeleteTopic", DeleteTopicRequest(name="t")),
    ("CreateGroup", CreateGroupRequest(config=GroupConfig(name="h"))),
    ("Subscribe", SubscribeRequest(group="h", topic="t", create_group=True)),
    ("RegisterNode", RegisterNodeRequest(node=broker_node("broker-b"))),
)


async def fill(nameserver: Nameserver) -> int:
    """Register a broker, a topic and a group; return the lease of the broker."""
    reply = await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node()))
    await nameserver.call("CreateTopic", CreateTopicRequest(config=TopicConfig(name="t")))
    await nameserver.call("Subscribe", SubscribeRequest(group="g", topic="t", create_group=True))
    return int(reply.lease_id)


async def reads_go_on(nameserver: Nameserver) -> None:
    route = await nameserver.call("GetRoute", GetRouteRequest(include_groups=True))
    assert [topic.config.name for topic in route.topics] == ["t"]
    assert [node.name for node in route.nodes] == ["broker-a"]
    assert [group.config.name for group in route.groups] == ["g"]
    assert not route.etcd_reachable
    topics = await nameserver.call("ListTopics", ListTopicsRequest())
    assert len(topics.topics) == 1
    assert not topics.etcd_reachable
    groups = await nameserver.call("ListGroups", ListGroupsRequest())
    assert len(groups.subscriptions) == 1
    assert not groups.etcd_reachable
    described = await nameserver.call("DescribeCluster", DescribeClusterRequest())
    assert (described.topics, described.groups, len(described.nodes)) == (1, 1, 1)
    assert not described.etcd_reachable
    assert described.etcd_away_seconds > 0


async def writes_fail_and_say_try_again(nameserver: Nameserver) -> None:
    for method, request in WRITES:
        # Long before the caller's deadline, which would be another error.
        with pytest.raises(EtcdUnavailable) as failure:
            await nameserver.call(method, request)
        assert failure.value.retriable


async def until_written(nameserver: Nameserver, group: str) -> None:
    """Create a group; repeat the call while it fails retriably."""
    request = CreateGroupRequest(config=GroupConfig(name=group), if_absent=True)
    while True:
        try:
            await nameserver.call("CreateGroup", request)
        except RockoonError as failure:
            assert failure.retriable
        else:
            return


async def test_with_etcd_killed_reads_go_on_writes_wait_and_all_resumes_when_it_is_back(
    own_etcd: EtcdServer,
) -> None:
    async with (
        running_nameserver(etcd=(own_etcd.endpoint,), node_lease_seconds=2) as one,
        running_nameserver(etcd=(own_etcd.endpoint,), node_lease_seconds=2) as two,
        Watching(one) as watching,
        Watching(two) as elsewhere,
    ):
        lease_id = await fill(one)
        view = await watching.until(lambda view: view.subscriptions)
        await elsewhere.until(lambda view: view.subscriptions)
        own_etcd.kill()
        await watching.until(lambda view: not view.reachable)
        await elsewhere.until(lambda view: not view.reachable)
        renewal = RegisterNodeRequest(node=broker_node(), lease_id=lease_id)
        with pytest.raises(EtcdUnavailable):
            await one.call("RegisterNode", renewal)
        await writes_fail_and_say_try_again(one)
        # Longer than the lease: only etcd may decide that the broker is gone.
        away = 0.0
        while away < 2.5:
            described = await one.call("DescribeCluster", DescribeClusterRequest())
            away = described.etcd_away_seconds
        await reads_go_on(one)
        await reads_go_on(two)
        own_etcd.start()
        await watching.until(lambda view: view.reachable)
        await one.call("RegisterNode", renewal)
        await until_written(two, "after")
        await watching.until(lambda view: "after" in view.groups)
        await elsewhere.until(lambda view: "after" in view.groups)
        assert (BROKER, "broker-a") in view.nodes
        assert all(not update.removed_nodes for update in watching.updates)
        assert view.snapshots == 1
        described = await one.call("DescribeCluster", DescribeClusterRequest())
        assert described.etcd_reachable
        assert described.etcd_away_seconds == 0


async def test_an_etcd_that_falls_silent_is_noticed_and_no_call_hangs(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        TcpGate(shared_etcd.endpoint) as gate,
        running_nameserver(
            etcd=(gate.address,), cluster=cluster, etcd_timeout_seconds=0.3
        ) as nameserver,
        Watching(nameserver) as watching,
    ):
        await fill(nameserver)
        await watching.until(lambda view: view.subscriptions)
        gate.freeze()
        await writes_fail_and_say_try_again(nameserver)
        await watching.until(lambda view: not view.reachable)
        await reads_go_on(nameserver)
        await gate.open()
        await watching.until(lambda view: view.reachable)
        await until_written(nameserver, "after")
        await watching.until(lambda view: "after" in view.groups)


async def test_an_etcd_that_lost_its_data_is_noticed_and_watchers_start_anew(
    own_etcd: EtcdServer,
) -> None:
    async with (
        running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver,
        Watching(nameserver) as watching,
    ):
        await fill(nameserver)
        view = await watching.until(lambda view: view.subscriptions)
        own_etcd.kill()
        own_etcd.erase()
        own_etcd.start()
        await watching.until(lambda view: not view.topics)
        assert view.snapshots == 2
        assert view.revision < 5
        await until_written(nameserver, "after")
        await watching.until(lambda view: "after" in view.groups)


async def test_an_etcd_wiped_and_set_up_alike_is_another_though_its_revisions_go_on(
    own_etcd: EtcdServer,
) -> None:
    async with (
        TcpGate(own_etcd.endpoint) as gate,
        running_nameserver(etcd=(gate.address,)) as nameserver,
        Watching(nameserver) as watching,
    ):
        await fill(nameserver)
        view = await watching.until(lambda view: view.subscriptions)
        before = await nameserver.call("GetRoute", GetRouteRequest())
        # The nameserver sees nothing of it until the revisions exceed its known ones.
        await gate.cut()
        own_etcd.kill()
        own_etcd.erase()
        own_etcd.start()
        for number in range(view.revision + 10):
            own_etcd.control("put", f"/others/{number % 5}", str(number))
        await gate.open()
        await watching.until(lambda view: not view.topics)
        after = await nameserver.call("GetRoute", GetRouteRequest())
        assert after.revision > before.revision
        assert not after.topics
        assert before.etcd_cluster_id != after.etcd_cluster_id != 0
        # It stays the same for every nameserver.
        async with running_nameserver(etcd=(own_etcd.endpoint,)) as other:
            again = await other.call("GetRoute", GetRouteRequest())
            assert again.etcd_cluster_id == after.etcd_cluster_id


async def test_routes_from_before_etcds_had_a_number_keep_their_identity(
    own_etcd: EtcdServer,
) -> None:
    own_etcd.control("put", "/rockoon/rockoon/topics/orders", '{"permissions":6}')
    (status,) = json.loads(own_etcd.control("endpoint", "status", "--write-out=json"))
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        route = await nameserver.call("GetRoute", GetRouteRequest())
    assert [topic.config.name for topic in route.topics] == ["orders"]
    assert route.etcd_cluster_id == status["Status"]["header"]["cluster_id"]


async def test_a_nameserver_started_before_etcd_waits_says_so_once_and_then_serves(
    own_etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_etcd.kill()
    caplog.set_level(logging.INFO)
    async with running_nameserver(etcd=(own_etcd.endpoint,), wait_serving=False) as nameserver:
        with pytest.raises(NotReady, match="waiting for etcd"):
            await nameserver.call("GetRoute", GetRouteRequest())
        with pytest.raises(NotReady):
            await nameserver.call("DescribeCluster", DescribeClusterRequest())
        await writes_fail_and_say_try_again(nameserver)
        with pytest.raises(grpc.RpcError) as refusal:
            async with Watching(nameserver) as watching:
                await watching.next()
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        health = health_pb2_grpc.HealthStub(nameserver.channel)
        reply = await health.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        warnings = own_warnings(caplog)
        assert len(warnings) == 1
        assert own_etcd.endpoint in warnings[0].getMessage()
        own_etcd.start()
        await nameserver.wait_serving()
        await fill(nameserver)
