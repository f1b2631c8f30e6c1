"""`rockoon top`: rates and lag of topics and groups, from samples."""

import json
import re
from typing import Any

import pytest

from rockoon.admin.descriptions import GroupSummary
from rockoon.admin.reads import GroupLag
from rockoon.cli.top import (
    Mark,
    Sample,
    SampleWindow,
    TopGroupRow,
    TopTopicRow,
    fitting,
    is_quiet_system_topic,
    rate,
    rows_of,
    settled_of,
)
from rockoon.errors import Busy
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import Group, GroupConfig
from rockoon_proto.v1.offset_pb2 import GroupMembers, LagReply, Member, QueueLag, QueueRef
from support.running_command import running
from support.waiting import wait_until

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(2)]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (Mark(10, 1000, 7), Mark(25, 4000, 7), 5.0),
        (Mark(10, 1000, 7), Mark(10, 4000, 7), 0.0),
        (None, Mark(25, 4000, 7), None),
        # The queue was deleted and created again.
        (Mark(10, 1000, 7), Mark(25, 4000, 9), None),
        # A reset went back.
        (Mark(10, 1000, 7), Mark(2, 4000, 7), None),
        # Another broker answers, whose clock is behind.
        (Mark(10, 4000, 7), Mark(25, 4000, 7), None),
    ],
)
def test_a_rate_is_known_between_two_marks_of_one_queue(
    before: Mark | None, now: Mark, expected: float | None
) -> None:
    assert rate(before, now) == expected


def lag_of(number: int, committed: int | None, **more: Any) -> QueueLag:
    queue = QueueRef(topic="orders", broker="broker-a", queue_id=number)
    known = {"known": True, "max_offset": 100, "as_of_ms": 5000, **more}
    if committed is not None:
        known |= {"committed_offset": committed, "lag": 100 - committed}
    return QueueLag(queue=queue, **known)


def sample(seconds: float, end: int, *queues: QueueLag, error: Exception | None = None) -> Sample:
    ends = {queue: Mark(end, round(seconds * 1000), 7) for queue in QUEUES}
    summary = GroupSummary(Group(config=GroupConfig(name="billing")), {"orders": 5})
    readers = GroupMembers(group="billing", members=[Member(member_id="m")], receiver_count=2)
    reply = None if error else LagReply(queues=queues)
    settled = {
        ("billing", each.member, MessageQueue("orders", "broker-a", each.queue.queue_id)): mark
        for each in queues
        if each.known and (mark := settled_of(each, ends[QUEUES[each.queue.queue_id]]))
    }
    lag: Any = GroupLag(summary, reply, readers, error)  # type: ignore[arg-type]
    return Sample(seconds, ends, settled, [lag], {})


def test_a_topic_and_its_group_have_the_rates_of_all_queues() -> None:
    before = sample(0, 40, lag_of(0, 10, as_of_ms=0), lag_of(1, 20, as_of_ms=0))
    now = sample(
        5, 60, lag_of(0, 15, lag_ms=900), lag_of(1, 20, settled_above=10, lag_ms=70, lag=80)
    )
    (row,) = rows_of(before, now)
    assert (row.topic, row.in_per_second) == ("orders", 8.0)
    (group,) = row.groups
    assert (group.group, group.out_per_second) == ("billing", 3.0)
    assert (group.lag, group.lag_ms, group.complete) == (165, 900, True)
    assert (group.members, group.receivers) == (1, 2)


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    away = QueueLag(queue=lag_of(1, 0).queue, unknown_because="broker-a does not answer")
    (row,) = rows_of(None, sample(5, 60, lag_of(0, 90), away))
    (group,) = row.groups
    assert (row.in_per_second, group.out_per_second) == (None, None)
    assert (group.lag, group.complete) == (10, False)
    assert group.cells()[4] == "10 (some queues are unknown)"
    (row,) = rows_of(None, sample(5, 60, lag_of(0, None)))
    assert row.groups[0].lag == 0
    (row,) = rows_of(None, sample(5, 60, error=Busy(reason="later")))
    assert row.groups == []


@pytest.mark.parametrize(
    ("times", "before"),
    [
        ([0], None),
        ([0, 2], 0),
        ([0, 2, 4, 6, 8, 10], 0),
        ([0, 2, 4, 6, 8, 10, 12], 2),
        # The interval is longer than the window.
        ([0, 60, 120], 60),
        # Samples that are close together are not kept.
        ([*(number / 10 for number in range(200)), 20.0], 10),
    ],
)
def test_a_rate_is_of_the_last_ten_seconds(times: list[float], before: float | None) -> None:
    window = SampleWindow()
    for seconds in times:
        found = window.add(sample(seconds, 60))
    assert (None if found is None else round(found.taken_seconds)) == before


def test_the_busiest_topics_come_first_with_all_their_groups() -> None:
    rows = [
        TopTopicRow("idle"),
        TopTopicRow("behind", 0.0, [TopGroupRow("g", 0.0, lag=9)]),
        TopTopicRow("busy", 5.0, [TopGroupRow("g", 4.0), TopGroupRow("h", 4.0)]),
    ]
    assert [each.topic for each in sorted(rows, key=lambda row: row.order)] == [
        "busy",
        "behind",
        "idle",
    ]
    assert [fitting(rows, lines) for lines in (1, 2, 3, 5, 6, 9)] == [1, 1, 2, 2, 3, 3]


def test_retry_topics_are_shown_while_they_have_messages() -> None:
    assert is_quiet_system_topic(TopTopicRow("%RETRY%g", 0.0, [TopGroupRow("g", 0.0)]))
    assert not is_quiet_system_topic(TopTopicRow("%RETRY%g", None, [TopGroupRow("g", lag=1)]))
    assert not is_quiet_system_topic(TopTopicRow("%DLQ%g", 0.5))
    assert not is_quiet_system_topic(TopTopicRow("orders", 0.0))


def test_top_shows_rates_while_messages_are_sent_and_read_until_ctrl_c(
    rockoon: Any, topic: str
) -> None:
    group = f"{topic}-group"
    rockoon("produce", topic, stdin="1\n2\n3\n4\n")
    rockoon("consume", topic, "--group", group, "--from", "first")
    with running(rockoon, "top", topic, "--interval", "0.1", "--json") as watched:
        wait_until(lambda: len(watched.lines) >= 1, "the first report")
        rockoon("produce", topic, stdin="".join(f"{n}\n" for n in range(50)))
        rockoon("consume", topic, "--group", group)

        def rows() -> list[Any]:
            (row,) = json.loads(watched.lines[-1])["topics"]
            return [row["in_per_second"], row["groups"][0]["out_per_second"]]

        wait_until(lambda: all(rows()), "the rates")
        assert watched.end() == 0
    report = json.loads(watched.lines[-1])
    (row,) = report["topics"]
    assert row["topic"] == topic
    assert report["unknown"] == []
    assert [each["group"] for each in row["groups"]] == [group]
    assert (row["groups"][0]["lag"], row["groups"][0]["complete"]) == (0, True)

    with running(rockoon, "top", "--interval", "0.1") as watched:
        wait_until(lambda: b"" in watched.lines, "the end of a block")
        assert watched.end() == 0
    assert watched.lines[0].startswith(b"20"), "the time"


def test_one_report_of_top(rockoon: Any, filled: str) -> None:
    topic = filled
    group = f"{topic}-group"
    rockoon("consume", topic, "--group", group, "--from", "first", "--max-messages", "2")
    lag = rockoon("lag", group, "--json").json["total_lag"]
    shown = rockoon("top", topic, "--once", "--interval", "0.2")
    assert shown.words[0][:4] == ["TOPIC", "GROUP", "IN/S", "OUT/S"]
    rows = {words[0]: words[1:] for words in shown.words}
    assert rows[topic] == ["0.0"]
    assert rows[group][:2] == ["0.0", str(lag)]
    (of_topic,) = rockoon("top", topic, "--once", "--interval", "0.2", "--json").json["topics"]
    assert of_topic["in_per_second"] == 0.0
    every = rockoon("top", "--once", "--interval", "0.1", "--limit", "1")
    assert re.search(r"\d+ more topics? not shown: --limit shows more", every.out)
    for once in (("--once",), ()):
        assert "does not exist" in rockoon.fails("top", "nowhere", *once)
    refused = rockoon.misused("top", "--once", "--interval", "0")
    assert "0 is not a number of seconds from 0.1" in refused
