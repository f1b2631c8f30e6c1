"""A broker: its store, the topics it serves, and the doors to both.

    routes → topics ─┐
    Append → appends ┼→ store → Syncer's thread → confirmed → waiting pulls, waiting appends
    Pull   → pulls ──┘

Everything here runs on the event loop's thread, which owns the store. Only opening it, and writing
the topics down, happen in another thread; the store is not used meanwhile, or not touched by it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rockoon_broker.append import AppendLimits, AppendResult, Appends, GroupedBatch, check_keys
from rockoon_broker.applying import apply_piece, apply_rest
from rockoon_broker.clock import Clock
from rockoon_broker.compaction.compaction import BrokerCompaction
from rockoon_broker.config_files import move_directories_away
from rockoon_broker.idempotence import snapshot as sequence_snapshot
from rockoon_broker.idempotence.memory import SequenceMemory
from rockoon_broker.index.directory import IndexDirectory, IndexShape
from rockoon_broker.index.follower import IndexFollower
from rockoon_broker.long_poll import WaitingPulls
from rockoon_broker.pending import pending_index
from rockoon_broker.pending.pending_messages import PendingMessages
from rockoon_broker.pull import Pulled, PullQuery, Pulls
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.log.batch import Batch, RoutedBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.retention.foreign_store import KEEPS_ALL_FILES
from rockoon_broker.store.store import Store
from rockoon_broker.store_ticks import StoreTicks
from rockoon_broker.topics import topic_file as topics_json
from rockoon_broker.topics.foreign_store import refuse_batch_queues
from rockoon_broker.topics.log_topics import record
from rockoon_broker.topics.served_topics import ServedTopics
from rockoon_broker.topics.topic_file import TopicFile
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
from rockoon_node.store_cluster import StoreCluster, cluster_id
from rockoon_proto.v1.broker_pb2 import DELAYED, HALF, ORDINARY, Handling
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

CONFIG_DIRECTORY = "config"
STORE_ID_FILE = "storeId"
CLUSTER_ID_FILE = "clusterId"
# What they hold is had again, from the log and from the nameserver.
MADE_ANEW = (topics_json.FILE, sequence_snapshot.FILE, pending_index.SNAPSHOT_FILE)
# What a turn gathers of single messages; what is written in bulk is synced while the loop goes on.
INLINE_BYTES_MAX = 128 << 10
KINDS = {HALF: TRANSACTION, DELAYED: DELAY}


class Broker:
    """An open broker. Make one with `Broker.open`.

    Attributes:
        store: the log.
        sequences: what idempotent producers have sent.
        cluster: whose the store is.
        topics: what is served, in step with the routes.
        appends, pulls: the ways into the log and out of it.
        waiting: who waits for messages.
        ticks: has the store do what is due.
        key_index: keeps the index by key in step; None with `index = off`.
        unread: asks what consumer groups have not read, before retention deletes it.
        aside: messages that wait for something before their readers get them.
        compaction: generations of compacted topics that are handed over.
        nameservers: whom to ask.
        recovery_seconds: how long opening the store took.
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
        may_append: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.sequences = sequences
        self.nameservers = nameservers
        self.recovery_seconds = recovery_seconds
        self._disk = disk
        self._leads = False
        # Rung when the log has grown, lost its oldest files, or the store has something else to do.
        self.store_changed = Bell()
        self.cluster = cluster_of(settings, disk)
        self.waiting = WaitingPulls(settings.waiting_pulls_max)
        routes = (settings.name, topic_file, nameservers, self.cluster, clock)
        self.topics = ServedTopics(
            *routes,
            gone=self.waiting.topic_gone,
            drop=self._drop_topics,
            changed=self._tell_compacted,
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
            may_append=may_append,
        )
        self.pulls = Pulls(store, self.waiting, clock)
        self.aside = PendingMessages(
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
        self._derived = (sequences, self.aside.pending_index)
        self.unread, self.ticks = self._make_loops(nameservers, clock)
        # Where the log began when its first message was last looked at, and that one's store time.
        self._oldest: tuple[int, int] | None = None

    def _make_loops(self, nameservers: Nameservers, clock: Clock) -> tuple[UnreadFiles, StoreTicks]:
        unread = UnreadFiles(
            self.settings.name,
            self.store,
            self.topics,
            self.aside.pending_index,
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
            shortened=self.aside.log_shortened,
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
        """Open the store and read which topics it serves.

        Args:
            settings: as loaded.
            store_host: IPv4 address and port to write into records.
            nameservers: whose routes to follow.
            clock: every time the broker needs.
            disk: the store's file layer.
            on_failed: called on the loop's thread, once, when a sync has failed; from then on
                nothing is acknowledged, and the process must end.

        Raises:
            SettingsError: the store refuses a setting.
            StoreError, OSError: the store cannot be opened.
            StartInterrupted: `disk.interrupt` was called meanwhile. The store is as a crash would
                leave it, or closed when it was open already.
        """
        loop = asyncio.get_running_loop()
        opened: list[Broker] = []

        # Both are called on the Syncer's thread, which makes no sync before the first append.
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
            parts = (store, topic_file, settings, nameservers, clock, disk, recovery_seconds)
            broker = await cls.over(*parts)
            store.inline_bytes_max = INLINE_BYTES_MAX
            await asyncio.to_thread(broker.lead)
        except BaseException:
            disk.go_on()
            store.close()
            raise
        opened.append(broker)
        return broker

    @classmethod
    async def over(
        cls,
        store: Store,
        topic_file: TopicFile,
        settings: BrokerSettings,
        nameservers: Nameservers,
        clock: Clock,
        disk: Disk,
        recovery_seconds: float = 0.0,
        may_append: Callable[[], None] = lambda: None,
    ) -> "Broker":
        """Make a broker of an open store, which knows what snapshots say, and does not lead yet.

        For `may_append` see `Appends`, for the rest `open`.
        """
        config = settings.store_path / CONFIG_DIRECTORY
        begin = partial(SequenceMemory.begin, store, config, disk, clock)
        sequences = await asyncio.to_thread(begin, settings.for_sequences())
        parts = (settings, store, sequences, topic_file, nameservers, clock, disk)
        broker = cls(*parts, recovery_seconds, may_append)
        if store.keeps_all_files:
            log.warning("%s", KEEPS_ALL_FILES)
        await asyncio.to_thread(broker.aside.begin)
        if broker.key_index is not None:
            broker.key_index.gathers = True
        return broker

    # What is derived of the log: applied before this broker leads, then noted at each append.

    def follow(self, bytes_max: int) -> int | None:
        """Apply a piece of what readers see; returns how many records it had, None at the end.

        Raises:
            OSError, StoreFailed, StoreClosed: the log cannot be read.
        """
        records = apply_piece(self.store, self._derived, bytes_max)
        if records is None:
            self.aside.follow()
            behind = self.store.visible_end if self.key_index is None else self.key_index.end_offset
            self.store.forget_copied(min(behind, self.store.visible_end))
        return records

    def lead(self) -> int:
        """Apply the rest of what readers see, and be the one that appends from now on.

        Returns:
            How many records of the log were read for it.

        Raises:
            StoreLayoutError: a file that says what RocketMQ has seen to cannot be read.
            OSError, StoreFailed, StoreClosed: the log cannot be read.
        """
        # First: what other parts judge by the time is as old as the log says.
        self.appends.store_clock.lead_from(self.store.runs.newest_ms)
        self.aside.find_levels()
        records = apply_rest(self.store, self._derived)
        self.sequences.lead()
        self.aside.lead()
        self._leads = True
        self.store.ask_groups()
        self.store.forget_copied(self.store.appended_end)
        if self.key_index is not None:
            self.key_index.gathers = False
        if self.topics.table.topics and not self.store.compaction.by_quorum:
            # An empty table may have seen no routes yet: it does not say that nothing is compacted.
            # That of a copy may be of a time before others led.
            self._tell_compacted()
        return records

    async def append(
        self, batch: Batch, route_revision: int, handling: Handling = ORDINARY
    ) -> AppendResult:
        """Put a batch into the log; see `Appends.place`.

        Args:
            batch: its queue is its own, whatever is done with it.
            route_revision: routes that the sender has seen the queue in, 0 for none.
            handling: what to do with it.
        """
        topic, queue_id = batch.queue
        await self.topics.catch_up([batch.queue], route_revision)
        behind = route_revision > self.topics.table.revision and self.topics.routes.following
        if behind and self.topics.knows(topic, queue_id):
            # The topic may be deleted and another by now. What the old one is given would be
            # acknowledged and then go with it, so the sender has to wait.
            reason = f"routes of revision {route_revision} have not reached it"
            raise NotReady(service="the broker", reason=reason)
        found = self.topics.table.topics.get(topic)
        if found is not None and found.compacted and not batch.internal:
            check_keys(batch)

        def check() -> None:
            self.topics.check_writable(topic, queue_id, route_revision)

        if handling == ORDINARY:
            return await self.appends.place(batch, check)
        if batch.sequenced is not None:
            raise InvalidArgument(reason="only ordinary batches have sequence numbers")
        if not batch.internal:
            self.appends.check_limits(batch)
            self.appends.check_accepted()
        if handling not in KINDS:
            raise InvalidArgument(reason=f"batches cannot be handled as {handling}")
        desk = self.aside.transactions if handling == HALF else self.aside.delays
        placed = await desk.place(batch, check)
        if not batch.internal:
            count = len(batch.lengths) // 4
            kind = KINDS[handling]
            self.appends.taken.add(topic, kind, count, batch.frames_bytes, batch.lengths)
        return placed

    def append_group(
        self, messages: Sequence[Sequence[RoutedBatch]]
    ) -> list[list[AppendResult | None]]:
        """Append clients' batches by one write, as far as no batch has to wait.

        Args:
            messages: the batches of each sender.

        Returns:
            The results of each message's batches. None: not written; call `append`, which waits or
            raises the reason.
        """
        topics = self.topics
        served, revision = topics.table.topics, topics.table.revision
        results: list[list[AppendResult | None]] = []
        group: list[GroupedBatch] = []
        for batches in messages:
            own: list[AppendResult | None] = [None] * len(batches)
            results.append(own)
            # Two of one queue stay in their order: `append` writes both.
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
        if group and not topics.lacks_routes:
            self.appends.append_group(group)
        return results

    async def pull(self, query: PullQuery, route_revision: int, create_revision: int = 0) -> Pulled:
        """Messages of a queue; see `Pulls.pull`.

        Args:
            query: what is wanted.
            route_revision: routes that the reader has seen the queue in, 0 for none.
            create_revision: etcd's when the queue was created, 0 for any: in a topic that was
                created later it is another queue, and the one meant is not found.
        """
        await self.topics.catch_up([(query.topic, query.queue_id)], route_revision)
        return await self.pulls.pull(query, self.readable(query, route_revision, create_revision))

    def readable(
        self, query: PullQuery, route_revision: int, create_revision: int
    ) -> Callable[[], None]:
        """What raises when a queue may not be read (any more); arguments as of `pull`."""

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
        # The store first, durably: whatever else forgets them may do so again.
        self.store.drop_topics(*topics)
        self._forget_topics(topics)

    def believe_log(self) -> None:
        """Go by what the log says of topics, if it has had copies; before anybody is served."""
        if self.store.epoch:
            self.topics.believe(self.store.log_topics)

    async def _record_topics(self, planned: TopicPlan) -> None:
        """Have the log say which topics it holds, of a log with copies; see `record`."""
        gone = await record(self.store, self.appends, planned)
        if gone:
            log.info("deleted: the messages of %s were dropped", ", ".join(gone))
            self._forget_topics(gone)

    def _forget_topics(self, topics: Sequence[str]) -> None:
        self.sequences.ledger.drop_topics(*topics)
        self.appends.taken.drop_topics(*topics)
        self.pulls.given.drop_topics(*topics)
        self.store_changed.ring()

    def _tell_compacted(self) -> None:
        compacted = {topic.name for topic in self.topics.table.compacted}
        self.store.set_compacted_topics(compacted)
        self.store_changed.ring()

    def arrived(self, queue: QueueKey) -> None:
        """A queue has messages that its readers can have: wake who waits for them."""
        self.waiting.arrived(queue)
        self.aside.arrived(queue)

    def release_waiting(self) -> None:
        """Answer every waiting pull now, and let none wait any more."""
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
        """The store's partition. Raises OSError."""
        return self._disk.usage(self.settings.store_path)

    def oldest_message_ms(self) -> int | None:
        """When the log's first message was stored, epoch milliseconds; None when there is none.

        Raises:
            OSError: the disk.
        """
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
    """Whose the store is."""
    path = settings.store_path / CONFIG_DIRECTORY / CLUSTER_ID_FILE
    accepted = cluster_id("accept_cluster_id", settings.accept_cluster_id)
    return StoreCluster(path, disk.replace_file, accepted)


def key_index_of(
    settings: BrokerSettings, store: Store, disk: Disk, clock: Clock, store_changed: Bell
) -> IndexFollower | None:
    """What keeps the index by key in step; None with `index = off`."""
    if settings.index != "on":
        return None
    shape = IndexShape(settings.index_slots, settings.index_units)
    directory = IndexDirectory(settings.store_path, shape, disk)
    return IndexFollower(store, directory, clock, store_changed)


def limits_of(settings: BrokerSettings) -> AppendLimits:
    """What a batch of a client must not exceed."""
    return AppendLimits(
        batch_bytes_max=settings.batch_bytes_max,
        batch_messages_max=settings.batch_messages_max,
        body_bytes_max=settings.body_bytes_max,
        properties_bytes_max=settings.properties_bytes_max,
    )


def prepared(settings: BrokerSettings, disk: Disk) -> TopicFile:
    """The file of the topics that are served, of a store that this broker can serve.

    Raises:
        StoreError, OSError: it cannot.
    """
    config = settings.store_path / CONFIG_DIRECTORY
    move_directories_away(settings.store_path, config, MADE_ANEW, disk)
    topic_file = TopicFile(config, disk)
    refuse_batch_queues(settings.store_path, topic_file)
    return topic_file
