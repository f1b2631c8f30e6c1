"""`rockoon lag`: lag, owners, and the time until retention deletes unread messages."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon.cli.lag import disk_text, in_danger, loss_text, with_dangers_first
from rockoon.cluster import connect
from rockoon.consumer.pull import PullOutOfRange
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import (
    DELETED_DISK_PRESSURE,
    DELETED_WAIT_LIMIT,
    LOSS_DISK_FILLS,
    LOSS_DISK_FULL,
    LOSS_EXPIRED,
    LOSS_EXPIRED_AT_HOUR,
    DiskState,
)
from rockoon_proto.v1.offset_pb2 import BrokerDisk, LagReply, QueueLag, QueueRef
from support.eventually import eventually

HOUR_MS = 3_600_000


def unread(number: int, **more: Any) -> QueueLag:
    """A queue of 100 messages, 10 of them unread."""
    ref = QueueRef(topic="orders", broker="broker-a", queue_id=number)
    figures = {"known": True, "max_offset": 100, "committed_offset": 90, "lag": 10, **more}
    return QueueLag(queue=ref, **figures)


SAFE = unread(0, committed_offset=100, lag=0)
LATER = unread(1, loss_ms=9 * HOUR_MS, loss_cause=LOSS_EXPIRED_AT_HOUR)
SOON = unread(2, loss_ms=HOUR_MS, loss_cause=LOSS_EXPIRED_AT_HOUR)
NOW = unread(3, loss_ms=0, loss_cause=LOSS_DISK_FULL)
UNTOLD = unread(4)
AWAY = QueueLag(queue=SAFE.queue, unknown_because="broker 'broker-a' does not answer")
LOST = unread(5, min_offset=93, lost=3, loss_ms=0, loss_cause=LOSS_EXPIRED)
UNREAD_BY_NOBODY = QueueLag(queue=SAFE.queue, known=True, max_offset=100)


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (SAFE, None),
        (LATER, "9 h"),
        (NOW, "any moment: disk full"),
        (UNTOLD, "unknown"),
        (LOST, "3 LOST, any moment: expired"),
        (unread(6, loss_ms=90_000, loss_cause=LOSS_DISK_FILLS), "1.5 min: the disk fills"),
        (
            unread(7, lost=3, lost_because=DELETED_DISK_PRESSURE, loss_ms=HOUR_MS),
            "3 LOST (disk pressure), 1 h",
        ),
        (unread(8, lost=3, lost_because=DELETED_WAIT_LIMIT), "3 LOST (wait limit), unknown"),
        (unread(9, loss_ms=1 << 52, loss_cause=LOSS_EXPIRED), "kept"),
    ],
)
def test_a_loss_in_words(queue: QueueLag, text: str | None) -> None:
    assert loss_text(queue) == text


@pytest.mark.parametrize(
    ("disk", "text"),
    [
        (DiskState(used_percent=40), ""),
        (DiskState(used_percent=40, pressure_at_ms=1000 + 25 * HOUR_MS), ""),
        (
            DiskState(used_percent=40, pressure_at_ms=1000 + HOUR_MS),
            "disk of broker-a: 40 % full, full in 1 h at this rate: new messages are refused "
            "unless all groups have read the oldest ones",
        ),
        (
            DiskState(used_percent=86, pressure_at_ms=1000, deletes_unread=True),
            "disk of broker-a: 86 % full: the oldest files are deleted, read or not",
        ),
        (
            DiskState(used_percent=91, pressure_at_ms=1000, refusal="the disk is full"),
            "disk of broker-a: NEW MESSAGES ARE REFUSED: the disk is full",
        ),
    ],
)
def test_a_full_disk_in_words(disk: DiskState, text: str) -> None:
    assert disk_text(BrokerDisk(broker="broker-a", disk=disk, as_of_ms=1000)) == text


def test_a_place_that_was_deleted_says_why() -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    gone = PullOutOfRange(queue, 3, 10, 20, DELETED_DISK_PRESSURE)
    assert "7 messages were deleted under disk pressure before they were read" in str(gone)
    assert gone.to_error().details["deletion"] == "DELETED_DISK_PRESSURE"
    assert "deleted" not in str(PullOutOfRange(queue, 3, 10, 20))


def test_whatever_is_in_the_greatest_danger_comes_first() -> None:
    mixed = LagReply(queues=[SAFE, LATER, NOW, AWAY, LOST, UNTOLD, SOON])
    ordered = with_dangers_first(mixed)
    assert list(ordered.queues) == [LOST, AWAY, UNTOLD, NOW, SOON, LATER, SAFE]


@pytest.mark.parametrize(
    ("queues", "within_ms", "reason"),
    [
        ([SAFE, LATER, UNREAD_BY_NOBODY], 2 * HOUR_MS, ""),
        ([SOON], HOUR_MS - 1, ""),
        ([SOON, SAFE], HOUR_MS, "orders@broker-a:2 may lose unread messages in 1 h"),
        ([NOW], 0, "orders@broker-a:3 may lose unread messages at any moment"),
        ([LOST], 0, "3 unread messages of orders@broker-a:5 are lost"),
        ([UNTOLD], 0, "the time to loss of unread messages of orders@broker-a:4 is unknown"),
        (
            [AWAY, SOON],
            HOUR_MS,
            "the time to loss of unread messages of orders@broker-a:0 is unknown: broker "
            "'broker-a' does not answer, and 1 more queue is in danger",
        ),
    ],
)
def test_a_script_is_told_why_it_has_to_act(
    queues: list[QueueLag], within_ms: int, reason: str
) -> None:
    assert in_danger(LagReply(queues=queues), within_ms) == reason


def test_a_group_that_has_read_a_part(rockoon: Any, topic: str) -> None:
    group = f"{topic}-group"
    rockoon("produce", topic, stdin="\n".join(str(number) for number in range(20)))
    rockoon("consume", topic, "--group", group, "--from", "first", "--max-messages", "4")
    said = rockoon("lag", group, "--json").json
    assert said["complete"]
    behind = [queue for queue in said["queues"] if queue["lag"]]
    assert sum(queue["lag"] for queue in behind) == said["total_lag"] > 0
    for queue in behind:
        assert (queue["in_flight"], queue["ready"], queue["lost"]) == (0, queue["lag"], 0)
        if queue["loss_cause"] == "LOSS_DISK_FULL":
            pytest.skip("this machine's disk is so full that nothing on it is safe")
        # 72 hours, then the hour of deletions, which begins within a day.
        assert 71 * HOUR_MS < queue["loss_ms"] < 97 * HOUR_MS
        assert queue["loss_cause"].startswith("LOSS_EXPIRED")
    assert "LOSS IN" in rockoon("lag", group, topic).out
    rockoon("lag", group, "--fail-if-loss-within", "2h")
    sentence = rockoon.fails("lag", group, "--fail-if-loss-within", "30d")
    assert "may lose unread messages in " in sentence
    assert "is not a duration" in rockoon.misused("lag", group, "--fail-if-loss-within", "soon")


async def read_all(nameservers: Any, group: str, topic: str, members: Sequence[str]) -> None:
    """Each member reads twenty messages, and leaves."""
    async with connect(nameservers) as cluster:
        for member in members:
            seen: list[Any] = []
            options = {"mode": "broadcasting", "member_id": member, "consume_from": "first"}
            async with cluster.push_consumer(group, {topic: "*"}, seen.append, **options):
                await eventually(lambda: len(seen) == 20)  # noqa: B023 - within its own turn


def test_members_with_their_own_progress_are_told_apart_and_moved_apart(
    rockoon: Any, cluster: Any, topic: str
) -> None:
    group = f"{topic}-prices"
    created = rockoon("group", "create", group, "--broadcast-progress", "server", "--json").json
    assert created["broadcast_progress"] == "server"
    rockoon("produce", topic, stdin="\n".join(str(number) for number in range(20)))
    members = ("pod-0", "pod-1")
    asyncio.run(read_all(cluster.nameservers, group, topic, members))
    assert "broadcast-progress: server" in rockoon("group", "describe", group).out
    args = (group, topic, "--to-earliest", "--member", "pod-1", "--yes", "--json")
    plan = rockoon("offsets", "reset", *args).json
    assert {step["member"] for step in plan["steps"]} == {"pod-1"}
    queues = rockoon("lag", group, "--json").json["queues"]
    left = {member: sum(q["lag"] for q in queues if q["member"] == member) for member in members}
    assert left == {"pod-0": 0, "pod-1": 20}
    assert all(queue["absent"] for queue in queues)
    assert "pod-1 (absent)" in rockoon("lag", group).out
    assert f"{topic}@broker-a:0 for member pod-1" in rockoon("offsets", "why", group).out
    assert "'remote' is not one of local, server" in rockoon.misused(
        "group", "create", f"{group}-2", "--broadcast-progress", "remote"
    )
