"""Lag of all groups, as a table with one row per group, most urgent first, and as JSON."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.cli.lag import (
    and_more,
    cause_name,
    danger_order,
    deletion_name,
    has_unknown_loss,
    in_danger,
    loss_reason,
    next_loss_text,
    with_dangers_first,
)
from rockoon.cli.output import counted, duration, print_table, queue_text
from rockoon.cli.watch import LINES_AROUND_ROWS

if TYPE_CHECKING:
    from rockoon.admin.lags import GroupLag
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.offset_pb2 import LagReply, QueueLag

TOPICS_SHOWN_MAX = 3
ROWS_MAX = 100


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
            "members": self.members,
            "receivers": self.receivers,
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
    """Return the lag of all groups.

    Args:
        cluster: an open connection.
        rows_max: rows of the table.
        bound_ms: a loss within this time is a danger; None reports no dangers.
    """
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
