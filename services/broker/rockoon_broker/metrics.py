"""Metrics of a broker, with RocketMQ's names where RocketMQ has the same metric.

See BrokerMetricsConstant and DefaultStoreMetricsConstant of RocketMQ 5 for `rocketmq_...`. Lag and
other metrics of groups come from the offset service.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from rockoon_broker.broker import Broker
from rockoon_broker.clock import Clock
from rockoon_broker.replication.serving import BrokerCopy
from rockoon_broker.rpc.service import BrokerService
from rockoon_broker.store.retention.retention import DeletionReason
from rockoon_broker.store.store import Store
from rockoon_broker.traffic import SIZE_BOUNDS
from rockoon_core.disk import DiskUsage
from rockoon_replica.log_copy import LogCopy
from rockoon_replica.metrics import TABLE as TABLE_OF_COPIES
from rockoon_replica.metrics import of_copy
from rockoon_runtime.telemetry.metrics import Measurement, Metric, counter, gauge, histogram

MESSAGES_IN = counter(
    "rocketmq_messages_in_total",
    "Messages received from clients and stored",
    "topic",
    "message_type",
)
THROUGHPUT_IN = counter(
    "rocketmq_throughput_in_total",
    "Bytes of messages received from clients and stored",
    "topic",
    "message_type",
)
MESSAGE_SIZE = histogram(
    "rocketmq_message_size",
    "Size of messages received from clients, as stored, bytes",
    "topic",
    "message_type",
    bounds=SIZE_BOUNDS,
    unit="bytes",
)
MESSAGES_OUT = counter(
    "rocketmq_messages_out_total", "Messages sent to consumers", "topic", "consumer_group"
)
THROUGHPUT_OUT = counter(
    "rocketmq_throughput_out_total",
    "Bytes of messages sent to consumers",
    "topic",
    "consumer_group",
)
DEAD = counter(
    "rocketmq_send_to_dlq_messages_total", "Messages stored in dead-letter topics since the start"
)
PRODUCERS = gauge("rocketmq_producer_connections", "Open streams of producers")
PERMISSION = gauge(
    "rocketmq_broker_permission", "Permissions of the broker: 6 reading and writing, 4 only reading"
)
TOPICS = gauge("rocketmq_topic_number", "Topics served")
HALF = gauge("rocketmq_half_messages", "Half messages that wait for a commit or rollback")
COMMITTED = counter("rocketmq_commit_messages_total", "Transactions committed")
ROLLED_BACK = counter("rocketmq_rollback_messages_total", "Transactions rolled back")
TIMING = gauge("rocketmq_timing_messages", "Delayed messages that are not due yet")
DELIVERED = counter("rocketmq_timer_dequeue_total", "Delayed messages delivered to their topic")
STORAGE = gauge("rocketmq_storage_size", "Bytes in use on the store's partition", unit="bytes")
FLUSH_BEHIND = gauge(
    "rocketmq_storage_flush_behind_bytes", "Bytes of the log not synced yet", unit="bytes"
)
DISPATCH_BEHIND = gauge(
    "rocketmq_storage_dispatch_behind_bytes",
    "Bytes of the log not visible to consumers yet",
    unit="bytes",
)
RESERVE_TIME = gauge(
    "rocketmq_storage_message_reserve_time",
    "Age of the oldest message of the log, milliseconds",
    unit="milliseconds",
)

READY = gauge(
    "rockoon_ready",
    "1 if the broker serves calls, or its copy has caught up with the leader, otherwise 0",
)
DISK_USED = gauge("rockoon_disk_used_ratio", "Share of the store's partition in use, 0 to 1")
DISK_PRESSURE = gauge(
    "rockoon_disk_pressure_seconds",
    "Seconds until the log's growth fills the disk to the mark of disk_pressure_policy; 0 above "
    "it, no value while the log does not grow",
)
DELETED_FILES = counter(
    "rockoon_deleted_log_files_total",
    "CommitLog files deleted since the start: expired, disk pressure, wait limit",
    "reason",
)
DELETED_UNREAD = counter(
    "rockoon_deleted_unread_messages_total",
    "Messages deleted that a known group had not read, counted for each group, since the start",
)
BATCHES = counter(
    "rockoon_appended_batches_total",
    "Batches that have waited for their commit",
)
SYNC_WAIT = counter(
    "rockoon_sync_wait_seconds_total",
    "Seconds that batches waited between append and commit (with one copy: sync); divided by "
    "rockoon_appended_batches_total: mean delay of a producer by commits",
)
SYNC_WAIT_MAX = gauge(
    "rockoon_sync_wait_seconds_max",
    "Longest wait of a batch for its commit in the last ten to twenty seconds",
)
RECOVERY_SECONDS = gauge("rockoon_recovery_seconds", "Duration of the last opening of the store")
RECOVERY_RECORDS = gauge(
    "rockoon_recovery_records",
    "Records read by the last opening of the store after the recovery point",
)
RECOVERY_CLEAN = gauge("rockoon_recovery_clean", "1 if the store had been closed cleanly")
LOG_END = counter(
    "rockoon_log_end_bytes_total",
    "End offset of the log; its growth is the number of bytes appended",
)
LOG_MIN = gauge("rockoon_log_min_offset_bytes", "Begin offset of the log")
INDEX_LAG = gauge("rockoon_index_lag_bytes", "Bytes of the log that are not indexed by key yet")
WAITING_PULLS = gauge("rockoon_waiting_pulls", "Pulls that wait for messages, each a call")
SUBSCRIPTIONS = gauge(
    "rockoon_pull_subscriptions", "Queues read by pull streams, counted once per stream"
)
RETURNED = counter("rockoon_messages_returned_total", "Messages stored in retry topics")
TIMER_LAG = gauge(
    "rockoon_timer_lag_seconds", "Delay of the last delayed messages after their due time"
)
COMPACTION_HELD = gauge(
    "rockoon_compaction_held_bytes",
    "Bytes of the log that retention keeps because no generation has their messages yet",
)
COMPACTION_WAITING = gauge(
    "rockoon_compaction_waiting_seconds",
    "Age of the oldest message of a compacted topic that no generation has; 0 without one",
)
RETENTION_HELD = gauge(
    "rockoon_retention_held_bytes",
    "Bytes of the log that retention keeps only for copies that lack them",
)
COMPACTION_RECORDS = gauge("rockoon_compaction_records", "Records of the active generation")
GENERATION_AGE = gauge(
    "rockoon_compaction_generation_age_seconds",
    "Time since a compaction wrote the active generation; no value without one",
)
GENERATION_BYTES = gauge(
    "rockoon_compaction_generation_bytes", "Size of the files of the active generation"
)
COMPACTION_REFUSED = gauge("rockoon_compaction_refused", "1 if the newest generation was refused")
ROUTE_REVISION = gauge("rockoon_route_revision", "Revision of the routes that the broker uses")

OWN = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
TABLE = OWN + TABLE_OF_COPIES


class BrokerMetrics:
    """Measures a broker; before it is open, only `rockoon_ready`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._followed: tuple[Broker, BrokerService] | None = None
        self._copy: tuple[LogCopy[BrokerCopy], BrokerService] | None = None

    def follow(self, broker: Broker, service: BrokerService) -> None:
        """Measure this broker until the store is closed."""
        self._followed = (broker, service)

    def follow_copy(self, copy: LogCopy[BrokerCopy], service: BrokerService) -> None:
        """Measure a broker of a log with copies, whether it leads or follows."""
        self._copy = (copy, service)

    async def measure(self) -> Iterable[Measurement]:
        """Return values of `TABLE`. Accesses the disk once or twice, like `DescribeBroker`."""
        if self._copy is not None:
            return self._of_copy(*self._copy)
        if self._followed is None:
            return [READY.at(0)]
        broker, service = self._followed
        return [READY.at(service.is_serving), *self._of_broker(broker, service)]

    def _of_copy(self, copy: LogCopy[BrokerCopy], service: BrokerService) -> Iterable[Measurement]:
        around = copy.service
        broker = around.broker
        if broker is not None:
            yield from self._of_broker(broker, service)
        elif around.store is not None:
            yield from of_log(around.store)
            with suppress(OSError):
                yield from of_disk(around.disk_usage)
        yield READY.at(copy.record.is_ready)
        yield from of_copy(copy)

    def _of_broker(self, broker: Broker, service: BrokerService) -> Iterable[Measurement]:
        return [
            PRODUCERS.at(service.streams_open),
            SUBSCRIPTIONS.at(service.pull_subscriptions),
            DEAD.at(service.messages_dead),
            RETURNED.at(service.messages_returned),
            *of_traffic(broker, self._clock.monotonic_seconds()),
            *of_store(broker, self._clock.now_ms()),
            *of_pending_messages(broker),
            *of_compaction(broker, self._clock.now_ms()),
        ]


def of_traffic(broker: Broker, now_seconds: float) -> Iterator[Measurement]:
    for series, count in broker.appends.received:
        yield MESSAGES_IN.at(count.messages, *series)
        yield THROUGHPUT_IN.at(count.bytes, *series)
        yield MESSAGE_SIZE.spread(count.by_size, count.bytes, *series)
    for series, count in broker.pulls.sent:
        yield MESSAGES_OUT.at(count.messages, *series)
        yield THROUGHPUT_OUT.at(count.bytes, *series)
    waits = broker.appends.sync_waits
    yield BATCHES.at(waits.batches)
    yield SYNC_WAIT.at(waits.seconds)
    yield SYNC_WAIT_MAX.at(waits.longest_seconds(now_seconds))
    yield WAITING_PULLS.at(broker.waiting_pulls)


def of_store(broker: Broker, now_ms: int) -> Iterator[Measurement]:
    store, recovery = broker.store, broker.store.recovery
    yield TOPICS.at(len(broker.topics.table.served))
    yield ROUTE_REVISION.at(broker.topics.table.revision)
    yield PERMISSION.at(6 if store.writable else 4)
    yield from of_log(store)
    yield DISPATCH_BEHIND.at(store.appended_end - store.visible_end)
    yield RECOVERY_SECONDS.at(broker.recovery_seconds)
    yield RECOVERY_RECORDS.at(recovery.records_scanned)
    yield RECOVERY_CLEAN.at(recovery.was_clean)
    if broker.key_index is not None:
        yield INDEX_LAG.at(max(0, store.visible_end - broker.key_index.end_offset))
    try:
        usage, oldest_ms = broker.disk_usage, broker.oldest_message_ms()
        pressure_ms = store.pressure_ms(now_ms)
    except OSError:
        # A gap is better than a wrong value.
        return
    yield from of_disk(usage)
    if pressure_ms is not None:
        yield DISK_PRESSURE.at(max(0, pressure_ms - now_ms) / 1000)
    if oldest_ms is not None:
        yield RESERVE_TIME.at(max(0, now_ms - oldest_ms))


def of_log(store: Store) -> Iterator[Measurement]:
    yield FLUSH_BEHIND.at(store.appended_end - store.durable_end)
    yield LOG_END.at(store.appended_end)
    yield LOG_MIN.at(store.log_min_offset)
    for reason in DeletionReason:
        yield DELETED_FILES.at(store.deleted_files.get(reason, 0), reason.value)
    yield DELETED_UNREAD.at(store.deleted_unread)


def of_disk(usage: DiskUsage) -> Iterator[Measurement]:
    yield STORAGE.at(usage.used_bytes)
    yield DISK_USED.at(usage.used_ratio)


def of_pending_messages(broker: Broker) -> Iterator[Measurement]:
    delays, transactions = broker.pending.delays, broker.pending.transactions
    yield TIMING.at(len(delays))
    yield DELIVERED.at(delays.delivery.counts.delivered)
    yield TIMER_LAG.at(delays.delivery.counts.lag_ms / 1000)
    yield HALF.at(len(transactions))
    yield COMMITTED.at(transactions.ends.counts.committed)
    yield ROLLED_BACK.at(transactions.ends.counts.rolled_back)


def of_compaction(broker: Broker, now_ms: int) -> Iterator[Measurement]:
    store, hold = broker.store.compaction, broker.compaction.hold()
    if (active := store.manifest) is not None:
        yield COMPACTION_RECORDS.at(active.records)
        yield GENERATION_AGE.at(max(0, now_ms - active.created_ms) / 1000)
        yield GENERATION_BYTES.at(active.files_bytes)
    yield COMPACTION_REFUSED.at(store.refusal is not None)
    held_end = broker.store.retention_held_end
    yield RETENTION_HELD.at(max(0, held_end - broker.store.log_min_offset))
    held_bytes = 0 if hold is None else broker.store.visible_end - hold.physical_offset
    yield COMPACTION_HELD.at(max(0, held_bytes))
    # A message with an unreadable record has no age.
    stored_ms = hold.stored_ms if hold is not None else None
    yield COMPACTION_WAITING.at(0.0 if stored_ms is None else max(0, now_ms - stored_ms) / 1000)
