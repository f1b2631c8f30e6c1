"""`rockoon status`: healthy and unhealthy services."""

from typing import Any

import pytest

from rockoon.admin.cluster_status import broker_problems
from rockoon.admin.descriptions import ClusterStatus, NodeStatus
from rockoon.admin.logs import LogDescription, LogStatus, ReplicaLag, ReplicaStanding
from rockoon.cli.status import show_status, status_json
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply
from rockoon_proto.v1.logs_pb2 import Log
from rockoon_proto.v1.nameserver_pb2 import DescribeClusterReply
from support.log_states import led_log, replica_node
from support.waiting import wait_until


def test_a_healthy_cluster(rockoon: Any, cluster: Any) -> None:
    shown = rockoon("status").out
    assert "cluster rockoon: healthy" in shown
    for name in ("nameserver-a", "broker-a", "broker-b", "offset"):
        assert name in shown
    said = rockoon("status", "--json").json
    assert said["healthy"]
    assert said["etcd_reachable"]
    # Of one copy each: there is nothing to report about copies.
    assert said["logs"] == []
    assert "copy" not in shown
    assert {node["address"] for node in said["brokers"]} == {
        cluster.node(name).address for name in cluster.brokers
    }


def test_a_dead_broker_is_shown_and_the_exit_status_says_so(rockoon: Any, cluster: Any) -> None:
    cluster.kill("broker-b")
    try:
        ran = rockoon("status", status=1)
        assert "NOT HEALTHY" in ran.out
        line = next(line for line in ran.out.splitlines() if " broker-b " in line)
        assert "DOWN: broker 'broker-b' does not answer" in line
        said = rockoon("status", "--json", status=1).json
        assert {node["name"]: node["up"] for node in said["brokers"]} == {
            "broker-a": True,
            "broker-b": False,
        }
    finally:
        cluster.start("broker-b")


def test_a_node_that_answers_and_cannot_work_is_not_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nameserver = NodeStatus("n", "n:1", cluster=DescribeClusterReply(etcd_reachable=True))
    refuses = DescribeBrokerReply(problems=["it takes no messages: the disk is 97 % full"])
    # Of a former version, which reported no more than this.
    former = DescribeBrokerReply(writable=False, not_writable_reason="the disk is 98 % full")
    status = ClusterStatus(
        "rockoon",
        [nameserver],
        [
            NodeStatus("a", "a:1", broker=DescribeBrokerReply(writable=True, lost_bytes=3 << 20)),
            NodeStatus(
                "b", "b:1", broker=refuses, problems=tuple(broker_problems(refuses, drained=False))
            ),
            NodeStatus(
                "c", "c:1", broker=former, problems=tuple(broker_problems(former, drained=False))
            ),
        ],
        [NodeStatus("offset", "o:1", members=0, problems=["progress is not stored: no room"])],
    )
    assert not status.healthy
    show_status(status)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cluster rockoon: NOT HEALTHY"
    assert [line.count("NOT WELL: see below") for line in lines if ":1" in line] == [0, 0, 1, 1, 1]
    assert [line.split()[1] for line in lines if "lost/ 3.0 MiB" in line] == ["a"]
    assert "b: it takes no messages: the disk is 97 % full" in lines
    assert "c: it takes no messages: the disk is 98 % full" in lines
    assert "offset: progress is not stored: no room" in lines
    said = status_json(status)
    assert not said["healthy"]
    assert said["brokers"][1]["problems"] == ["it takes no messages: the disk is 97 % full"]


def copied(*, b_is_ready: bool) -> ClusterStatus:
    """A log of three copies: "a" leads, "b" answers, and "c" is away unless "b" is ready."""
    alive = "abc" if b_is_ready else "ab"
    log = Log(state=led_log(), nodes=[replica_node(who) for who in alive])
    lag = ReplicaLag(True, 0, 0.0) if b_is_ready else ReplicaLag(True, 2048, 13.2)
    trouble = "" if b_is_ready else "it cannot write: no room"
    followers = {
        who: ReplicaStanding(False, 1, b_is_ready, trouble, 0, 2952, 2952, 2952, {})
        for who in alive[1:]
    }
    leader = ReplicaStanding(True, 1, True, "", 0, 5000, 5000, 5000, dict.fromkeys("bc", lag))
    described = LogStatus(LogDescription.from_wire(log), {"a": leader, **followers})
    return ClusterStatus(
        "rockoon",
        [NodeStatus("n", "n:1", cluster=DescribeClusterReply(etcd_reachable=True))],
        [NodeStatus("broker-a", "a:1", broker=DescribeBrokerReply(writable=True))],
        [NodeStatus("offset", "o:1", members=0)],
        [described],
    )


def test_each_copy_of_a_log_is_shown_and_why_it_is_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = copied(b_is_ready=False)
    assert not status.healthy
    show_status(status)
    shown = capsys.readouterr().out
    words = [line.split() for line in shown.splitlines()]
    ends = ["log", "ends", "at"]
    assert ["copy", "broker-a-a", "a:10911", "leader", *ends, "5000"] in words
    assert "broker-a-b: it cannot write: no room; 2.0 KiB behind, for 13 s" in shown
    assert ["copy", "broker-a-c", "-", "AWAY", "-"] in words
    assert "broker-a-c: its process is not running" in shown
    (told,) = status_json(status)["logs"]
    assert not told["well"]
    assert [each.partition(":")[0] for each in told["troubles"]] == ["broker-a-b", "broker-a-c"]


def test_a_log_whose_copies_are_all_ready_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    status = copied(b_is_ready=True)
    assert status.healthy
    show_status(status)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines if line.startswith("copy")]
    level = ["in", "sync", "log", "ends", "at", "2952,", "level"]
    assert [each[3:] for each in shown[1:]] == [level, level]
    assert lines[-1].startswith("copy"), "there is nothing to say below"


def test_a_broker_that_has_gone_and_left_queues_is_missed(rockoon: Any, cluster: Any) -> None:
    rockoon("topic", "create", "left-behind", "--queues", "1")
    cluster.stop("broker-b")
    try:
        ran = rockoon("status", status=1)
        assert "NOT HEALTHY" in ran.out
        line = next(line for line in ran.out.splitlines() if " broker-b " in line)
        assert "GONE: its queues wait for it" in line
        said = rockoon("status", "--json", status=1).json
        assert (said["healthy"], said["away_brokers"]) == (False, ["broker-b"])
    finally:
        cluster.start("broker-b")
    assert "NOT HEALTHY" not in rockoon("status").out


def test_etcd_out_of_reach_is_shown_while_the_rest_goes_on(rockoon: Any, cluster: Any) -> None:
    cluster.kill("etcd")
    try:
        # The nameserver finds out when its watch breaks.
        wait_until(lambda: "NOT REACHABLE" in rockoon("status", status=None).out, "the discovery")
        assert "etcd away for" in rockoon("status", status=1).out
    finally:
        cluster.start("etcd")
    wait_until(lambda: rockoon("status", status=None).status == 0, "the nameserver to be back")


def test_one_broker_is_shown_in_full(rockoon: Any) -> None:
    shown = rockoon("broker", "describe", "broker-a")
    assert shown.words[0][:3] == ["broker", "broker-a", "at"]
    assert ["state", "writable"] in shown.words
    said = rockoon("broker", "describe", "broker-a", "--json").json
    assert said["name"] == "broker-a"
    assert said["compaction"]["generation"] is None
    assert rockoon.fails("broker", "describe", "nobody") == "no live broker is named 'nobody'"
