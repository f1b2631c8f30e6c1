"""An offset log with copies at a real nameserver: one for the cluster, found at its leader."""

from typing import Any

import pytest

from rockoon_core.errors import NodeNameTaken, NotReady
from rockoon_core.protocol import LEVEL
from rockoon_proto.v1.logs_pb2 import DescribeLogRequest, LogState, Rank, Report, ReportLogRequest
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_proto.v1.nameserver_pb2 import (
    OFFSET_SERVICE,
    Node,
    RegisterNodeRequest,
    ReplicaFacts,
    UnregisterNodeRequest,
)
from support.etcd import EtcdServer
from support.log_states import call
from support.log_watch import call_logs
from support.nameserver import Nameserver, Watching, running_nameserver

NAME = "offset"
OFFSET = (OFFSET_SERVICE, NAME)


def node(who: str, *, replica: bool = True, name: str = NAME) -> Node:
    own = f"{name}-{who}" if replica else ""
    where = f"{who}:10912"
    return Node(
        kind=OFFSET_SERVICE, name=name, store_id=who, address=where, replica=own, level=LEVEL
    )


async def register(
    nameserver: Nameserver, who: Node, *, copies: int = 3, empty: bool = True
) -> Any:
    facts = ReplicaFacts(empty=empty, copies=copies) if who.replica else None
    return await nameserver.call("RegisterNode", RegisterNodeRequest(node=who, replica=facts))


async def state_of(nameserver: Nameserver) -> LogState:
    stub: Any = LogsStub(nameserver.channel)
    reply = await stub.DescribeLog(DescribeLogRequest(kind=OFFSET_SERVICE, log=NAME))
    assert isinstance(reply.log.state, LogState)
    return reply.log.state


async def test_three_offset_services_are_one_log_that_clients_find_at_its_leader(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        Watching(nameserver) as clients,
    ):
        for who in "abc":
            await register(nameserver, node(who))
        state = await state_of(nameserver)
        assert sorted(state.in_sync) == ["a", "b", "c"]
        for end, who in enumerate("ab"):
            report = Report(rank=Rank(epoch=0, end=end), sound=True)
            request = ReportLogRequest(caller=call(state, who), report=report)
            state = (await call_logs(nameserver, "ReportLog", request)).state
        view = await clients.until(lambda view: OFFSET in view.nodes)
        assert view.nodes[OFFSET].address == "b:10912"
        assert [each.replica_id for each in view.nodes[OFFSET].replicas] == ["a", "b", "c"]
        # The cluster's progress is in this log: no process serves another one, nor this one alone.
        for another in (node("d", name="other"), node("d", name="other", replica=False)):
            with pytest.raises(NodeNameTaken, match="has only one"):
                await register(nameserver, another)
        with pytest.raises(NodeNameTaken):
            await register(nameserver, node("d", replica=False))


async def test_empty_copies_do_not_begin_anew_what_one_service_had(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await register(nameserver, node("a", replica=False))
        goodbye = UnregisterNodeRequest(kind=OFFSET_SERVICE, name=NAME, store_id="a")
        await nameserver.call("UnregisterNode", goodbye)
        # It is stopped, to be started as one of three; the empty ones register first.
        for who in "bcd":
            await register(nameserver, node(who))
        state = await state_of(nameserver)
        assert (list(state.in_sync), state.leader) == (["a"], "a")
        await register(nameserver, node("a"), empty=False)
        state = await state_of(nameserver)
        assert (list(state.in_sync), state.copies) == (["a"], 3)
        assert {each.replica_id for each in state.replicas} == {"a", "b", "c", "d"}


async def test_a_copy_waits_for_the_service_that_a_nameserver_of_before_has_registered(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    """It is live, and has no state in etcd yet: its next renewal writes it."""
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await register(nameserver, node("a", replica=False))
        shared_etcd.control("del", f"/rockoon/{cluster}/logs/offset/{NAME}")
        with pytest.raises(NotReady, match="empty"):
            await register(nameserver, node("b"))
