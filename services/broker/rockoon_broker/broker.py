"""A broker: its store, the topics it serves, and access to both.

    routes → topics ─┐
    Append → appends ┼→ store → Syncer's thread → confirmed → waiting pulls, waiting appends
    Pull   → pulls ──┘

Everything here runs on the event loop's thread, which owns the store, with two exceptions. While a
broker with one copy starts, another thread opens the store, reads snapshots and applies the log,
and the event loop does not use the store. Later, other threads read and write files, but do not
use the store. docs/understand/threads.md lists all threads.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rockoon_broker.append import AppendLimits, AppendResult, Appends, GroupedBatch, check_keys
from rockoon_broker.applying import apply_piece, apply_rest
from rockoon_broker.clock import Clock, SteadyClock
from rockoon_broker.compaction.compaction import BrokerCompaction
from rockoon_broker.config_files import move_directories_away
from rockoon_broker.idempotence import memory as sequence_snapshot
from rockoon_broker.idempotence.memory import SequenceMemory
from rockoon_broker.index.directory import IndexDirectory, IndexShape
from rockoon_broker.index.follower import IndexFollower
from rockoon_broker.long_poll import WaitingPulls
from rockoon_broker.pending import pending_index
from rockoon_broker.pending.pending_messages import PendingMessages
from rockoon_broker.pull import PullQuery, PullResult, Pulls
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import StoreSyncFailed
from rockoon_broker.store.log.batch import AppendBatch, RoutedBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.retention.foreign_store import KEEPS_ALL_FILES
from rockoon_broker.store.store import Store
from rockoon_broker.topics import topic_file as topics_json
from rockoon_broker.topics.served_topics import ServedTopics, record
from rockoon_broker.topics.topic_file import TopicFile, refuse_batch_queues
from rockoon_broker.topics.topics import TopicPlan
from rockoon_broker.traffic import DELAY, TRANSACTION
from rockoon_broker.unread import UnreadFiles
from rockoon_core.disk import Disk, DiskUsage
from rockoon_core.errors import (
    InvalidArgument,
    NotReady,
    QueueNotFound,
    StoreFailed,
)
from rockoon_node.nameservers import Nameservers
from rockoon_node.store_directory import StoreCluster, cluster_id
from rockoon_proto.v1.broker_pb2 import DELAYED, HALF, ORDINARY, Handling
from rockoon_runtime.waking import Bell

TICK_SECONDS_MAX = 0.1
# Pause between two ticks of an idle store; a change of the clock is noticed after it.
IDLE_SECONDS_MAX = 10.0


# For this time a drained broker still accepts messages: producers learn of the drain later.
DRAIN_SECONDS = 3.0
DRAINED = "the broker is drained: send to another broker"


class StoreTicks:
    """The loop that runs the store's periodic work.

    Args:
        store_changed: wakes the idle loop; rung here when the log has lost its
            oldest files.
        arrived: called for each queue with new visible messages.
        shortened: called when the log has lost its oldest files.
        ticked: called after each tick.
    """

    def __init__(
        self,
        store: Store,
        clock: SteadyClock,
        store_changed: Bell,
        *,
        arrived: Callable[[QueueKey], None],
        shortened: Callable[[], None],
        ticked: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._store_changed = store_changed
        self._arrived = arrived
        self._shortened = shortened
        self._ticked = ticked
        # Refusals by the disk that have been logged.
        self._refused: set[str] = set()
        self._append_refused = False

    async def run(self) -> None:
        """Run the store's work until cancelled or the store has failed.

        Several times a second while there is work; otherwise when it is woken.
        """
        pause_seconds = min(TICK_SECONDS_MAX, self._store.settings.flush_interval_ms / 1000)
        log_min = self._store.log_min_offset
        while True:
            now_ms = self._clock.now_ms()
            try:
                advanced = self._store.tick(now_ms)
            except StoreSyncFailed:
                # `Broker._failed` ends the process with the reason.
                return
            for queue in advanced:
                self._arrived(queue)
            if self._store.log_min_offset != log_min:
                log_min = self._store.log_min_offset
                self._store_changed.ring()
                self._shortened()
            self._ticked()
            self._report_refused_messages()
            self._report_refusals()
            idle_seconds = self._store.idle_ms(now_ms) / 1000
            if idle_seconds > pause_seconds:
                await self._store_changed.wait(min(idle_seconds, IDLE_SECONDS_MAX) - pause_seconds)
            await asyncio.sleep(pause_seconds)

    def _report_refusals(self) -> None:
        """Log once when the disk begins to refuse something, and once when it no longer does."""
        for what, refusal in (
            ("old files cannot be deleted", self._store.removal_failure),
            ("no recovery point can be written", self._store.point_failure),
        ):
            if refusal is not None and what not in self._refused:
                self._refused.add(what)
                log.warning("%s, retrying: %s", what, refusal)
            if refusal is None and what in self._refused:
                self._refused.discard(what)
                log.warning("%s: resolved", what)

    def _report_refused_messages(self) -> None:
        """Log once when messages begin to be refused, and once when they are accepted again. A
        change of the reason in between is not logged."""
        reason = self._store.refusal_reason
        if reason and not self._append_refused:
            log.error("messages are refused: %s", reason)
        if not reason and self._append_refused:
            log.info("messages are accepted again")
        self._append_refused = bool(reason)


log = logging.getLogger(__name__)

CONFIG_DIRECTORY = "config"
STORE_ID_FILE = "storeId"
CLUSTER_ID_FILE = "clusterId"
# Files that may be lost: the broker rebuilds them from the log, or from the nameserver's routes.
REBUILT_FILES = (topics_json.FILE, sequence_snapshot.FILE, pending_index.SNAPSHOT_FILE)
# Maximum of unsynced bytes that the event loop syncs itself: the appends of single messages. Larger
# amounts are synced by the thread `store-syncer`.
INLINE_BYTES_MAX = 128 << 10
KINDS = {HALF: TRANSACTION, DELAYED: DELAY}


class Broker:
    """An open broker. Make one with `Broker.open`.

    Attributes:
        store: the log.
        sequences: stored sequence numbers of idempotent producers.
        cluster: cluster id of the store.
        topics: served topics, following the routes.
        appends, pulls: write and read access to the log.
        waiting: pulls that wait for messages.
        ticks: runs the store's periodic work.
        key_index: indexes messages by key; None with `index = off`.
        unread: asks for unread messages before retention deletes files.
        pending: delayed and half messages.
        compaction: uploads and publication of generations of compacted topics.
        nameservers: the nameservers of the cluster.
        recovery_seconds: duration of the opening of the store.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        sequences: SequenceMemory,
        topic_file: TopicFile,
        nameservers: Nameservers,
        clock: Clock,
        disk: Disk,
        recovery_seconds: float,
        check_may_append: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.sequences = sequences
        self.nameservers = nameservers
        self.recovery_seconds = recovery_seconds
        self._disk = disk
        self._leads = False
        # Rung when the log has grown or lost its oldest files, or the store has other work.
        self.store_changed = Bell()
        self.cluster = cluster_of(settings, disk)
        self.waiting = WaitingPulls(settings.waiting_pulls_max)
        self.topics = ServedTopics(
            settings.name,
            topic_file,
            nameservers,
            self.cluster,
            clock,
            gone=self.waiting.wake_topic,
            drop=self._drop_topics,
            changed=self._update_compacted_topics,
            record=self._record_topics,
        )
        self.appends = Appends(
            store,
            limits_of(settings),
            sequences.ledger,
            clock,
            waits_for_sync=settings.flush == "sync",
            arrived=self.arrived,
            store_changed=self.store_changed,
            check_may_append=check_may_append,
        )
        self.pulls = Pulls(store, self.waiting, clock)
        self.pending = PendingMessages(
            store,
            self.appends,
            settings,
            settings.store_path / CONFIG_DIRECTORY,
            clock,
            disk,
            self.topics.check_writable,
            self.topics.knows_for_sure,
        )
        self.compaction = BrokerCompaction(
            store.compaction, disk, clock, settings.disk_full_percent, self.store_changed.ring
        )
        self.key_index = key_index_of(settings, store, disk, clock, self.store_changed)
        self._derived = (sequences, self.pending.pending_index)
        self.unread, self.ticks = self._make_loops(nameservers, clock)
        # Cache of `oldest_message_ms`: physical offset and store time of the log's first message.
        self._oldest: tuple[int, int] | None = None
        self._closing: asyncio.TimerHandle | None = None
        store.closed_reason = DRAINED if settings.drained else ""

    def use_settings(self, settings: BrokerSettings) -> None:
        """Use other values of live settings."""
        if settings.drained != self.settings.drained:
            self._use_drained(drained=settings.drained)
        self.settings = settings
        store_settings = settings.for_store(self.store.settings.store_host)
        self.store.use_settings(store_settings, self.appends.store_clock.now_ms())
        self.appends.use_limits(limits_of(settings))
        self.pending.use_settings(settings)
        self.unread.waited_groups = settings.retention_wait_for_groups
        self.compaction.uploads.used_percent_max = settings.disk_full_percent
        self.store_changed.ring()

    def _use_drained(self, *, drained: bool) -> None:
        """Refuse or accept messages of producers.

        A drained broker refuses messages only after `DRAIN_SECONDS`: producers learn of the drain
        from the routes, and until then send batches to this broker.
        """
        if self._closing is not None:
            self._closing.cancel()
        self.store.closed_reason = ""
        if drained:
            log.info("drained: producers choose other brokers")
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(DRAIN_SECONDS, self._close_to_producers)
        else:
            log.info("not drained any more: messages of producers are accepted")

    def _close_to_producers(self) -> None:
        self.store.closed_reason = DRAINED

    def _make_loops(self, nameservers: Nameservers, clock: Clock) -> tuple[UnreadFiles, StoreTicks]:
        unread = UnreadFiles(
            self.settings.name,
            self.store,
            self.topics,
            self.pending.pending_index,
            nameservers,
            self.settings.retention_wait_for_groups,
            clock,
            self.store_changed.ring,
        )
        ticks = StoreTicks(
            self.store,
            self.appends.store_clock,
            self.store_changed,
            arrived=self.arrived,
            shortened=self.pending.log_shortened,
            ticked=self._ticked,
        )
        return unread, ticks

    @classmethod
    async def open(
        cls,
        settings: BrokerSettings,
        store_host: tuple[str, int],
        nameservers: Nameservers,
        *,
        clock: Clock,
        disk: Disk,
        on_failed: Callable[[str], None],
    ) -> "Broker":
        """Open the store and read the topic file.

        Args:
            store_host: IPv4 address and port to write into records.
            clock: wall clock and monotonic clock of the broker.
            on_failed: called on the loop's thread, once, after a failed sync; from then on
                nothing is acknowledged, and the process must end.

        Raises:
            SettingsError: the store refuses a setting.
            StorageError, OSError: the store cannot be opened.
            StartInterrupted: `disk.interrupt` was called. The store is in a state as after a
                crash, or closed if it was already open.
        """
        loop = asyncio.get_running_loop()
        opened: list[Broker] = []

        # Both callbacks run on the Syncer's thread, which does not sync before the first append.
        def synced(end: int) -> None:
            loop.call_soon_threadsafe(opened[0].appends.confirmed, end)

        def failed(failure: OSError) -> None:
            loop.call_soon_threadsafe(opened[0]._failed, failure, on_failed)

        store_settings = settings.for_store(store_host)
        topic_file = prepared(settings, disk)
        began = clock.monotonic_seconds()
        opening = partial(
            Store.open, store_settings, disk=disk, clock=clock, on_synced=synced, on_failed=failed
        )
        store = await asyncio.to_thread(opening)
        recovery_seconds = clock.monotonic_seconds() - began
        try:
            broker = await cls.from_store(
                store, topic_file, settings, nameservers, clock, disk, recovery_seconds
            )
            store.inline_bytes_max = INLINE_BYTES_MAX
            await asyncio.to_thread(broker.lead)
        except BaseException:
            disk.go_on()
            store.close()
            raise
        opened.append(broker)
        return broker

    @classmethod
    async def from_store(
        cls,
        store: Store,
        topic_file: TopicFile,
        settings: BrokerSettings,
        nameservers: Nameservers,
        clock: Clock,
        disk: Disk,
        recovery_seconds: float = 0.0,
        check_may_append: Callable[[], None] = lambda: None,
    ) -> "Broker":
        """Return a broker for an open store, with its snapshots loaded. It does not lead yet.

        For `check_may_append` see `Appends`, for the other arguments `open`.
        """
        config = settings.store_path / CONFIG_DIRECTORY
        begin = partial(SequenceMemory.begin, store, config, disk, clock)
        sequences = await asyncio.to_thread(begin, settings.for_sequences())
        broker = cls(
            settings,
            store,
            sequences,
            topic_file,
            nameservers,
            clock,
            disk,
            recovery_seconds,
            check_may_append,
        )
        if store.keeps_all_files:
            log.warning("%s", KEEPS_ALL_FILES)
        await asyncio.to_thread(broker.pending.begin)
        if broker.key_index is not None:
            broker.key_index.gathers = True
        return broker

    # Derived state: applied from the log before this broker leads, then updated by each append.

    def follow(self, bytes_max: int) -> int | None:
        """Apply a part of the visible log; return its number of records, None at the end. Raises
        OSError, StoreSyncFailed, StoreClosed: the log cannot be read."""
        records = apply_piece(self.store, self._derived, bytes_max)
        if records is None:
            self.pending.follow()
            behind = self.store.visible_end if self.key_index is None else self.key_index.end_offset
            self.store.forget_copied(min(behind, self.store.visible_end))
        return records

    def lead(self) -> int:
        """Apply the rest of the visible log, and start to lead.

        Returns:
            Number of applied records.

        Raises:
            StoreLayoutError: a file with RocketMQ's progress cannot be read.
            OSError, StoreSyncFailed, StoreClosed: the log cannot be read.
        """
        # First, because other parts compute ages from this clock.
        self.appends.store_clock.lead_from(self.store.runs.newest_ms)
        self.pending.find_levels()
        records = apply_rest(self.store, self._derived)
        self.sequences.lead()
        self.pending.lead()
        self._leads = True
        self.store.require_readings()
        self.store.forget_copied(self.store.appended_end)
        if self.key_index is not None:
            self.key_index.gathers = False
        if self.topics.table.topics and not self.store.compaction.by_quorum:
            # An empty table may be older than all routes, so it does not prove that no topic is
            # compacted. The table of a log with copies may be older than other leaders' changes.
            self._update_compacted_topics()
        return records

    async def append(
        self, batch: AppendBatch, route_revision: int, handling: Handling = ORDINARY
    ) -> AppendResult:
        """Append a batch to the log; see `Appends.append`.

        Args:
            batch: its queue is the destination, whatever the handling.
            route_revision: revision of the sender's routes, 0 for none.
            handling: ordinary, delayed or half.
        """
        topic, queue_id = batch.queue
        await self.topics.catch_up([batch.queue], route_revision)
        behind = route_revision > self.topics.table.revision and self.topics.routes.following
        if behind and self.topics.knows(topic, queue_id):
            # The topic may have been deleted and recreated. An append to the old one would be
            # acknowledged and then lost, so the sender has to wait.
            reason = f"routes of revision {route_revision} have not reached it"
            raise NotReady(service="the broker", reason=reason)
        found = self.topics.table.topics.get(topic)
        if found is not None and found.compacted and not batch.internal:
            check_keys(batch)

        def check() -> None:
            self.topics.check_writable(topic, queue_id, route_revision)

        if handling == ORDINARY:
            return await self.appends.append(batch, check)
        if batch.sequenced is not None:
            raise InvalidArgument(reason="only ordinary batches have sequence numbers")
        if not batch.internal:
            self.appends.check_limits(batch)
            self.appends.check_accepted()
        if handling not in KINDS:
            raise InvalidArgument(reason=f"batches cannot be handled as {handling}")
        owner = self.pending.transactions if handling == HALF else self.pending.delays
        result = await owner.append(batch, check)
        if not batch.internal:
            count = len(batch.lengths) // 4
            kind = KINDS[handling]
            self.appends.received.add(topic, kind, count, batch.frames_bytes, batch.lengths)
        return result

    def append_group(
        self, shipments: Sequence[Sequence[RoutedBatch]]
    ) -> list[list[AppendResult | None]]:
        """Append the clients' batches that need not wait, by one write.

        Args:
            shipments: the batches of each gRPC message.

        Returns:
            The results of each shipment's batches. None: not written; call `append`, which waits or
            raises the reason.
        """
        topics = self.topics
        served, revision = topics.table.topics, topics.table.revision
        results: list[list[AppendResult | None]] = []
        group: list[GroupedBatch] = []
        for batches in shipments:
            own: list[AppendResult | None] = [None] * len(batches)
            results.append(own)
            # If a shipment has several batches of one queue, `append` writes them in their order.
            count_of = Counter([each.queue for each, _ in batches]) if len(batches) > 1 else None
            for index, (batch, route_revision) in enumerate(batches):
                topic = served.get(batch.topic)
                if (
                    topic is not None
                    and topic.is_plain
                    and 0 <= batch.queue_id < topic.queues
                    and route_revision <= revision
                    and (count_of is None or count_of[batch.queue] == 1)
                ):
                    group.append((batch, own, index))
        if group and not topics.lacks_routes():
            self.appends.append_group(group)
        return results

    async def pull(
        self, query: PullQuery, route_revision: int, create_revision: int = 0
    ) -> PullResult:
        """Read messages of a queue; see `Pulls.pull`.

        Args:
            query: queue, offset, limits and filter.
            route_revision: revision of the reader's routes, 0 for none.
            create_revision: etcd revision at which the queue was created, 0 for any. If the topic
                was created later, QueueNotFound is raised.
        """
        await self.topics.catch_up([(query.topic, query.queue_id)], route_revision)
        return await self.pulls.pull(query, self.readable(query, route_revision, create_revision))

    def readable(
        self, query: PullQuery, route_revision: int, create_revision: int
    ) -> Callable[[], None]:
        """Return a function that raises if a queue may not be read; arguments as for `pull`."""

        topics = self.topics
        # A table is never changed, only replaced.
        checked: object = None

        def check() -> None:
            nonlocal checked
            table = topics.table
            if table is checked:
                return
            topic = topics.check_readable(query.topic, query.queue_id, route_revision)
            if 0 < create_revision < topic.incarnation:
                raise QueueNotFound(
                    topic=query.topic, queue=query.queue_id, broker=self.settings.name
                )
            checked = table

        return check

    def _ticked(self) -> None:
        self.compaction.publishing.ticked()
        self.unread.ticked()

    def _drop_topics(self, topics: Sequence[str]) -> None:
        """Drop the messages of deleted topics; raises as `Store.drop_topics`."""
        # The store first, durably: the other steps can be repeated.
        self.store.drop_topics(*topics)
        self._drop_topic_state(topics)

    def load_log_topics(self) -> None:
        """Use the topics in the log's records, if it has had copies; call before `serve`."""
        if self.store.epoch:
            self.topics.use_log_topics(self.store.log_topics)

    async def _record_topics(self, planned: TopicPlan) -> None:
        """Append a topic change to a log with copies; see `record`."""
        gone = await record(self.store, self.appends, planned)
        if gone:
            log.info("deleted: the messages of %s were dropped", ", ".join(gone))
            self._drop_topic_state(gone)

    def _drop_topic_state(self, topics: Sequence[str]) -> None:
        self.sequences.ledger.drop_topics(*topics)
        self.appends.received.drop_topics(*topics)
        self.pulls.sent.drop_topics(*topics)
        self.store_changed.ring()

    def _update_compacted_topics(self) -> None:
        compacted = {topic.name for topic in self.topics.table.compacted}
        self.store.set_compacted_topics(compacted)
        self.store_changed.ring()

    def arrived(self, queue: QueueKey) -> None:
        """Wake readers and due work for a queue with new visible messages."""
        self.waiting.arrived(queue)
        self.pending.arrived(queue)

    def release_waiting(self) -> None:
        """Reply to all waiting pulls now; from now on no pull waits."""
        self.waiting.release()

    @property
    def waiting_pulls(self) -> int:
        return len(self.waiting)

    @property
    def disk_used_ratio(self) -> float:
        """Share of the store's partition in use, 0 to 1."""
        return self.disk_usage.used_ratio

    @property
    def disk_usage(self) -> DiskUsage:
        """Fill of the store's partition. Raises OSError."""
        return self._disk.usage(self.settings.store_path)

    def oldest_message_ms(self) -> int | None:
        """Return the store time of the log's first message, epoch milliseconds; None without one.
        Raises OSError."""
        begin = self.store.log_min_offset
        if self._oldest is None or self._oldest[0] != begin:
            times = self.store.read_log(begin, 1).records.store_timestamps_ms
            self._oldest = (begin, int(times[0])) if len(times) else None
        return None if self._oldest is None else self._oldest[1]

    def _failed(self, failure: OSError, on_failed: Callable[[str], None]) -> None:
        reason = f"a sync of {self.settings.store_path} failed: {failure}"
        self.appends.failed(StoreFailed(reason=reason))
        on_failed(reason)


def cluster_of(settings: BrokerSettings, disk: Disk) -> StoreCluster:
    """Return the cluster identity file of the store."""
    path = settings.store_path / CONFIG_DIRECTORY / CLUSTER_ID_FILE
    accepted = cluster_id("accept_cluster_id", settings.accept_cluster_id)
    return StoreCluster(path, disk.replace_file, accepted)


def key_index_of(
    settings: BrokerSettings, store: Store, disk: Disk, clock: Clock, store_changed: Bell
) -> IndexFollower | None:
    """Return the index follower; None with `index = off`."""
    if settings.index != "on":
        return None
    shape = IndexShape(settings.index_slots, settings.index_units)
    directory = IndexDirectory(settings.store_path, shape, disk)
    return IndexFollower(store, directory, clock, store_changed)


def limits_of(settings: BrokerSettings) -> AppendLimits:
    """Return the limits of a client's batch."""
    return AppendLimits(
        batch_bytes_max=settings.batch_bytes_max,
        batch_messages_max=settings.batch_messages_max,
        body_bytes_max=settings.body_bytes_max,
        properties_bytes_max=settings.properties_bytes_max,
    )


def prepared(settings: BrokerSettings, disk: Disk) -> TopicFile:
    """Return the topic file of a store after checking that this broker can serve the store. Raises
    StorageError, OSError: it cannot."""
    config = settings.store_path / CONFIG_DIRECTORY
    move_directories_away(settings.store_path, config, REBUILT_FILES, disk)
    topic_file = TopicFile(config, disk)
    refuse_batch_queues(settings.store_path, topic_file)
    return topic_file
