"""Logs with copies at real nameservers and a real etcd: replicas join, elect, move and leave."""

import asyncio
from typing import Any

import pytest
from grpc import aio

from rockoon.local.directory import choose_port
from rockoon_core.errors import (
    InvalidArgument,
    LogFrozen,
    LogNotFound,
    NodeNameTaken,
    NotReady,
    RockoonError,
)
from rockoon_nameserver.server import ROUND_SECONDS_MAX
from rockoon_node.nameservers import Nameservers
from rockoon_node.registration import NodeLease, Registration
from rockoon_proto.v1.logs_pb2 import (
    AdoptLogRequest,
    ChangeInSyncRequest,
    ConfirmEpochRequest,
    DescribeLogRequest,
    ElectLogRequest,
    HandOverRequest,
    ListLogsRequest,
    Log,
    LogState,
    Rank,
    RemoveReplicaRequest,
    Report,
    ReportLogRequest,
    ResignRequest,
    SuspectLeaderRequest,
)
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    CreateTopicRequest,
    GetRouteRequest,
    Node,
    RegisterNodeRequest,
    ReplicaFacts,
    TopicConfig,
    UnregisterNodeRequest,
)
from rockoon_runtime.process import Stop
from support.etcd import EtcdServer
from support.log_states import LOG, call, replica_node
from support.log_watch import WatchingLog, call_logs, register
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver

A = (BROKER, LOG)


async def elect(nameserver: Nameserver, state: LogState, *order: str) -> LogState:
    """Replicas report, earlier ones with more records; the first leads."""
    for end, who in enumerate(reversed(order)):
        report = Report(rank=Rank(epoch=state.epoch - 1, end=end), sound=True)
        request = ReportLogRequest(caller=call(state, who), report=report)
        reply = await call_logs(nameserver, "ReportLog", request)
        state = reply.state
    return state


async def three(nameserver: Nameserver) -> LogState:
    """Three replicas register, and "a" is elected and confirmed."""
    for who in "abc":
        await register(nameserver, who)
    state = await state_of(nameserver)
    state = await elect(nameserver, state, "a", "b")
    assert state.leader == "a"
    request = ConfirmEpochRequest(caller=call(state, "a"))
    return (await call_logs(nameserver, "ConfirmEpoch", request)).state


async def state_of(nameserver: Nameserver) -> LogState:
    stub: Any = LogsStub(nameserver.channel)
    reply = await stub.DescribeLog(DescribeLogRequest(kind=BROKER, log=LOG))
    assert isinstance(reply.log, Log)
    return reply.log.state


async def route(nameserver: Nameserver, revision: int = 0) -> list[Node]:
    request = GetRouteRequest(min_revision=revision)
    return list((await nameserver.call("GetRoute", request)).nodes)


async def test_clients_find_the_leader_under_the_name_of_the_log_wherever_it_goes(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        Watching(nameserver) as clients,
        WatchingLog(nameserver) as replicas,
    ):
        state = await three(nameserver)
        view = await clients.until(lambda view: A in view.nodes and len(view.nodes[A].replicas) > 2)
        node = view.nodes[A]
        assert (node.address, node.epoch, node.store_id) == ("a:10911", 1, "a")
        assert [(each.replica_id, each.address, each.in_sync) for each in node.replicas] == [
            (who, f"{who}:10911", True) for who in "abc"
        ]
        # It has queues as any broker.
        request = CreateTopicRequest(config=TopicConfig(name="t"), queues_per_broker=2)
        topic = (await nameserver.call("CreateTopic", request)).topic
        assert [block.broker for block in topic.blocks] == [LOG]
        # Its process is moved (RocketMQ 5745): clients and replicas are notified.
        moved = await register(nameserver, "a", address="elsewhere:1")
        await clients.until(lambda view: view.nodes[A].address == "elsewhere:1")
        await replicas.until(lambda log: any(each.address == "elsewhere:1" for each in log.nodes))
        # Its leadership is handed over.
        rank = Rank(epoch=1, end=7)
        request = HandOverRequest(caller=call(state, "a"), successor="c", rank=rank)
        reply = await call_logs(nameserver, "HandOver", request)
        assert reply.done
        await clients.until(lambda view: view.nodes[A].address == "c:10911")
        assert clients.view.nodes[A].epoch == 2
        # It leaves, and is not a live replica any more.
        request = UnregisterNodeRequest(
            kind=BROKER, name=LOG, store_id="a", lease_id=moved.lease_id
        )
        await nameserver.call("UnregisterNode", request)
        await clients.until(lambda view: len(view.nodes[A].replicas) == 2)
        log = await replicas.until(lambda log: len(log.nodes) == 2)
        assert (log.state.leader, list(log.state.in_sync)) == ("c", ["a", "b", "c"])


async def test_the_next_step_of_an_election_is_any_nameservers(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    settings = {"etcd": (shared_etcd.endpoint,), "cluster": cluster}
    async with (
        running_nameserver(**settings) as one,
        running_nameserver(**settings) as two,
        WatchingLog(two) as watching,
    ):
        before = await three(one)
        async with asyncio.TaskGroup() as tasks:
            for where, who in ((one, "b"), (two, "c")):
                suspicion = SuspectLeaderRequest(caller=call(before, who))
                tasks.create_task(call_logs(where, "SuspectLeader", suspicion))
        log = await watching.until(lambda log: log.state.epoch == 2)
        assert (log.state.leader, log.state.former_leader) == ("", "a")
        # No client is without a route in the meantime: the former leader still serves readers.
        assert [node.address for node in await route(two)] == ["a:10911"]
        # Both report at the same time, at different nameservers; an epoch has one leader.
        report = Report(rank=Rank(epoch=1, end=9), sound=True)
        async with asyncio.TaskGroup() as tasks:
            for where, who in ((one, "c"), (two, "b")):
                told = ReportLogRequest(caller=call(log.state, who), report=report)
                tasks.create_task(call_logs(where, "ReportLog", told))
        log = await watching.until(lambda log: log.state.leader)
        assert log.state.leader == "b"
        # A call about the former epoch changes nothing, and its reply says so.
        reply = await call_logs(one, "Resign", ResignRequest(caller=call(before, "a")))
        assert reply.state == log.state
        assert reply.done
        reply = await call_logs(one, "Resign", ResignRequest(caller=call(log.state, "c")))
        assert (reply.state, reply.done) == (log.state, False)


async def test_replicas_that_come_at_once_to_different_nameservers_make_one_log(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    """Two masters of one name (RocketMQ 7017)."""
    settings = {"etcd": (shared_etcd.endpoint,), "cluster": cluster}
    async with running_nameserver(**settings) as one, running_nameserver(**settings) as two:
        async with asyncio.TaskGroup() as tasks:
            for where, who in ((one, "a"), (two, "b"), (one, "c"), (two, "d")):
                tasks.create_task(register(where, who))
        async with WatchingLog(one) as watching:
            state = (await watching.until(lambda log: log.state.version == 4)).state
        assert (state.epoch, state.leader) == (1, "")
        assert (len(state.in_sync), state.quorum, len(state.replicas)) == (3, 2, 4)
        # One of the stores with messages gets the log, and the others are notified.
        refused = 0

        async def come(where: Nameserver, who: str) -> None:
            nonlocal refused
            node = replica_node(who)
            node.name = "broker-z"
            try:
                await where.call("RegisterNode", RegisterNodeRequest(node=node, replica=facts))
            except NodeNameTaken:
                refused += 1

        facts = ReplicaFacts(copies=3)
        async with asyncio.TaskGroup() as tasks:
            for where, who in ((one, "a"), (two, "b"), (one, "c")):
                tasks.create_task(come(where, who))
        assert refused == 2


async def test_who_watches_a_log_is_told_of_no_other(shared_etcd: EtcdServer, cluster: str) -> None:
    began = asyncio.get_running_loop().time()

    def heartbeats_max() -> float:
        return 1 + (asyncio.get_running_loop().time() - began) // ROUND_SECONDS_MAX

    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        WatchingLog(nameserver) as watching,
        # A service also learns of revisions that change no routes.
        Watching(nameserver, include_groups=False) as clients,
    ):
        for name in ("broker-b", "broker-c"):
            await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node(name)))
        state = await three(nameserver)
        await watching.until(lambda log: log.state.confirmed)
        assert {log.state.log for update in watching.updates for log in update.logs} == {LOG}
        empty = [update for update in watching.updates[1:] if not update.logs]
        assert len(empty) <= heartbeats_max()
        # A change that does not concern clients sends them no update.
        await clients.until(lambda view: A in view.nodes and len(view.nodes[A].replicas) == 3)
        request = SuspectLeaderRequest(caller=call(state, "b"))
        await call_logs(nameserver, "SuspectLeader", request)
        await register(nameserver, "c", rack="r2")
        await clients.until(lambda view: any(each.rack for each in view.nodes[A].replicas))
        empty_routes = [update for update in clients.updates[1:] if not update.nodes]
        assert len(empty_routes) <= heartbeats_max()


async def test_a_lease_that_ends_deposes_nobody(shared_etcd: EtcdServer, cluster: str) -> None:
    """Ten seconds without nameservers would depose every healthy leader."""
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=1
        ) as nameserver,
        WatchingLog(nameserver) as watching,
    ):
        await three(nameserver)
        await watching.until(lambda log: log.state.confirmed and not log.nodes)
        assert watching.log.state.leader == "a"
        assert await route(nameserver) == []
        reply = await register(nameserver, "a", facts=ReplicaFacts(copies=3))
        (node,) = await route(nameserver, reply.revision)
        assert (node.address, node.epoch) == ("a:10911", 1)


async def test_a_broker_that_knows_nothing_of_copies_works_as_ever_and_can_get_them(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    settings = {"etcd": (shared_etcd.endpoint,), "cluster": cluster}
    async with running_nameserver(**settings) as nameserver:
        plain = broker_node(LOG, store_id="a")
        first = await nameserver.call("RegisterNode", RegisterNodeRequest(node=plain))
        # As registered by the broker: no epoch, no replicas.
        assert await route(nameserver, first.revision) == [plain]
        state = await state_of(nameserver)
        assert (state.epoch, state.leader, list(state.in_sync)) == (1, "a", ["a"])
        # An empty store registers first by mistake: it becomes a copy only.
        await register(nameserver, "b")
        assert (await state_of(nameserver)).leader == "a"
        with pytest.raises(NodeNameTaken, match="has other messages"):
            await register(nameserver, "x", facts=ReplicaFacts(copies=3))
        # The broker is started again, with a version that knows copies, at another place.
        reply = await register(nameserver, "a", facts=ReplicaFacts(copies=3))
        (node,) = await route(nameserver, reply.revision)
        assert (node.address, node.epoch) == ("a:10911", 1)
        assert [each.name for each in node.replicas] == ["broker-a-a", "broker-a-b"]
        await register(nameserver, "c")
        state = await state_of(nameserver)
        request = ChangeInSyncRequest(caller=call(state, "a"), in_sync=["a", "b", "c"], quorum=2)
        state = (await call_logs(nameserver, "ChangeInSync", request)).state
        assert (list(state.in_sync), state.quorum, state.epoch) == (["a", "b", "c"], 2, 1)
        # A version without copies is not accepted any more.
        with pytest.raises(NodeNameTaken, match="is a log with copies"):
            await nameserver.call("RegisterNode", RegisterNodeRequest(node=plain))


async def test_a_broker_whose_state_etcd_lacks_is_given_one_with_its_next_renewal(
    own_etcd: EtcdServer,
) -> None:
    """Nameservers are upgraded before brokers, which stay registered."""
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        plain = broker_node(LOG, store_id="a")
        first = await nameserver.call("RegisterNode", RegisterNodeRequest(node=plain))
        own_etcd.control("del", f"/rockoon/rockoon/logs/broker/{LOG}")
        request = RegisterNodeRequest(node=plain, lease_id=first.lease_id)
        reply = await nameserver.call("RegisterNode", request)
        assert (await state_of(nameserver)).leader == "a"
        request.lease_id = reply.lease_id
        again = await nameserver.call("RegisterNode", request)
        assert (again.lease_id, again.revision) == (reply.lease_id, reply.revision)
        assert await route(nameserver, reply.revision) == [plain]


async def test_an_empty_store_does_not_take_the_name_of_queues_that_exist(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        plain = broker_node(LOG, store_id="a")
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=plain))
        request = CreateTopicRequest(config=TopicConfig(name="t"), queues_per_broker=2)
        created = await nameserver.call("CreateTopic", request)
        await route(nameserver, created.revision)
        shared_etcd.control("del", "--prefix", f"/rockoon/{cluster}/logs/")
        shared_etcd.control("del", "--prefix", f"/rockoon/{cluster}/nodes/")
        with pytest.raises(NotReady, match="first start the replica that has its messages"):
            await register(nameserver, "b")


async def test_of_two_copies_of_a_replica_one_waits_for_the_other(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(
        etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=30
    ) as nameserver:
        first = await register(nameserver, "a", place="here")
        second = await register(nameserver, "a", place="there")
        assert second.predecessor_seconds > 0
        assert first.lease_id != second.lease_id


async def test_an_etcd_that_went_back_freezes_logs_until_somebody_adopts_them(
    own_etcd: EtcdServer,
) -> None:
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        await three(nameserver)
    own_etcd.stop()
    own_etcd.back_up("before")
    own_etcd.start()
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        before = await state_of(nameserver)
        await register(nameserver, "d")
        state = await state_of(nameserver)
        request = ChangeInSyncRequest(caller=call(state, "a"), in_sync=["a", "b", "d"], quorum=2)
        later = (await call_logs(nameserver, "ChangeInSync", request)).state
    own_etcd.stop()
    own_etcd.restore("before")
    own_etcd.start()
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        assert await state_of(nameserver) == before
        # The reply to its call shows this, and the call changes nothing.
        suspicion = SuspectLeaderRequest(caller=call(later, "b"))
        reply = await call_logs(nameserver, "SuspectLeader", suspicion)
        assert not reply.done
        assert f"knows version {later.version}" in reply.state.frozen
        old = SuspectLeaderRequest(caller=call(before, "c"))
        reply = await call_logs(nameserver, "SuspectLeader", old)
        assert (reply.done, reply.state.leader, list(reply.state.suspects)) == (False, "a", [])
        elect_it = ElectLogRequest(kind=BROKER, log=LOG, accept_loss=True)
        with pytest.raises(LogFrozen, match="rockoon log adopt"):
            await call_logs(nameserver, "ElectLog", elect_it)
        facts = ReplicaFacts(copies=3, version=later.version)
        await register(nameserver, "d", facts=facts)
        for who in "abd":
            report = Report(
                rank=Rank(epoch=1, end=5),
                sound=True,
                promised=1,
                version=later.version,
                in_sync=later.in_sync,
                quorum=2,
            )
            told = ReportLogRequest(caller=call(later, who), report=report)
            assert (await call_logs(nameserver, "ReportLog", told)).done
        adopt = AdoptLogRequest(kind=BROKER, log=LOG)
        state = (await call_logs(nameserver, "AdoptLog", adopt)).state
        assert (list(state.in_sync), state.epoch, state.history) == (["a", "b", "d"], 65_537, 1)
        assert (await elect(nameserver, state, "d", "a")).leader == "d"


async def test_a_nameserver_that_sees_etcd_go_back_freezes_logs_before_anybody_calls(
    own_etcd: EtcdServer,
) -> None:
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as nameserver:
        await three(nameserver)
        own_etcd.stop()
        own_etcd.back_up("before")
        own_etcd.start()
        async with WatchingLog(nameserver) as watching:
            for who in "de":
                await register_until_done(nameserver, who)
            await watching.until(lambda log: len(log.nodes) == 5)
            own_etcd.stop()
            own_etcd.restore("before")
            own_etcd.start()
            log = await watching.until(lambda log: log.state.frozen)
            assert "went back" in log.state.frozen


async def register_until_done(nameserver: Nameserver, who: str) -> None:
    """etcd has just become available again."""
    while True:
        try:
            await register(nameserver, who)
        except RockoonError as failure:
            if not failure.retriable:
                raise
        else:
            return


async def test_a_service_registers_as_a_replica_tells_what_it_knows_and_leaves(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=1
        ) as nameserver,
        WatchingLog(nameserver) as watching,
        asyncio.TaskGroup() as tasks,
    ):
        facts = ReplicaFacts(empty=True, copies=1)
        nameservers, lease = Nameservers([nameserver.address], cluster), NodeLease("the broker")
        registration = Registration(nameservers, replica_node("a"), lease, replica=lambda: facts)
        stop = Stop()
        running = tasks.create_task(registration.run(stop))
        log = await watching.until(lambda log: log.nodes)
        assert (log.state.leader, list(log.state.in_sync)) == ("a", ["a"])
        # A renewal returns the new state, here the number of copies.
        facts.copies = 3
        await watching.until(lambda log: log.state.copies == 3)
        await registration.leave()
        await watching.until(lambda log: not log.nodes)
        assert not stop.requested
        running.cancel()
        await nameservers.close()


async def test_an_operator_removes_a_replica_that_is_neither_in_sync_nor_alive(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        state = await three(nameserver)
        await register(nameserver, "d")
        remove = RemoveReplicaRequest(kind=BROKER, log=LOG, replica_id="d")
        with pytest.raises(InvalidArgument, match="'d' runs"):
            await call_logs(nameserver, "RemoveReplica", remove)
        voter = RemoveReplicaRequest(kind=BROKER, log=LOG, replica_id="c")
        leave = UnregisterNodeRequest(kind=BROKER, name=LOG, store_id="c")
        await nameserver.call("UnregisterNode", leave)
        with pytest.raises(InvalidArgument, match="'c' is in sync"):
            await call_logs(nameserver, "RemoveReplica", voter)
        leave.store_id = "d"
        await nameserver.call("UnregisterNode", leave)
        for _ in range(2):
            reply = await call_logs(nameserver, "RemoveReplica", remove)
            assert reply.done
            assert await state_of(nameserver) == reply.state
        assert [each.replica_id for each in reply.state.replicas] == ["a", "b", "c"]
        assert reply.state.version == state.version + 2
        # Its store has records of the log, which has continued without it.
        with pytest.raises(NodeNameTaken, match="start it with an empty store"):
            await register(nameserver, "d", facts=ReplicaFacts(copies=3))


async def test_replicas_do_not_come_in_by_the_listener_for_clients(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    outside = f"127.0.0.2:{choose_port()}"
    async with (
        running_nameserver(
            etcd=(shared_etcd.endpoint,), cluster=cluster, external_listen=outside
        ) as nameserver,
        aio.insecure_channel(outside) as channel,
    ):
        for who in "abc":
            await register(
                nameserver, who, external_address=f"{who}.example:1", ip_address="10.0.0.1"
            )
        state = await elect(nameserver, await state_of(nameserver), "a", "b")
        there = Nameserver(outside, channel, nameserver.stop)
        with pytest.raises(InvalidArgument, match="external listener"):
            await call_logs(there, "Resign", ResignRequest(caller=call(state, "a")))
        # Operators may; they and clients get addresses that are valid for them.
        assert await state_of(there) == state
        (node,) = await route(there, 1)
        told = [
            (each.address, each.external_address, each.ip_address)
            for each in (node, *node.replicas)
        ]
        assert told == [(f"{who}.example:1", "", "") for who in "aabc"]
        (node,) = await route(nameserver, 1)
        assert [each.ip_address for each in (node, *node.replicas)] == ["10.0.0.1"] * 4


async def test_nobody_calls_for_a_log_that_is_not_there_or_not_his(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        stub: Any = LogsStub(nameserver.channel)
        assert not (await stub.ListLogs(ListLogsRequest())).logs
        unknown = ElectLogRequest(kind=BROKER, log="nothing")
        with pytest.raises(LogNotFound):
            await call_logs(nameserver, "ElectLog", unknown)
        state = await three(nameserver)
        stranger = ResignRequest(caller=call(state, "x"))
        with pytest.raises(InvalidArgument, match="not registered as a replica"):
            await call_logs(nameserver, "Resign", stranger)
        (log,) = (await stub.ListLogs(ListLogsRequest())).logs
        assert (log.state, len(log.nodes)) == (state, 3)
