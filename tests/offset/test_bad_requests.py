"""Invalid requests are refused with the name of the field, and change nothing."""

from typing import Any

import grpc
import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error

LONG = "x" * 300
ODD_GROUPS = ["", "a b", "b\nc", "\N{SNOWMAN}", "g" * 121]


async def refusal(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as failure:
        await call
    reason = from_rpc_error(failure.value, RockoonError)
    assert not reason.retriable
    return reason.code


def heartbeat(**more: Any) -> pb.HeartbeatRequest:
    given = {
        "group": GROUP,
        "member_id": "m1",
        "instance": "i",
        "mode": pb.CLUSTERING,
        "subscriptions": [pb.TopicSubscription(topic=TOPIC, expression="*")],
    }
    return pb.HeartbeatRequest(**{**given, **more})


def subscribed(*topics: str, expression: str = "*") -> list[pb.TopicSubscription]:
    return [pb.TopicSubscription(topic=topic, expression=expression) for topic in topics]


@pytest.mark.parametrize("group", ODD_GROUPS)
async def test_what_is_no_group_name_is_no_group_anywhere(cluster: Cluster, group: str) -> None:
    earliest = pb.ResetTarget(earliest=True)
    calls = [
        cluster.stub.Heartbeat(heartbeat(group=group)),
        cluster.stub.Leave(pb.LeaveRequest(group=group, member_id="m", instance="i")),
        cluster.stub.Query(pb.QueryRequest(group=group, queue=cluster.ref())),
        cluster.stub.Resolve(pb.ResolveRequest(group=group, queues=[cluster.ref()])),
        cluster.stub.Commit(pb.CommitRequest(group=group)),
        cluster.stub.PlanReset(pb.PlanResetRequest(group=group, topic=TOPIC, target=earliest)),
        cluster.stub.Lag(pb.LagRequest(group=group)),
    ]
    for call in calls:
        assert await refusal(call) == Error.INVALID_GROUP_NAME
    assert group not in cluster.nameserver.groups


@pytest.mark.parametrize(
    "more",
    [
        {"member_id": ""},
        {"member_id": LONG},
        {"instance": ""},
        {"instance": LONG},
        {"mode": 0},
        {"mode": 7},
        {"subscriptions": subscribed("t", "t")},
        {"subscriptions": subscribed("t", expression="e" * 100_000)},
        {"subscriptions": subscribed(*(f"t{n}" for n in range(2000)))},
        {"subscriptions": subscribed(*(f"t{n}" for n in range(9)), expression="e" * 50_000)},
    ],
    ids=lambda more: str(more)[:30],
)
async def test_a_member_that_makes_no_sense_does_not_join(
    cluster: Cluster, more: dict[str, Any]
) -> None:
    assert await refusal(cluster.stub.Heartbeat(heartbeat(**more))) == Error.INVALID_ARGUMENT
    assert not list((await cluster.stub.ListMembers(pb.ListMembersRequest())).groups)


async def test_a_member_reads_topics_that_can_exist(cluster: Cluster) -> None:
    odd = heartbeat(subscriptions=subscribed("no such topic"))
    assert await refusal(cluster.stub.Heartbeat(odd)) == Error.INVALID_TOPIC_NAME
    await cluster.stub.Heartbeat(heartbeat(subscriptions=subscribed("%RETRY%billing")))


async def test_ids_and_reasons_too_long_to_keep_are_refused(cluster: Cluster) -> None:
    essay = "because " * 1000
    calls = [
        cluster.stub.Resolve(
            pb.ResolveRequest(group=GROUP, member_id=LONG, queues=[cluster.ref()])
        ),
        cluster.stub.Commit(pb.CommitRequest(group=GROUP, member_id=LONG)),
        cluster.stub.ApplyReset(pb.ApplyResetRequest(reset_id="r", operator=essay)),
        cluster.stub.UndoReset(pb.UndoResetRequest(reset_id="r", operator=essay)),
        cluster.stub.Import(pb.ImportRequest(format=pb.JSON_LINES, operator=essay)),
    ]
    for call in calls:
        assert await refusal(call) == InvalidArgument.code


async def test_an_import_skips_what_is_no_group_name(cluster: Cluster) -> None:
    line = b'{"group": "a b", "topic": "orders", "broker": "broker-a", "queue_id": 0, "offset": 0}'
    for dry_run in (True, False):
        request = pb.ImportRequest(format=pb.JSON_LINES, content=line, dry_run=dry_run)
        reply = await cluster.stub.Import(request)
        assert "has a character other than" in reply.skipped[0]
        assert not reply.imported
