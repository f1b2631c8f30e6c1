"""`rockoon lag` without a group: all groups, the worst first, once or again and again."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import typer

from rockoon.admin.descriptions import GroupSummary
from rockoon.admin.reads import GROUPS_AT_ONCE_MAX, GroupLag, answers
from rockoon.cli.arguments import check_watch_seconds, with_watch_seconds
from rockoon.cli.lag import GroupRow, row_of
from rockoon.errors import InvalidArgument, OffsetServiceUnavailable
from rockoon_proto.v1.broker_pb2 import LOSS_EXPIRED, LOSS_EXPIRED_AT_HOUR
from rockoon_proto.v1.nameserver_pb2 import Group, GroupConfig
from rockoon_proto.v1.offset_pb2 import (
    GroupMembers,
    LagReply,
    Member,
    QueueLag,
    QueueRef,
)
from support.running_command import running
from support.waiting import wait_until


def summary(name: str, *topics: str) -> GroupSummary:
    return GroupSummary(Group(config=GroupConfig(name=name)), dict.fromkeys(topics, 1))


def unread(number: int, lag: int, **more: Any) -> QueueLag:
    """A queue with some unread messages."""
    ref = QueueRef(topic="orders", broker="broker-a", queue_id=number)
    figures = {"known": True, "max_offset": 100, "committed_offset": 100 - lag, "lag": lag, **more}
    return QueueLag(queue=ref, **figures)


def row(name: str, *queues: QueueLag, bound_ms: int | None = None) -> GroupRow:
    found = GroupLag(summary(name), LagReply(queues=queues), GroupMembers(group=name))
    return row_of(found, bound_ms)


HOUR_MS = 3_600_000
LATER = {"loss_ms": 9 * HOUR_MS, "loss_cause": LOSS_EXPIRED_AT_HOUR}
SOON = {"loss_ms": HOUR_MS, "loss_cause": LOSS_EXPIRED_AT_HOUR}


def test_groups_are_in_the_order_of_the_loss_and_then_of_the_lag() -> None:
    away = QueueLag(queue=QueueRef(topic="orders", broker="broker-a"), unknown_because="away")
    refused = GroupLag(summary("many"), None, GroupMembers(), InvalidArgument(reason="too many"))
    rows = [
        row("safe", unread(0, 0)),
        row("little", unread(0, 3)),
        row("small", unread(0, 5, **LATER)),
        row("large", unread(0, 50, **LATER)),
        row("soon", unread(0, 1, **SOON), unread(1, 9, **LATER)),
        row("lost", unread(0, 8, lost=3, min_offset=95, loss_ms=0, loss_cause=LOSS_EXPIRED)),
        row("away", away, unread(1, 5, **LATER)),
        row_of(refused, None),
        row("empty"),
    ]
    rows.sort(key=lambda each: each.order)
    named = [each.group for each in rows]
    assert named == ["lost", "away", "little", "many", "soon", "large", "small", "empty", "safe"]
    texts = {each.group: each.loss_text() for each in rows}
    assert texts == {
        "lost": "3 LOST, any moment: expired",
        "away": "unknown: away",
        "little": "unknown: the broker reports no time to loss for orders@broker-a:0",
        "many": "unknown: the request is not valid: too many",
        "soon": "1 h",
        "large": "9 h",
        "small": "9 h",
        "empty": "",
        "safe": "",
    }


def test_a_row_sums_up_the_queues_and_counts_the_readers() -> None:
    readers = GroupMembers(members=[Member(member_id="a")], receiver_count=2)
    lag = LagReply(queues=[unread(0, 4, lag_ms=1000, **LATER), unread(1, 5, lag_ms=3000, **SOON)])
    found = row_of(GroupLag(summary("billing", "a", "b", "c"), lag, readers), None)
    assert found.cells() == ("billing", "a, b, c, 1 more", 9, "3 s", "1 h", 3)


def test_a_loss_within_the_bound_names_the_group_and_the_queue() -> None:
    late = row("late", unread(0, 4, **LATER), unread(1, 5, **SOON), bound_ms=HOUR_MS)
    assert late.danger == "orders@broker-a:1 may lose unread messages in 1 h"
    assert not row("late", unread(1, 5, **SOON), bound_ms=HOUR_MS - 1).danger
    refused = GroupLag(summary("many"), None, GroupMembers(), InvalidArgument(reason="too many"))
    assert row_of(refused, HOUR_MS).danger == "the request is not valid: too many"


def test_a_thousand_groups_are_asked_about_a_few_at_a_time() -> None:
    """One group is deleted during the command: it has no row."""
    running_now, running_most = 0, 0

    async def ask(group: GroupSummary) -> GroupLag | None:
        nonlocal running_now, running_most
        running_now += 1
        running_most = max(running_most, running_now)
        await asyncio.sleep(0)
        running_now -= 1
        name = group.group.config.name
        return None if name == "500" else GroupLag(group, LagReply(), GroupMembers(group=name))

    async def ask_all() -> list[str]:
        groups = [summary(str(number)) for number in range(1000)]
        return [each.name async for each in answers(groups, ask)]

    names = asyncio.run(ask_all())
    assert names == [str(number) for number in range(1000) if number != 500]
    assert running_most == GROUPS_AT_ONCE_MAX


def test_a_service_that_does_not_answer_is_one_error_and_ends_the_questions() -> None:
    asked: list[GroupSummary] = []

    async def ask(group: GroupSummary) -> GroupLag | None:
        asked.append(group)
        raise OffsetServiceUnavailable(address="nowhere")

    async def ask_all() -> list[GroupLag]:
        return [each async for each in answers([summary("a")] * 1000, ask)]

    with pytest.raises(OffsetServiceUnavailable):
        asyncio.run(ask_all())
    assert len(asked) <= GROUPS_AT_ONCE_MAX


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        (["lag", "--watch"], ["lag", "--watch=2"]),
        (["lag", "--watch", "--json"], ["lag", "--watch=2", "--json"]),
        (["lag", "--watch", "billing"], ["lag", "--watch=2", "billing"]),
        (["lag", "--watch", "0.5", "billing"], ["lag", "--watch", "0.5", "billing"]),
        (["lag", "--watch=7"], ["lag", "--watch=7"]),
        (["lag", "--", "--watch"], ["lag", "--", "--watch"]),
    ],
)
def test_the_seconds_of_watch_are_optional(typed: Sequence[str], given: Sequence[str]) -> None:
    assert with_watch_seconds(typed) == given


def test_a_watch_without_pause_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match=r"0 is not a number of seconds from 0\.1"):
        check_watch_seconds(0.0)


def test_all_groups_of_a_cluster(rockoon: Any, topic: str) -> None:
    """One has read a message of twenty, one has read all; other tests have groups of their own."""
    rockoon("produce", topic, stdin="\n".join(str(number) for number in range(20)))
    behind, ready = f"{topic}-behind", f"{topic}-ready"
    rockoon("consume", topic, "--group", behind, "--from", "first", "--max-messages", "1")
    rockoon("consume", topic, "--group", ready, "--from", "first")
    found = rockoon("lag", "--json", "--limit", "1000").json
    rows = {each["group"]: each for each in found["groups"]}
    names = list(rows)
    assert names.index(behind) < names.index(ready)
    assert rows[behind]["total_lag"] == rockoon("lag", behind, "--json").json["total_lag"] > 0
    assert (rows[ready]["total_lag"], rows[ready]["loss_ms"]) == (0, None)
    assert rows[behind]["topics"] == [topic]
    assert found["groups_left_out"] == 0

    # Groups of other tests can become the first one between two calls.
    assert len(rockoon("lag", "--json", "--limit", "1").json["groups"]) == 1
    shown = rockoon("lag", "--limit", "1").out
    assert re.search(r"\d+ more group", shown)
    assert shown.splitlines()[0].split() == [
        "GROUP",
        "TOPICS",
        "LAG",
        "OLDEST",
        "UNREAD",
        "LOSS",
        "IN",
        "READERS",
    ]
    sentence = rockoon.fails("lag", "--limit", "1", "--fail-if-loss-within", "30d")
    assert re.match(r"group [^ ]+: ", sentence)
    assert "it cannot be combined with GROUP" in rockoon.misused("lag", behind, "--limit", "1")


@pytest.mark.parametrize("group", [(), ("GROUP",)])
def test_a_watched_lag_is_shown_again_until_ctrl_c(
    rockoon: Any, topic: str, group: Sequence[str]
) -> None:
    rockoon("produce", topic, stdin="1\n2\n3\n4")
    rockoon("consume", topic, "--group", topic, "--from", "first", "--max-messages", "1")
    given = [topic for _ in group]
    with running(rockoon, "lag", *given, "--watch", "0.1", "--json") as watched:
        wait_until(lambda: len(watched.lines) >= 3, "the third report")
        assert watched.end() == 0
    reports = [json.loads(line) for line in watched.lines[:3]]
    assert reports[0].keys() >= ({"queues"} if group else {"groups"})
    with running(rockoon, "lag", *given, "--watch") as watched:
        wait_until(lambda: b"" in watched.lines, "the end of a block")
        assert watched.end() == 0
    assert watched.lines[0].startswith(b"20"), "the time"


def test_a_watch_ends_when_messages_are_in_danger(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin="1\n2\n3\n4")
    rockoon("consume", topic, "--group", topic, "--from", "first", "--max-messages", "1")
    sentence = rockoon.fails("lag", topic, "--watch", "--fail-if-loss-within", "30d")
    assert "may lose unread messages" in sentence
