"""Readers of one group with different filters cause a warning; they are listed, and expire."""

import asyncio
import logging
import time
from itertools import pairwise

import pytest
from offset.cluster import GROUP, TOPIC, Cluster
from offset.receiver import Receiver

from rockoon_offset.in_flight import filters
from rockoon_offset.in_flight.filters import ReaderFilters, TopicFilter
from rockoon_offset.members.membership import CLUSTERING, Membership
from rockoon_offset.progress.records import GroupMember
from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_proto.v1 import offset_pb2

MINUTE_MS = 60_000
NS = 10**9


class Readers:
    """Filters of a group, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.membership = Membership(10 * NS, 1)
        self.membership.open(0)
        self.filters = ReaderFilters(self.membership, lambda: self.now_ms)

    def report(self, receiver: str, expression: str, invisible_ms: int = 1_000) -> str:
        (warning,) = self.store(GROUP, receiver, TopicFilter(TOPIC, expression), invisible_ms)
        return warning

    def store(self, group: str, receiver: str, of: TopicFilter, invisible_ms: int) -> list[str]:
        removals = self.filters.removals
        return list(self.filters.report(group, [receiver], [of], invisible_ms, removals))

    def join(self, name: str, expression: str) -> None:
        read = ((TOPIC, expression),)
        member = GroupMember(name, name, CLUSTERING, read, "", 0, "", 0)
        self.membership.heartbeat(GROUP, member, 0, 0)

    def listed(self) -> list[tuple[str, str]]:
        found = self.filters.of_receivers(GROUP)
        return [(each.receiver, each.filter.expression) for each in found]


def test_receivers_that_agree_are_not_warned(caplog: pytest.LogCaptureFixture) -> None:
    readers = Readers()
    assert readers.report("r1", "TagA") == readers.report("r2", "TagA") == ""
    assert readers.listed() == [("r1", "TagA"), ("r2", "TagA")]
    assert readers.filters.conflicts(GROUP) == []
    assert not caplog.records


def test_receivers_that_differ_are_warned_with_both_filters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    readers = Readers()
    assert readers.report("r1", "TagA") == ""
    said = readers.report("r2", "SQL92: a > 1")
    assert "topic orders" in said
    assert "'SQL92: a > 1', 'TagA'." in said
    (conflict,) = readers.filters.conflicts(GROUP)
    assert "'SQL92: a > 1' (r2), 'TagA' (r1)." in conflict
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"group {GROUP}: {conflict}"


def test_a_warning_is_logged_again_for_other_filters_or_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    readers = Readers()
    readers.report("r1", "TagA", 10 * MINUTE_MS)
    for _ in range(3):
        readers.report("r2", "TagB", 10 * MINUTE_MS)
    assert len(caplog.records) == 1
    readers.report("r3", "TagC", 10 * MINUTE_MS)
    assert len(caplog.records) == 2
    readers.now_ms += filters.WARNED_AGAIN_MS - 1
    readers.report("r1", "TagA")
    assert len(caplog.records) == 2
    readers.now_ms += 1
    readers.report("r1", "TagA")
    readers.report("r2", "TagB")
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("invisible_ms", "kept_ms"),
    [(1_000, MINUTE_MS), (MINUTE_MS, 2 * MINUTE_MS), (600 * MINUTE_MS, 10 * MINUTE_MS)],
)
def test_a_receiver_that_is_gone_is_forgotten(invisible_ms: int, kept_ms: int) -> None:
    readers = Readers()
    readers.report("r1", "TagA", invisible_ms)
    readers.now_ms += kept_ms - 1
    assert readers.listed() == [("r1", "TagA")]
    readers.now_ms += 1
    assert readers.listed() == []
    assert readers.report("r2", "TagB") == ""


def test_a_member_that_pulls_differs_from_receivers_too() -> None:
    readers = Readers()
    readers.join("m1", "*")
    assert "'*', 'TagA'" in readers.report("r1", "TagA")
    assert readers.filters.readers_of(GROUP, TOPIC) == {"*": ["m1"], "TagA": ["r1"]}
    assert readers.filters.readers_of(GROUP, "payments") == {}


def test_receivers_that_leave_during_a_report_and_members_that_join_count_at_once() -> None:
    readers = Readers()
    wanted = [TopicFilter(topic, "TagA") for topic in ("t1", "t2", TOPIC)]
    removals = readers.filters.removals
    report = readers.filters.report(GROUP, ["a", "b"], wanted, 1_000, removals)
    assert not next(report)
    readers.filters.remove(GROUP, "a")
    assert not next(report)
    readers.join("m1", "*")
    assert "'*', 'TagA'" in next(report)
    assert readers.listed() == [("b", "TagA")] * 3
    readers.filters.remove(GROUP, "b")
    assert [*readers.filters.report(GROUP, ["a", "b"], wanted, 1_000, removals)] == []
    assert readers.listed() == []
    # A receiver may return under its name.
    assert readers.report("a", "*") == ""
    assert readers.listed() == [("a", "*")]


def test_what_is_kept_of_receivers_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GROUPS_MAX", "TOPICS_MAX", "EXPRESSIONS_MAX", "RECEIVERS_MAX", "REMOVED_MAX"):
        monkeypatch.setattr(filters, name, 2)
    readers = Readers()
    for number in range(5):
        readers.report(f"r{number}", "TagA")
    assert readers.listed() == [("r3", "TagA"), ("r4", "TagA")]
    for number in range(5):
        readers.report("r", f"Tag{number}")
    assert readers.listed() == [("r", "Tag3"), ("r", "Tag4")]
    for number in range(5):
        readers.store(GROUP, "r", TopicFilter(f"t{number}", "*"), 1)
    assert {each.filter.topic for each in readers.filters.of_receivers(GROUP)} == {"t3", "t4"}
    for number in range(5):
        readers.filters.remove(GROUP, f"r{number}")
    # Receivers that left long before are reported again: the bound on them has removed r2.
    report = readers.filters.report(GROUP, ["r2", "r3"], [TopicFilter("t", "*")], 1, 0)
    assert [*report] == [""]
    assert {each.receiver for each in readers.filters.of_receivers(GROUP)} == {"r", "r2"}
    for number in range(5):
        readers.store(f"g{number}", "r", TopicFilter(TOPIC, "*"), 1)
    assert [bool(list(readers.filters.of_receivers(f"g{each}"))) for each in range(5)] == [
        False, False, False, True, True,
    ]  # fmt: skip


async def test_the_largest_report_of_a_program_with_many_receivers_costs_little(
    cluster: Cluster,
) -> None:
    receiver = Receiver(cluster, language="PYTHON")
    await cluster.until_revision()
    shares = [pb.Share(receiver=f"r{number}", messages_max=1) for number in range(64)]
    expressions = [f"Tag{number % filters.EXPRESSIONS_MAX}" for number in range(4096)]
    wanted = [offset_pb2.TopicSubscription(topic=TOPIC, expression=each) for each in expressions]
    loop, ticks = asyncio.get_running_loop(), [time.thread_time()]

    def tick() -> None:
        nonlocal timer
        ticks.append(time.thread_time())
        timer = loop.call_later(0.01, tick)

    timer = loop.call_later(0.01, tick)
    await receiver.acquire(shares=shares, filters=wanted)
    timer.cancel()
    # One receiver costs 0.1 s. If each of the receivers costs as much, these are 6 s.
    assert ticks[-1] - ticks[0] < 3
    # If one turn of the event loop stored all filters, it would need 0.4 s.
    assert max(after - before for before, after in pairwise(ticks)) < 0.2
    reply = await cluster.stub.ListMembers(offset_pb2.ListMembersRequest(group=GROUP))
    (group,) = reply.groups
    assert {each.receiver for each in group.receivers} == {each.receiver for each in shares}


def test_a_sentence_names_a_few_and_counts_the_rest() -> None:
    readers = {"TagA": ["a", "b", "c", "d"], "x" * 1000: ["e"]}
    said = filters.sentence(TOPIC, readers)
    assert "'TagA' (a, b, c and 1 more)" in said
    assert len(said) < 600
    many = {f"Tag{number:02}": ["a"] for number in range(20)}
    assert "'Tag07' (a), and 12 more filters." in filters.sentence(TOPIC, many)


def wanting(expression: str) -> offset_pb2.TopicSubscription:
    return offset_pb2.TopicSubscription(topic=TOPIC, expression=expression)


async def test_a_receiver_hears_of_another_filter_and_tools_show_both(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire(messages_max=1, filters=[wanting("TagA")])
    assert not receiver.granted.filter_conflict
    other = Receiver(cluster, receiver="other")
    await other.acquire(messages_max=1, filters=[wanting("TagB")])
    assert "'TagA', 'TagB'" in other.granted.filter_conflict
    # Most acquisitions report nothing, and are answered nothing.
    await other.acquire(messages_max=1)
    assert not other.granted.filter_conflict

    reply = await cluster.stub.ListMembers(offset_pb2.ListMembersRequest(group=GROUP))
    (found,) = reply.groups
    assert [(each.receiver, each.filter.expression) for each in found.receivers] == [
        ("r", "TagA"),
        ("other", "TagB"),
    ]
    assert "'TagA' (r), 'TagB' (other)" in found.filter_conflicts[0]
    lag = (await cluster.stub.Lag(offset_pb2.LagRequest(group=GROUP, topic=TOPIC))).queues[0]
    assert (lag.filter, lag.filters_differ) == ("TagA; TagB", True)


async def test_a_receiver_that_leaves_while_its_call_waits_reports_no_filter(
    cluster: Cluster, receiver: Receiver
) -> None:
    hold = cluster.broker.hold_next_status()
    left = pb.ClientReport(name=pb.ClientName(group=GROUP, client_id="r"), goodbye=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(receiver.acquire(messages_max=1, filters=[wanting("TagA")]))
        await cluster.until(lambda: cluster.broker.held)
        await receiver.stub.ReportClients(
            pb.ReportClientsRequest(gateway="g", gateway_id="1", clients=[left])
        )
        hold.set()
    assert receiver.granted.acquired
    other = Receiver(cluster, receiver="other")
    await other.acquire(messages_max=1, filters=[wanting("TagB")])
    assert not other.granted.filter_conflict


async def test_a_report_that_cannot_be_is_refused(receiver: Receiver) -> None:
    for bad in (wanting("x" * 1025), offset_pb2.TopicSubscription(topic="a b", expression="*")):
        await receiver.acquire(filters=[bad])
        assert receiver.granted.HasField("error")
    wish = [wanting("TagA")] * 4097
    await receiver.acquire(filters=wish)
    assert receiver.granted.HasField("error")
    assert isinstance(receiver.granted, pb.Granted)
