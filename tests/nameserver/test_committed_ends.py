"""Committed ends: records of leaders, and elections whose best candidate ends before them."""

import logging
from functools import partial

import pytest

from rockoon_nameserver import elections
from rockoon_nameserver.elections import CommittedEnd, LogDecision, missing_records, next_record
from rockoon_nameserver.keyspace import (
    Keyspace,
    LogKey,
    UnreadableKey,
    committed_end_value,
    read_committed_end,
)
from rockoon_nameserver.log_membership import frozen
from rockoon_proto.v1.logs_pb2 import (
    ElectLogRequest,
    LogState,
    Rank,
    RecordCommittedEndRequest,
    Report,
    ReportLogRequest,
    ResignRequest,
)
from rockoon_proto.v1.nameserver_pb2 import BROKER, ReplicaFacts
from support.etcd import EtcdServer
from support.log_states import LOG, call, come, depose, led_log
from support.log_watch import call_logs, register
from support.nameserver import Nameserver, running_nameserver

RECORD = CommittedEnd(epoch=2, end=100, losses=0)


def report_to(state: LogState, record: CommittedEnd | None, who: str, rank: Rank) -> LogDecision:
    told = Report(rank=rank, sound=True, promised=state.epoch)
    return elections.report(state, call(state, who), told, partial(missing_records, state, record))


@pytest.mark.parametrize(
    ("record", "rank", "lacks"),
    [
        (None, Rank(epoch=0, end=0), False),
        (RECORD, Rank(epoch=2, end=100), False),
        (RECORD, Rank(epoch=2, end=250), False),
        (RECORD, Rank(epoch=3, end=180), False),
        (RECORD, Rank(epoch=2, end=99), True),
        # Longer, and without the record that opened the epoch of these commits.
        (RECORD, Rank(epoch=1, end=500), True),
        (RECORD, Rank(epoch=3, end=99), True),
        # An operator has accepted a loss since.
        (RECORD._replace(losses=1), Rank(epoch=0, end=0), False),
    ],
)
def test_the_winner_of_an_election_has_at_least_what_was_recorded(
    record: CommittedEnd | None, rank: Rank, lacks: bool
) -> None:
    assert bool(missing_records(led_log(), record, "b", rank)) == lacks


def test_an_election_whose_best_candidate_ends_earlier_waits_and_a_better_one_ends_that() -> None:
    state = led_log()
    for _ in range(2):
        elections.begin_election(state)
    state = report_to(state, RECORD, "c", Rank(epoch=2, end=10)).state
    assert (state.leader, state.held) == ("", "")
    outcome = report_to(state, RECORD, "b", Rank(epoch=2, end=40))
    assert (outcome.done, outcome.state.leader) == (True, "")
    state = outcome.state
    assert state.held == (
        "of the replicas that reported, broker-a-b has the most records: up to 40 in epoch 2. But "
        "the log was committed up to 100 in epoch 2, as its leader recorded: acknowledged records "
        "are missing"
    )
    # Repeated, it changes nothing.
    assert report_to(state, RECORD, "b", Rank(epoch=2, end=40)).state is state
    after = report_to(state, RECORD, "a", Rank(epoch=2, end=100)).state
    assert (after.leader, after.held) == ("a", "")


def test_an_operator_goes_on_with_the_best_that_there_is_and_the_record_counts_no_more() -> None:
    state = depose(led_log())
    record = RECORD._replace(epoch=1)
    for who, end in (("b", 40), ("c", 10)):
        state = report_to(state, record, who, Rank(epoch=1, end=end)).state
    assert state.held
    state = elections.elect(state, state.version, accept_loss=True).state
    assert (state.leader, state.held, state.losses, state.loss_end) == ("b", "", 1, 40)
    state = depose(state)
    for who in "bc":
        state = report_to(state, record, who, Rank(epoch=2, end=60)).state
    assert state.leader == "c"


def test_an_election_that_is_begun_once_more_asks_everybody_once_more() -> None:
    state = depose(led_log())
    for who in "bc":
        state = report_to(state, RECORD, who, Rank(epoch=1, end=40)).state
    assert state.held
    elections.begin_election(state)
    assert (state.held, len(state.reports)) == ("", 0)


@pytest.mark.parametrize(
    ("before", "end", "after"),
    [
        (None, 70, CommittedEnd(1, 70, 0)),
        (CommittedEnd(1, 60, 0), 70, CommittedEnd(1, 70, 0)),
        (CommittedEnd(1, 70, 0), 70, None),
        # A call that arrives late.
        (CommittedEnd(1, 80, 0), 70, None),
        (CommittedEnd(0, 80, 0), 90, CommittedEnd(1, 90, 0)),
        # The log may end earlier after a loss was accepted.
        (CommittedEnd(0, 80, 5), 20, CommittedEnd(1, 20, 0)),
        (None, 0, None),
        (None, -1, None),
    ],
)
def test_a_leader_records_what_it_has_committed_when_that_has_grown(
    before: CommittedEnd | None, end: int, after: CommittedEnd | None
) -> None:
    state = led_log()
    assert next_record(state, before, call(state, "a"), end) == after


def test_only_the_leader_of_the_present_epoch_records_and_not_while_the_log_is_frozen() -> None:
    state = led_log()
    assert next_record(state, None, call(state, "b"), 70) is None
    assert next_record(depose(state), None, call(state, "a"), 70) is None
    assert next_record(frozen(state, "etcd went back"), None, call(state, "a"), 70) is None


def test_its_key_is_outside_of_what_nameservers_watch() -> None:
    keyspace = Keyspace("main")
    key = keyspace.committed_end(LogKey(BROKER, LOG)).encode()
    assert key == b"/rockoon/main@committed/broker/broker-a"
    watched = keyspace.everything
    assert not watched.first <= key < watched.end
    assert read_committed_end(committed_end_value(RECORD)) == RECORD
    for odd in (b"", b"[]", b"{}", b'{"epoch":1,"end":"x","losses":0}'):
        with pytest.raises(UnreadableKey):
            read_committed_end(odd)


@pytest.mark.parametrize(
    ("told", "known"),
    [
        # (starts, run) of a replica's successive reports, and the resulting pair in etcd.
        (((1, 11), (2, 22)), (2, 22)),
        (((2, 22), (2, 22)), (2, 22)),
        # Another start of the same number, or of a lower one: its store is an older snapshot.
        (((2, 22), (2, 23)), (2, 22)),
        (((5, 55), (2, 23), (6, 23)), (6, 23)),
        # A process of a former version counts nothing.
        (((5, 55), (0, 0)), (5, 55)),
    ],
)
def test_etcd_keeps_the_latest_start_of_each_replica(
    told: tuple[tuple[int, int], ...], known: tuple[int, int]
) -> None:
    state = led_log()
    for starts, run in told:
        before = state
        state = come(state, "b", empty=False, starts=starts, run=run)
        entry = next(each for each in state.replicas if each.replica_id == "b")
        assert state.version == before.version + (state is not before)
    assert (entry.starts, entry.run) == known


async def recorded(nameserver: Nameserver, state: LogState, end: int) -> bool:
    request = RecordCommittedEndRequest(caller=call(state, state.leader), end=end)
    return bool((await call_logs(nameserver, "RecordCommittedEnd", request)).done)


async def test_any_nameserver_stops_the_election_of_a_log_that_lost_records_and_says_so_once(
    shared_etcd: EtcdServer, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    etcd = (shared_etcd.endpoint,)
    async with (
        running_nameserver(etcd=etcd, cluster=cluster) as one,
        running_nameserver(etcd=etcd, cluster=cluster) as other,
    ):
        facts = ReplicaFacts(empty=True, copies=3, starts=1, run=7)
        for who in "abc":
            await register(one, who, facts=facts)

        async def report(state: LogState, who: str, end: int) -> LogState:
            told = Report(rank=Rank(epoch=state.epoch - 1, end=end), sound=True)
            request = ReportLogRequest(caller=call(state, who), report=told)
            return (await call_logs(other, "ReportLog", request)).state

        state = LogState(kind=BROKER, log=LOG, epoch=1)
        state = await report(await report(state, "a", 1), "b", 0)
        assert state.leader == "a"
        assert [(each.starts, each.run) for each in state.replicas] == [(1, 7)] * 3
        assert await recorded(one, state, 100)
        assert await recorded(other, state, 90)
        before = state
        state = (await call_logs(one, "Resign", ResignRequest(caller=call(state, "a")))).state
        assert state.version == before.version + 1, "records make no versions"
        assert not await recorded(one, before, 200)
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                state = await report(await report(state, "b", 40), "c", 30)
        assert (state.leader, bool(state.held)) == ("", True)
        (line,) = [each for each in caplog.messages if "waits for an operator" in each]
        assert "rockoon log elect broker-a --accept-loss" in line
        request = ElectLogRequest(kind=BROKER, log=LOG, accept_loss=True)
        state = (await call_logs(one, "ElectLog", request)).state
        assert (state.leader, state.held) == ("b", "")
