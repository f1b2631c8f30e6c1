"""`rockoon log` and `rockoon replica`: a log's copies shown, elected, adopted, replaced."""

from typing import Any

import pytest

from rockoon.admin.logs import LogDescription, LogStatus, ReplicaLag, ReplicaStanding
from rockoon.cli.logs import (
    log_json,
    loss_question,
    pending_requests,
    result_of_election,
    show,
    troubles,
)
from rockoon.cli.logs import state as state_of
from rockoon.cli.status import copy_rows
from rockoon.errors import InvalidArgument, NoExternalAddress
from rockoon.net.addresses import reachable
from rockoon_proto.v1.logs_pb2 import Log, Rank, Report
from support.log_states import led_log, new_log, replica_node, report


def described(*, frozen: str = "") -> LogDescription:
    """An election in which only "b" has reported, and "c" is away."""
    state = report(new_log(), "b", 40, epoch=0).state
    state.frozen = frozen
    return LogDescription.from_wire(Log(state=state, nodes=[replica_node("a"), replica_node("b")]))


@pytest.fixture(scope="module")
def broker(cluster: Any) -> Any:
    return cluster.brokers[0]


def test_every_broker_has_a_log_and_leads_it(rockoon: Any, cluster: Any, broker: str) -> None:
    shown = rockoon("log", "list").words
    assert [broker, "1", broker, "1", "of", "1", "1", "led"] in shown
    logs = rockoon("log", "list", "--json").json
    assert [each["log"] for each in logs] == [*sorted(cluster.brokers), "offset"]
    said = rockoon("log", "describe", broker, "--json").json
    (replica,) = said["replicas"]
    assert (said["leader"], said["quorum"]) == (replica["id"], 1)
    assert "1 of 1 copies commit a message" in rockoon("log", "describe", broker).out


def test_what_cannot_be_done_with_a_log_of_one_copy_is_said(rockoon: Any, broker: str) -> None:
    for arguments, why in (
        (("log", "describe", "nothing"), "no log is named"),
        (("log", "elect", broker, "--accept-loss", "--yes"), "has a leader"),
        (("log", "adopt", broker, "--yes"), "is not frozen"),
        (("log", "adopt", broker), "confirm with --yes"),
        (("replica", "replace", broker, "x", "y"), "is no replica of"),
        (("replica", "replace", "nothing", "x", "y"), "no log is named"),
        (("replica", "remove", broker, broker), "is in sync"),
        (("replica", "remove", "nothing", "x"), "no log is named"),
        (("log", "copies", "nothing", "1"), "no log is named"),
        (("log", "copies", broker, "1", "--stays", "x"), "is no replica of"),
        (("log", "copies", broker, "2"), "ask for 1, or for 3"),
        (("log", "copies", broker, "3"), "start it with copies = 3"),
        (("log", "copies", "offset", "3"), "start it with copies = 3"),
        (("log", "elect", "nothing", "--yes"), "no log is named"),
        (("log", "adopt", "nothing", "--yes"), "no log is named"),
    ):
        before = rockoon("log", "list", "--json").json
        ran = rockoon(*arguments, status=1)
        assert why in ran.err, arguments
        assert rockoon("log", "list", "--json").json == before, arguments
    for arguments in (("copies", broker, "0"), ("copies", broker, "8"), ("copies", broker, "all")):
        assert "COPIES" in rockoon.misused("log", *arguments)


def test_what_waits_says_for_what() -> None:
    state = led_log()
    state.replicas.add(replica_id="d", name="broker-a-b")
    state.replicas.add(replica_id="e", name="broker-a-e")
    state.moves.add(leaves="b", joins="d")
    state.moves.add(leaves="c", joins="e")
    nodes = [replica_node(who) for who in "bcd"]
    log = LogDescription.from_wire(Log(state=state, nodes=nodes))
    assert [*pending_requests(log)] == [
        "broker-a-b (d) is to replace the former one (b)",
        "broker-a-e is to replace broker-a-c",
        "... but broker-a-e is AWAY: start it",
        "... which the leader does, once there is one",
    ]
    assert state_of(log).startswith("WITHOUT LEADER: broker-a-a is away, and too few other copies")


def test_a_log_in_trouble_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    show(described())
    shown = capsys.readouterr().out
    assert "log broker-a: WITHOUT LEADER" in shown
    assert "2 of 3 copies commit a message" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["broker-a-b", "b", "in", "sync", "b:10911", "-", "40", "in", "epoch", "0"] in lines
    assert ["broker-a-c", "c", "in", "sync", "AWAY", "-", "-"] in lines
    show(described(frozen="etcd went back"))
    assert "FROZEN: etcd went back" in capsys.readouterr().out


def test_each_copy_says_why_it_is_behind() -> None:
    log = LogDescription.from_wire(
        Log(state=led_log(), nodes=[replica_node("a"), replica_node("b")])
    )
    lags = {"b": ReplicaLag(True, 2048, 13.2), "c": ReplicaLag(False, None, None)}
    standings = {
        "a": ReplicaStanding(True, 1, True, "", 0, 5000, 5000, 5000, lags),
        "b": ReplicaStanding(False, 1, False, "it cannot write: no room", 0, 2952, 2952, 2952, {}),
    }
    b, c = troubles(log, standings)
    assert b.startswith("broker-a-b: it cannot write: no room; 2")
    assert b.endswith("behind, for 13 s")
    assert c == "broker-a-c: its process is not running"
    told = log_json(log, standings)["replicas"]
    assert [each["standing"] and each["standing"]["end"] for each in told] == [5000, 2952, None]


def test_a_learner_that_is_away_is_shown_with_the_command_that_removes_it() -> None:
    state = led_log()
    state.replicas.add(replica_id="d", name="broker-a-d")
    log = LogDescription.from_wire(Log(state=state, nodes=[replica_node(who) for who in "abc"]))
    *_, d = troubles(log, {})
    assert d == (
        "broker-a-d: its process is not running; "
        "it does not count: start it, or remove it: rockoon replica remove broker-a d"
    )


def test_a_copy_without_an_external_address_is_not_reported_as_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = [replica_node("a"), replica_node("b")]
    nodes[1].address = ""
    log = LogDescription.from_wire(Log(state=led_log(), nodes=nodes))
    show(log)
    assert ["broker-a-b", "b", "in", "sync", "-", "-", "-"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    _, b, c = troubles(log, {})
    assert b == ("broker-a-b: it has no external address: set advertise_external on broker-a-b")
    assert c == "broker-a-c: its process is not running"
    rows = [row[1:4] for row in copy_rows(LogStatus(log, {}))]
    assert rows[1:] == [
        ("broker-a-b", None, "NOT REACHED: see below"),
        ("broker-a-c", None, "AWAY"),
    ]
    with pytest.raises(NoExternalAddress, match="set advertise_external on broker-a-b"):
        reachable(nodes[1])


def test_the_price_of_a_forced_election_names_who_is_silent() -> None:
    question = loss_question(described())
    assert "broker-a-b ends at 40 in epoch 0" in question
    assert "Records that only broker-a-a, broker-a-c may have are lost" in question


def test_a_forced_election_says_which_copy_leads_and_what_is_lost() -> None:
    state = led_log()
    state.leader = ""
    for who, end, damaged in (("b", 40, False), ("c", 55, True)):
        state.reports[who].CopyFrom(Report(rank=Rank(end=end), sound=True, damaged=damaged))
    before = LogDescription.from_wire(Log(state=state))
    assert "broker-a-c ends at 55 in epoch 0, and is damaged" in loss_question(before)
    state.leader = "b"
    state.reports.clear()
    said = result_of_election(before, LogDescription.from_wire(Log(state=state)))
    assert "broker-a-b leads, its log ends at 40 in epoch 0" in said
    assert "records of broker-a-c, which ends at 55 in epoch 0, and is damaged, after 40" in said
    assert "records that only broker-a-a may have: not known how many" in said


def test_a_replica_is_named_by_its_id_where_two_have_one_name() -> None:
    state = led_log()
    state.replicas.add(replica_id="d", name="broker-a-b")
    log = LogDescription.from_wire(Log(state=state))
    assert log.replica("broker-a-c").id == log.replica("c").id == "c"
    assert log.replica("d").name == "broker-a-b"
    with pytest.raises(InvalidArgument, match=r"more than one.*\(b\).*\(d\)"):
        log.replica("broker-a-b")
    with pytest.raises(InvalidArgument, match="no replica"):
        log.replica("x")
