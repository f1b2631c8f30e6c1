"""Lag of one group, by queue or by urgency, and of all groups, as tables and as JSON."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.cli.output import (
    counted,
    duration,
    optional_field,
    picked,
    print_table,
    queue_fields,
    queue_text,
)

if TYPE_CHECKING:
    from rockoon.admin.reads import GroupLag
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.offset_pb2 import BrokerDisk, LagReply, QueueLag


EMPTY = "It reads no queues yet."
DISK_WARNING_MS = 86_400_000
# Longer than any retention time: a store written by RocketMQ, whose files are never deleted.
NEVER_MS = 1 << 50


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Lag of one group.

    Attributes:
        reply: lag by queue, most urgent first.
        members: number of live members that pull.
        receivers: number of clients that acknowledge message by message.
        danger: the reason for exit status 1, in one sentence; else empty.
    """

    group: str
    reply: "LagReply"
    members: int
    receivers: int
    danger: str

    def show(self) -> None:
        show_dangers(self.reply)
        print(readers_text(self.members, self.receivers))

    def to_json(self) -> dict[str, Any]:
        readers = {"members": self.members, "receivers": self.receivers}
        return {"group": self.group} | readers | lag_json(self.reply)


async def report_group(
    cluster: "Cluster", group: str, topic: str, bound_ms: int | None
) -> GroupReport:
    """Return the lag of a group.

    Args:
        topic: only this topic; empty for all topics.
        bound_ms: a loss within this time is a danger; None reports no dangers.
    """
    reply = with_dangers_first(await cluster.admin.lag(group, topic))
    readers = await cluster.admin.readers(group)
    danger = "" if bound_ms is None else in_danger(reply, bound_ms)
    return GroupReport(group, reply, len(readers.members), readers.receiver_count, danger)


def readers_text(members: int, receivers: int) -> str:
    """Return the number of readers as text, for example "read by 2 members and 1 client"."""
    counts = (members, "member"), (receivers, "client")
    texts = [counted(count, noun) for count, noun in counts if count]
    return f"read by {' and '.join(texts)}" if texts else "no readers"


def lag_json(reply: "LagReply") -> dict[str, Any]:
    return {
        **picked(reply, "total_lag", "complete", "as_of_ms"),
        "queues": [queue_lag_json(each) for each in reply.queues],
        "disks": [disk_json(each) for each in reply.disks],
    }


def queue_lag_json(lag: "QueueLag") -> dict[str, Any]:
    fields: dict[str, Any] = {
        **queue_fields(lag.queue),
        "member": lag.member or None,
    }
    if not lag.known:
        return fields | {"unknown_because": lag.unknown_because}
    return fields | {
        **picked(lag, "min_offset", "max_offset"),
        "committed_offset": optional_field(lag, "committed_offset"),
        "in_flight": optional_field(lag, "in_flight"),
        "in_flight_as_of_ms": lag.in_flight_as_of_ms or None,
        "ready": optional_field(lag, "ready"),
        "settled_above": lag.settled_above,
        "lag": optional_field(lag, "lag"),
        "lag_ms": optional_field(lag, "lag_ms"),
        "lost": lag.lost,
        "lost_because": deletion_name(lag) if lag.lost else None,
        "loss_ms": optional_field(lag, "loss_ms"),
        "loss_cause": cause_name(lag) if lag.HasField("loss_ms") else None,
        "filter": lag.filter or None,
        **picked(lag, "filters_differ", "owner", "absent", "as_of_ms"),
    }


def cause_name(lag: "QueueLag") -> str:
    from rockoon_proto.v1.broker_pb2 import LossCause

    return LossCause.Name(lag.loss_cause)


def deletion_name(lag: "QueueLag") -> str:
    from rockoon_proto.v1.broker_pb2 import DeletionReason

    return DeletionReason.Name(lag.lost_because)


def disk_json(each: "BrokerDisk") -> dict[str, Any]:
    disk = each.disk
    return {
        "broker": each.broker,
        "used_percent": disk.used_percent,
        "pressure_at_ms": optional_field(disk, "pressure_at_ms"),
        "deletes_unread": disk.deletes_unread,
        "refusal": disk.refusal or None,
        "as_of_ms": each.as_of_ms,
    }


def show_lag(reply: "LagReply") -> None:

    def row(lag: "QueueLag") -> tuple[Any, ...]:
        queue = queue_fields(lag.queue).values()
        if not lag.known:
            return (*queue, None, None, None, None, lag.unknown_because)
        return (
            *queue,
            optional_field(lag, "committed_offset"),
            lag.max_offset,
            optional_field(lag, "lag"),
            duration(optional_field(lag, "lag_ms")),
            reader_text(lag),
        )

    print_table(
        ("TOPIC", "BROKER", "QUEUE", "COMMITTED", "END", "LAG", "BEHIND BY", "LAST OWNER"),
        map(row, reply.queues),
        numbers=("QUEUE", "COMMITTED", "END", "LAG"),
        empty=EMPTY,
    )
    show_sum(reply)
    show_filters(reply)


def show_dangers(reply: "LagReply") -> None:
    """Print a table with unread messages, their readers, and when retention may delete them."""

    def row(lag: "QueueLag") -> tuple[Any, ...]:
        queue = queue_text(lag.queue)
        if not lag.known:
            return (queue, None, None, None, None, "unknown", lag.unknown_because)
        return (
            queue,
            optional_field(lag, "lag"),
            optional_field(lag, "in_flight"),
            optional_field(lag, "ready"),
            duration(optional_field(lag, "lag_ms")),
            loss_text(lag),
            reader_text(lag),
        )

    print_table(
        ("QUEUE", "LAG", "IN FLIGHT", "READY", "BEHIND BY", "LOSS IN", "READER"),
        map(row, reply.queues),
        numbers=("LAG", "IN FLIGHT", "READY"),
        empty=EMPTY,
    )
    show_sum(reply)
    show_filters(reply)


def show_sum(reply: "LagReply") -> None:
    if reply.queues:
        whole = "" if reply.complete else " (some queues are unknown)"
        print(f"total lag: {reply.total_lag} messages{whole}")
    for each in reply.disks:
        if text := disk_text(each):
            print(text)


def disk_text(each: "BrokerDisk") -> str:
    """Return a warning about the disk of a broker; empty without one.

    Only the next day counts: any growing log fills its disk at some time.
    """
    disk, name = each.disk, f"disk of {each.broker}"
    if disk.refusal:
        return f"{name}: NEW MESSAGES ARE REFUSED: {disk.refusal}"
    if not disk.HasField("pressure_at_ms"):
        return ""
    left_ms = max(disk.pressure_at_ms - each.as_of_ms, 0)
    if left_ms > DISK_WARNING_MS:
        return ""
    consequence = (
        "the oldest files are deleted, read or not"
        if disk.deletes_unread
        else "new messages are refused unless all groups have read the oldest ones"
    )
    if not left_ms:
        return f"{name}: {disk.used_percent} % full: {consequence}"
    left = duration(left_ms)
    return f"{name}: {disk.used_percent} % full, full in {left} at this rate: {consequence}"


def show_filters(reply: "LagReply") -> None:
    """Print the filters of readers, and a warning if the filters of one topic differ."""
    filters = {(q.queue.topic, q.filter, q.filters_differ) for q in reply.queues if q.filter}
    for topic, expression, differ in sorted(filters):
        print(f"lag of {topic} counts all messages; its readers select only: {expression}")
        if differ:
            print(
                f"! readers of {topic} have different filters: each skips messages that another "
                "one selects"
            )


def reader_text(lag: "QueueLag") -> str | None:
    if lag.member:
        return f"{lag.member} (absent)" if lag.absent else lag.member
    return lag.owner or None


def loss_text(lag: "QueueLag") -> str | None:
    """Return the number of lost messages and the time until the next loss; None without lag."""
    if not lag.lag and not lag.lost:
        return None
    lost_text = f"{lag.lost} LOST{loss_reason(lag)}" if lag.lost else ""
    return ", ".join(text for text in (lost_text, next_loss_text(lag)) if text)


def next_loss_text(lag: "QueueLag") -> str:
    """Return the time until retention may delete an unread message; empty if none is left."""
    from rockoon_proto.v1.broker_pb2 import LOSS_DISK_FILLS, LOSS_DISK_FULL

    if not lag.HasField("loss_ms"):
        return "unknown" if lag.max_offset > lag.min_offset else ""
    if lag.loss_cause == LOSS_DISK_FULL:
        return "any moment: disk full"
    if lag.loss_ms == 0:
        return "any moment: expired"
    if lag.loss_cause == LOSS_DISK_FILLS:
        return f"{duration(lag.loss_ms)}: the disk fills"
    return "kept" if lag.loss_ms > NEVER_MS else str(duration(lag.loss_ms))


def loss_reason(lag: "QueueLag") -> str:
    """Return the reason for deletion in parentheses; empty if it is age."""
    from rockoon_proto.v1.broker_pb2 import DELETED_DISK_PRESSURE, DELETED_WAIT_LIMIT

    texts = {DELETED_DISK_PRESSURE: " (disk pressure)", DELETED_WAIT_LIMIT: " (wait limit)"}
    return texts.get(lag.lost_because, "")


def with_dangers_first(reply: "LagReply") -> "LagReply":
    """Return the reply with its queues sorted by urgency: lost messages, then unknown lag or time
    to loss, then the time to loss."""
    from rockoon_proto.v1.offset_pb2 import LagReply

    ordered = LagReply()
    ordered.CopyFrom(reply)
    del ordered.queues[:]
    ordered.queues.extend(sorted(reply.queues, key=danger_order))
    return ordered


def danger_order(lag: "QueueLag") -> tuple[int, int]:
    if lag.lost:
        return (0, -lag.lost)
    if has_unknown_loss(lag):
        return (1, 0)
    return (2, lag.loss_ms) if lag.HasField("loss_ms") else (3, 0)


def has_unknown_loss(lag: "QueueLag") -> bool:
    """Return whether a queue may have unread messages whose time to loss is unknown."""
    if not lag.known:
        return True
    unread = bool(lag.lag) and lag.max_offset > lag.min_offset
    return unread and not lag.HasField("loss_ms")


def in_danger(reply: "LagReply", bound_ms: int) -> str:
    """Return the reason for exit status 1 in one sentence; empty if there is none.

    Args:
        reply: queues sorted by urgency.
        bound_ms: losses within this time are a danger.
    """
    endangered = [
        lag
        for lag in reply.queues
        if lag.lost
        or has_unknown_loss(lag)
        or (lag.HasField("loss_ms") and lag.loss_ms <= bound_ms)
    ]
    if not endangered:
        return ""
    first = endangered[0]
    queue = queue_text(first.queue)
    if first.lost:
        consequence = f"{first.lost} unread messages of {queue} are lost{loss_reason(first)}"
    elif has_unknown_loss(first):
        consequence = (
            f"the time to loss of unread messages of {queue} is unknown: {first.unknown_because}"
        )
        consequence = consequence.removesuffix(": ")
    elif first.loss_ms == 0:
        consequence = f"{queue} may lose unread messages at any moment"
    else:
        consequence = f"{queue} may lose unread messages in {duration(first.loss_ms)}"
    return consequence + and_more(len(endangered) - 1, "queue")


def and_more(number: int, noun: str) -> str:
    """Return ", and 2 more queues are in danger"; empty for 0."""
    if not number:
        return ""
    return f", and {counted(number, f'more {noun}')} {'is' if number == 1 else 'are'} in danger"


TOPICS_SHOWN_MAX = 3
ROWS_MAX = 100
# Of a watched report: the time, two lines of the heading, two lines below the table, the cursor.
LINES_AROUND_ROWS = 6


def rows_that_fit(*, is_watch: bool) -> int:
    """Return the number of rows to show; the rows of a watched terminal must fit its height."""
    if not (is_watch and sys.stdout.isatty()):
        return ROWS_MAX
    lines = shutil.get_terminal_size().lines - LINES_AROUND_ROWS
    return max(min(lines, ROWS_MAX), 1)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Table row with the lag of one group.

    Attributes:
        lag: unread messages of all queues; None if no queue's lag is known.
        lag_ms: age of the oldest unread message, in milliseconds.
        lost: messages that were deleted unread.
        lost_example: the queue that lost most messages.
        soonest: the queue on which retention deletes unread messages first.
        unknown_because: why part of the lag or of the time to loss is unknown; else empty.
        order: sort key: time to loss, then lag.
        danger: the reason for exit status 1 with `--fail-if-loss-within`; else empty.
    """

    group: str
    topics: Sequence[str]
    lag: int | None
    lag_ms: int | None
    lost: int
    lost_example: "QueueLag | None"
    soonest: "QueueLag | None"
    unknown_because: str
    members: int
    receivers: int
    order: tuple[int, int, int, str]
    danger: str

    def cells(self) -> tuple[Any, ...]:
        shown = list(self.topics[:TOPICS_SHOWN_MAX])
        if more := len(self.topics) - len(shown):
            shown.append(f"{more} more")
        return (
            self.group,
            ", ".join(shown) or None,
            self.lag,
            duration(self.lag_ms),
            self.loss_text() or None,
            self.members + self.receivers,
        )

    def loss_text(self) -> str:
        texts = []
        if self.lost_example is not None:
            texts.append(f"{self.lost} LOST{loss_reason(self.lost_example)}")
        if self.unknown_because:
            texts.append(f"unknown: {self.unknown_because}")
        elif self.soonest is not None:
            texts.append(next_loss_text(self.soonest))
        return ", ".join(texts)

    def to_json(self) -> dict[str, Any]:
        lost, soonest = self.lost_example, self.soonest
        return {
            "group": self.group,
            "topics": list(self.topics),
            "total_lag": self.lag,
            "lag_ms": self.lag_ms,
            "lost": self.lost,
            "lost_because": None if lost is None else deletion_name(lost),
            "loss_ms": None if soonest is None else soonest.loss_ms,
            "loss_cause": None if soonest is None else cause_name(soonest),
            "unknown_because": self.unknown_because or None,
            **picked(self, "members", "receivers"),
        }


@dataclass(frozen=True, slots=True)
class GroupLagsReport:
    """Lag of all groups.

    Attributes:
        rows: one per group, most urgent first.
        left_out: number of groups without a row because the table is full.
        danger: the reason for exit status 1, in one sentence; else empty.
    """

    rows: Sequence[GroupRow]
    left_out: int
    danger: str

    def show(self) -> None:
        print_table(
            ("GROUP", "TOPICS", "LAG", "OLDEST UNREAD", "LOSS IN", "READERS"),
            (row.cells() for row in self.rows),
            numbers=("LAG", "READERS"),
            empty="There are no consumer groups. One appears when a consumer subscribes.",
        )
        if self.left_out:
            print(f"{counted(self.left_out, 'more group')} not shown: --limit shows more")

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [row.to_json() for row in self.rows],
            "groups_left_out": self.left_out,
        }


async def report_groups(cluster: "Cluster", rows_max: int, bound_ms: int | None) -> GroupLagsReport:
    """Return the lag of all groups. `bound_ms`: a loss within this time is a danger; None reports
    no dangers."""
    rows = [row_of(each, bound_ms) async for each in cluster.admin.lags()]
    rows.sort(key=lambda row: row.order)
    endangered = [row for row in rows if row.danger]
    danger = ""
    if endangered:
        first = endangered[0]
        danger = f"group {first.group}: {first.danger}" + and_more(len(endangered) - 1, "group")
    left_out = max(len(rows) - rows_max, 0)
    return GroupLagsReport(rows[:rows_max], left_out, danger)


def row_of(found: "GroupLag", bound_ms: int | None) -> GroupRow:
    """Summarize the lag reply of a group, which may have thousands of queues, in one row."""
    from rockoon_proto.v1.offset_pb2 import LagReply

    reply = with_dangers_first(found.lag or LagReply())
    queues = reply.queues
    lags = [queue.lag for queue in queues if queue.HasField("lag")]
    ages = [queue.lag_ms for queue in queues if queue.HasField("lag_ms")]
    lost = [queue for queue in queues if queue.lost]
    unread = [queue for queue in queues if queue.HasField("loss_ms")]
    soonest = min(unread, key=lambda queue: queue.loss_ms, default=None)
    total, lost_total = sum(lags), sum(queue.lost for queue in lost)
    unknown_because = "" if found.error is None else str(found.error)
    if found.error is None:
        unknown_because = unknown_reason(reply)
    rank, urgency = danger_order(queues[0]) if queues else (1 if found.error else 3, 0)
    danger = ""
    if bound_ms is not None:
        danger = in_danger(reply, bound_ms) or (f"{found.error}" if found.error else "")
    return GroupRow(
        group=found.name,
        topics=sorted({queue.queue.topic for queue in queues} | set(found.group.topics)),
        lag=total if lags else None,
        lag_ms=max(ages, default=None),
        lost=lost_total,
        lost_example=lost[0] if lost else None,
        soonest=soonest,
        unknown_because=unknown_because,
        members=len(found.readers.members),
        receivers=found.readers.receiver_count,
        order=(rank, -lost_total if lost else urgency, -total, found.name),
        danger=danger,
    )


def unknown_reason(reply: "LagReply") -> str:
    """Return why the time to loss of a queue with unread messages is unknown; else empty."""
    unknown = next((queue for queue in reply.queues if has_unknown_loss(queue)), None)
    if unknown is None:
        return ""
    reason = f"the broker reports no time to loss for {queue_text(unknown.queue)}"
    return unknown.unknown_because or reason
