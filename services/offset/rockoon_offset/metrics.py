"""Metrics of the offset service, above all consumer lag under RocketMQ's metric names.

Each export computes lag like the call `Lag`, with calls to the brokers for each group. Groups
beyond a bound and queues of brokers that do not answer have no values; other metrics count them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import RockoonError
from rockoon_offset.groups import Groups
from rockoon_offset.in_flight.receivers import Receivers
from rockoon_offset.progress.commits import Commits
from rockoon_offset.progress.lag import Lags
from rockoon_offset.progress.lag_rows import QueueLag
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.route_table import OffsetRoutes
from rockoon_offset.start.resolver import Resolver
from rockoon_proto.v1.offset_pb2 import ConsumeMode
from rockoon_runtime.telemetry.metrics import Measurement, Metric, counter, gauge

LAG_GROUPS_MAX = 1_000
LAG_SECONDS_MAX = 5.0
RETRY_PREFIX = "%RETRY%"

OF_GROUP = ("consumer_group", "topic", "is_retry")

LAG_MESSAGES = gauge(
    "rocketmq_consumer_lag_messages", "Messages stored and not committed by the group", *OF_GROUP
)
LAG_LATENCY = gauge(
    "rocketmq_consumer_lag_latency",
    "Age of the oldest message that the group has not committed, milliseconds",
    *OF_GROUP,
    unit="milliseconds",
)
IN_FLIGHT = gauge(
    "rocketmq_consumer_inflight_messages",
    "Messages that consumers have received and not finished",
    *OF_GROUP,
)
READY_MESSAGES = gauge(
    "rocketmq_consumer_ready_messages",
    "Messages stored and not yet received by a consumer",
    *OF_GROUP,
)
QUEUEING = gauge(
    "rocketmq_consumer_queueing_latency",
    "Age of the oldest message that the group has not pulled, milliseconds; no value while the "
    "member of a queue has not reported its pulled position",
    *OF_GROUP,
    unit="milliseconds",
)
CONNECTIONS = gauge(
    "rocketmq_consumer_connections", "Live members of a group", "consumer_group", "consume_mode"
)
GROUPS = gauge("rocketmq_consumer_group_number", "Consumer groups in the routes")

TIME_TO_LOSS = gauge(
    "rockoon_consumer_time_to_loss_seconds",
    "Time until retention may delete the first message that the group has not committed, seconds; "
    "no value while no message can be lost",
    *OF_GROUP,
)
LOST = gauge(
    "rockoon_consumer_lost_messages", "Messages deleted before the group settled them", *OF_GROUP
)
LAG_UNKNOWN = gauge(
    "rockoon_consumer_lag_unknown_queues",
    "Queues whose lag is unknown; the group's other metrics do not include them",
    *OF_GROUP,
)
LAG_SKIPPED = gauge(
    "rockoon_lag_skipped_groups",
    "Groups without lag metrics, because of the number of groups, the time limit or an error",
)
STARTS = counter("rockoon_starts_total", "Start positions decided, by reason; per queue", "reason")
COMMITS = counter("rockoon_commits_total", "Accepted commits of one queue")
COMMITS_REFUSED = counter(
    "rockoon_commits_refused_total", "Refused commits of one queue, by error", "error"
)
FENCED = counter(
    "rockoon_commits_fenced_total", "Commits refused because another reader owns the queue"
)
ACQUIRED = counter("rockoon_acquired_messages_total", "Messages that receivers acquired")
REDELIVERED = counter(
    "rockoon_redelivered_messages_total", "Messages acquired that were acquired before"
)
DEAD = counter(
    "rockoon_dead_deliveries_total", "Messages acquired as dead letters, after the last attempt"
)
ACKNOWLEDGED = counter(
    "rockoon_acknowledged_messages_total", "Messages that receivers acknowledged"
)
PUT_OFF = counter(
    "rockoon_visibility_changes_total",
    "Messages whose visibility receivers changed: released, delayed or extended",
)
SETTLING_REFUSED = counter(
    "rockoon_acknowledgements_refused_total",
    "Messages whose acknowledgement or visibility change was refused, because another receiver "
    "has them or the queue was started again",
)
JOURNAL_BYTES = gauge(
    "rockoon_journal_bytes", "Size of the journal's files, with the state that each begins with"
)
JOURNAL_SYNCS = counter("rockoon_journal_syncs_total", "Syncs of the journal")
JOURNAL_SYNC_SECONDS = counter(
    "rockoon_journal_sync_seconds_total", "Time of the journal's syncs, seconds"
)
JOURNAL_SHORTAGE = gauge(
    "rockoon_journal_shortage",
    "1 while changes of progress are refused because the disk has no room, otherwise 0",
)
PROGRESS = counter("rockoon_journal_batches_total", "Changes of progress written")
READY = gauge(
    "rockoon_ready",
    "1 if the offset service accepts calls, or its copy has caught up with the leader, otherwise 0",
)
DISK_USED = gauge("rockoon_disk_used_ratio", "Share of the store's partition in use, 0 to 1")
ROUTE_REVISION = gauge("rockoon_route_revision", "Revision of the applied routes")

TABLE = tuple(each for each in list(globals().values()) if isinstance(each, Metric))

# Metric → its key in `Receivers.messages`.
OF_RECEIVERS = {
    ACQUIRED: "acquired",
    REDELIVERED: "redelivered",
    DEAD: "dead",
    ACKNOWLEDGED: "settled",
    PUT_OFF: "visibility_changed",
    SETTLING_REFUSED: "refused",
}


@dataclass(frozen=True, slots=True)
class OffsetMetrics:
    """Measures the metrics of an offset service."""

    store: ProgressStore
    table: OffsetRoutes
    groups: Groups
    lags: Lags
    resolver: Resolver
    commits: Commits
    receivers: Receivers
    now_seconds: Callable[[], float] = time.monotonic

    async def measure(self) -> Iterable[Measurement]:
        """Return the values of `TABLE`. Calls the brokers."""
        return [*self._of_service(), *self._of_members(), *await self._of_groups()]

    def _of_service(self) -> Iterator[Measurement]:
        for reason, count in self.resolver.starts.items():
            yield STARTS.at(count, reason.name.lower())
        yield COMMITS.at(self.commits.accepted)
        yield FENCED.at(self.commits.refused["FENCED"])
        for error, count in self.commits.refused.items():
            yield COMMITS_REFUSED.at(count, error.lower())
        messages = self.receivers.messages
        for metric, key in OF_RECEIVERS.items():
            yield metric.at(messages[key])
        journal = self.store.journal_counts()
        yield JOURNAL_BYTES.at(journal.bytes)
        yield JOURNAL_SYNCS.at(journal.syncs)
        yield JOURNAL_SYNC_SECONDS.at(journal.sync_seconds)
        yield JOURNAL_SHORTAGE.at(bool(journal.shortage))
        yield PROGRESS.at(self.store.changes)
        yield ROUTE_REVISION.at(self.table.revision)
        yield GROUPS.at(len(self.table.groups))

    def _of_members(self) -> Iterator[Measurement]:
        membership = self.groups.membership
        for group in membership.groups():
            modes = [lease.member.mode for lease in membership.leases(group)]
            for mode in sorted(set(modes)):
                yield CONNECTIONS.at(modes.count(mode), group, ConsumeMode.Name(mode).lower())

    async def _of_groups(self) -> list[Measurement]:
        found: list[Measurement] = []
        skipped = 0
        end_seconds = self.now_seconds() + LAG_SECONDS_MAX
        for number, group in enumerate(sorted(self.table.groups)):
            if number >= LAG_GROUPS_MAX or self.now_seconds() > end_seconds:
                skipped += 1
                continue
            try:
                found += of_lag(group, await self.lags.lags(group, ""))
            except RockoonError:
                # The group was deleted, or has more queues than one reply may have.
                skipped += 1
        return [*found, LAG_SKIPPED.at(skipped)]


def of_process(root: Path, *, is_ready: bool) -> Iterator[Measurement]:
    """Return the metrics of every process. Reads the disk's usage.

    Args:
        is_ready: the process accepts calls, or its copy has caught up with the leader.
    """
    yield READY.at(is_ready)
    # No value is better than a wrong value.
    with suppress(OSError):
        yield DISK_USED.at(Disk().usage(root).used_ratio)


def of_lag(group: str, lags: Iterable[QueueLag]) -> Iterator[Measurement]:
    """Return a group's lag by topic, without rows of absent members. Pure."""
    topics: dict[str, list[QueueLag]] = {}
    for lag in lags:
        if not lag.absent:
            topics.setdefault(lag.queue.topic, []).append(lag)
    for topic, rows in topics.items():
        labels = (group, topic, str(topic.startswith(RETRY_PREFIX)).lower())
        known = [row for row in rows if row.lag is not None]
        yield LAG_UNKNOWN.at(len([row for row in rows if row.unknown_because]), *labels)
        if not known:
            continue
        yield LAG_MESSAGES.at(sum(row.lag or 0 for row in known), *labels)
        yield LAG_LATENCY.at(max(row.lag_ms or 0 for row in known), *labels)
        yield IN_FLIGHT.at(sum(row.in_flight or 0 for row in known), *labels)
        yield READY_MESSAGES.at(sum(row.ready or 0 for row in known), *labels)
        queueing_ms = [row.queueing_ms for row in known if row.queueing_ms is not None]
        if len(queueing_ms) == len(known):
            yield QUEUEING.at(max(queueing_ms), *labels)
        yield LOST.at(sum(row.lost for row in known), *labels)
        losses_ms = [row.loss_ms for row in known if row.loss_ms is not None and row.lag]
        if losses_ms:
            yield TIME_TO_LOSS.at(min(losses_ms) / 1000, *labels)
