"""A broker: its store, the topics it serves, and the doors to both.

    routes → topics ─┐
    Append → appends ┼→ store → Syncer's thread → confirmed → waiting pulls, waiting appends
    Pull   → pulls ──┘

Everything here runs on the event loop's thread, which owns the store. Only opening it, and writing
the topics down, happen in another thread; the store is not used meanwhile, or not touched by it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from rockoon_broker.append import AppendLimits, AppendResult, Appends, check_keys
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
from rockoon_broker.retries.retries import GroupRules
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import StoreClosed, StoreFailed
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_broker.topics import topic_file as topics_json
from rockoon_broker.topics.foreign_store import refuse_batch_queues
from rockoon_broker.topics.routes import change_from_wire
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_broker.topics.topics import PERMISSION_READ, RouteChange, ServedTopic, TopicTable, plan
from rockoon_broker.traffic import DELAY, TRANSACTION
from rockoon_core.disk import Disk, DiskUsage
from rockoon_core.errors import (
    InvalidArgument,
    NotReady,
    QueueNotFound,
    RouteNotReached,
    TopicNotFound,
    TopicNotReadable,
    TopicNotWritable,
)
from rockoon_format.names import TRANSACTION_CHECK_MAX_TIME_TOPIC
from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import RouteFollower
from rockoon_node.store_cluster import StoreCluster, cluster_id
from rockoon_proto.v1.broker_pb2 import DELAYED, HALF, ORDINARY, Handling
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

CATCH_UP_SECONDS_MAX = 2.0
CATCH_UP_KNOWN_SECONDS_MAX = 0.25
TICK_SECONDS_MAX = 0.1
# Between two ticks of a store that has nothing to do: a clock that is set is noticed after that.
IDLE_SECONDS_MAX = 10.0
RETRY_SECONDS = 1.0
NOTE_SECONDS = 10.0
# Each is a directory that is moved; the marks of all are one write.
TOPICS_DROPPED_AT_ONCE_MAX = 100
CONFIG_DIRECTORY = "config"
CLUSTER_ID_FILE = "clusterId"
# What they hold is had again, from the log and from the nameserver.
MADE_ANEW = (topics_json.FILE, sequence_snapshot.FILE, pending_index.SNAPSHOT_FILE)
KINDS = {HALF: TRANSACTION, DELAYED: DELAY}
# No route leads there; people have to get at what is in it.
GIVEN_UP = ServedTopic(TRANSACTION_CHECK_MAX_TIME_TOPIC, queues=1, permissions=PERMISSION_READ)


class Broker:
    """An open broker. Make one with `Broker.open`.

    Attributes:
        store: the log.
        sequences: what idempotent producers have sent.
        table: the topics served now; replaced as a whole, by `apply` alone.
        cluster: whose the store is.
        routes: who keeps the table in step.
        key_index: who keeps the index by key in step; None with `index = off`.
        nameservers: whom to ask.
        aside: messages that wait for something before their readers get them.
        compaction: generations of compacted topics that are handed over.
        group_rules: what each consumer group says of messages that fail.
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
    ) -> None:
        self.settings = settings
        self.store = store
        self.sequences = sequences
        self.table = topic_file.read()
        self.nameservers = nameservers
        self.group_rules = GroupRules()
        self.cluster = StoreCluster(
            settings.store_path / CONFIG_DIRECTORY / CLUSTER_ID_FILE,
            disk.replace_file,
            cluster_id("accept_cluster_id", settings.accept_cluster_id),
        )
        self.routes = RouteFollower(
            nameservers, self._take, self._refusal, lambda: self.table.revision
        )
        self.recovery_seconds = recovery_seconds
        self._topic_file = topic_file
        self._clock = clock
        self._disk = disk
        self._waiting = WaitingPulls(settings.waiting_pulls_max)
        # Rung when the log has grown or lost its oldest files, and when there is something else
        # for the store to do: topics were deleted or are to be compacted, a generation has come.
        self.store_changed = Bell()
        self.appends = Appends(
            store,
            AppendLimits(
                batch_bytes_max=settings.batch_bytes_max,
                batch_messages_max=settings.batch_messages_max,
                body_bytes_max=settings.body_bytes_max,
                properties_bytes_max=settings.properties_bytes_max,
            ),
            sequences.ledger,
            clock,
            waits_for_sync=settings.flush == "sync",
            arrived=self._arrived,
            store_changed=self.store_changed,
        )
        self.pulls = Pulls(store, self._waiting, clock)
        self.aside = PendingMessages(
            store,
            self.appends,
            settings,
            settings.store_path / CONFIG_DIRECTORY,
            clock,
            disk,
            self.check_writable,
            self._knows_for_sure,
        )
        self.compaction = BrokerCompaction(
            store.compaction, disk, clock, settings.disk_full_percent, self.store_changed.ring
        )
        self.key_index: IndexFollower | None = None
        if settings.index == "on":
            shape = IndexShape(settings.index_slots, settings.index_units)
            directory = IndexDirectory(settings.store_path, shape, disk)
            self.key_index = IndexFollower(store, directory, clock, self.store_changed)
        if self.table.topics:
            self._tell_compacted()
        # The last table whose change is complete, unlike `table` while topics are being dropped.
        self._applied = self.table
        # The table as it was last written down, and when, in monotonic seconds.
        self._written = self.table
        self._written_at = clock.monotonic_seconds()
        self._refused: set[str] = set()
        self._append_refused = False
        # Why a change of topics is not in force yet.
        self.change_failure: OSError | None = None
        # Where the log began when its first message was last looked at, and that one's store time.
        self._oldest: tuple[int, int] | None = None
        # Revisions up to here were waited for in vain; known queues do not wait for them again.
        self._given_up_revision = 0

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
        config = settings.store_path / CONFIG_DIRECTORY
        move_directories_away(settings.store_path, config, MADE_ANEW, disk)
        topic_file = TopicFile(config, disk)
        refuse_batch_queues(settings.store_path, topic_file)
        began = clock.monotonic_seconds()
        store = await asyncio.to_thread(
            Store.open,
            store_settings,
            disk=disk,
            clock=clock,
            on_synced=synced,
            on_failed=failed,
        )
        recovery_seconds = clock.monotonic_seconds() - began
        try:
            sequences = await asyncio.to_thread(
                SequenceMemory.recall,
                store,
                config,
                disk,
                clock,
                settings.for_sequences(),
            )
            broker = cls(
                settings, store, sequences, topic_file, nameservers, clock, disk, recovery_seconds
            )
            await asyncio.to_thread(broker.aside.load)
        except BaseException:
            disk.go_on()
            store.close()
            raise
        opened.append(broker)
        return broker

    # What a topic is good for.

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
        await self.catch_up([batch.queue], route_revision)
        behind = route_revision > self.table.revision and self.routes.following
        if behind and self.knows(topic, queue_id):
            # The topic may be deleted and another by now. What the old one is given would be
            # acknowledged and then go with it, so the sender has to wait.
            reason = f"routes of revision {route_revision} have not reached it"
            raise NotReady(service="the broker", reason=reason)
        found = self.table.topics.get(topic)
        if found is not None and found.compacted and not batch.internal:
            check_keys(batch)

        def check() -> None:
            self.check_writable(topic, queue_id, route_revision)

        if handling == ORDINARY:
            return await self.appends.place(batch, check)
        if batch.sequenced is not None:
            raise InvalidArgument(reason="only ordinary batches have sequence numbers")
        if not batch.internal:
            self.appends.check_limits(batch)
        if handling not in KINDS:
            raise InvalidArgument(reason=f"batches cannot be handled as {handling}")
        desk = self.aside.transactions if handling == HALF else self.aside.delays
        placed = await desk.place(batch, check)
        if not batch.internal:
            sizes = batch.sizes
            kind = KINDS[handling]
            self.appends.taken.add(topic, kind, len(sizes), len(batch.frames), sizes)
        return placed

    async def pull(self, query: PullQuery, route_revision: int, create_revision: int = 0) -> Pulled:
        """Messages of a queue; see `Pulls.pull`.

        Args:
            query: what is wanted.
            route_revision: routes that the reader has seen the queue in, 0 for none.
            create_revision: etcd's when the queue was created, 0 for any: in a topic that was
                created later it is another queue, and the one meant is not found.
        """
        await self.catch_up([(query.topic, query.queue_id)], route_revision)

        def check() -> None:
            self.check_readable(query.topic, query.queue_id, route_revision)
            topic = self.served(query.topic, query.queue_id)
            if 0 < create_revision < topic.incarnation:
                raise QueueNotFound(
                    topic=query.topic, queue=query.queue_id, broker=self.settings.name
                )

        return await self.pulls.pull(query, check)

    def served(self, topic: str, queue_id: int, route_revision: int = 0) -> ServedTopic:
        """The topic of a queue that is served here.

        Args:
            topic, queue_id: the queue.
            route_revision: routes that the caller has seen the queue in, 0 for none.

        Raises:
            TopicNotFound, QueueNotFound: none such.
            RouteNotReached: none such that this broker has heard of, but it is behind the caller.
        """
        found = GIVEN_UP if topic == GIVEN_UP.name else self.table.topics.get(topic)
        if found is not None and 0 <= queue_id < found.queues:
            return found
        if route_revision > self.table.revision:
            raise RouteNotReached(wanted=route_revision, revision=self.table.revision)
        if found is None:
            raise TopicNotFound(topic=topic)
        raise QueueNotFound(topic=topic, queue=queue_id, broker=self.settings.name)

    def check_writable(self, topic: str, queue_id: int, route_revision: int = 0) -> None:
        """Raise if a queue may not be written; see `served`."""
        if not self.served(topic, queue_id, route_revision).writable:
            raise TopicNotWritable(topic=topic)

    def check_readable(self, topic: str, queue_id: int, route_revision: int = 0) -> None:
        """Raise if a queue may not be read; see `served`."""
        if not self.served(topic, queue_id, route_revision).readable:
            raise TopicNotReadable(topic=topic)

    async def catch_up(self, queues: list[tuple[str, int]], route_revision: int) -> None:
        """Wait, at most 2 s, for routes that a caller has seen and this broker has not.

        A queue that is known is waited for as well: its topic may be another one by now, and what
        is appended to the old one goes with it. But only for a moment, because mostly it is the
        same, and not while no nameserver could tell.
        """
        if route_revision <= self.table.revision:
            return
        known = all(self.knows(topic, queue_id) for topic, queue_id in queues)
        hopeless = not self.routes.following or route_revision <= self._given_up_revision
        if known and hopeless:
            return
        seconds = CATCH_UP_KNOWN_SECONDS_MAX if known else CATCH_UP_SECONDS_MAX
        if not await self.routes.wait_revision(route_revision, seconds):
            self._given_up_revision = max(self._given_up_revision, route_revision)

    def knows(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is served here."""
        found = self.table.topics.get(topic)
        return found is not None and 0 <= queue_id < found.queues

    def _knows_for_sure(self, topic: str, queue_id: int) -> bool:
        """Likewise, for who gives up what has no queue.

        Raises:
            NotReady: this broker has never seen routes, so it cannot say that there is none.
        """
        known = self.knows(topic, queue_id)
        if not known and self.table.revision == 0:
            raise NotReady(service="the broker", reason="it has not seen any routes")
        return known

    # What changes.

    def _refusal(self, update: RouteUpdate) -> str:
        try:
            return self.cluster.join(update.cluster_id)
        except OSError as failure:
            log.warning("which cluster this store belongs to is not written down: %s", failure)
            return ""

    async def _take(self, update: RouteUpdate) -> None:
        await self.apply(change_from_wire(update, self.settings.name))
        self.group_rules.take(update)

    async def apply(self, change: RouteChange) -> None:
        """Put a change of the routes into force, durably.

        Tried again until the disk takes it, unless the store has ended: serving a topic whose
        incarnation is not written down would, after a crash, drop what was stored for it.
        """
        planned = plan(self.table, change)
        if planned.another_history:
            log.error(
                "routes of revision %d do not continue those seen before, up to %d: etcd was "
                "replaced or has lost data; the messages of every topic are kept",
                change.revision,
                self.table.revision,
            )
        self.table = self.table.without(planned.drop)
        for topic in planned.drop:
            self._waiting.topic_gone(topic)
        while True:
            try:
                for topics in in_parts(planned.drop, TOPICS_DROPPED_AT_ONCE_MAX):
                    log.info("deleted: dropping the messages of %s", ", ".join(topics))
                    self.store.drop_topics(*topics)
                    self.sequences.ledger.drop_topics(*topics)
                    self.appends.taken.drop_topics(*topics)
                    self.pulls.given.drop_topics(*topics)
                    self.store_changed.ring()
                    # Others have their turn.
                    await asyncio.sleep(0)
                if planned.changed or self._revision_is_stale(planned.table):
                    await asyncio.to_thread(self._write, planned.table)
                break
            except (StoreFailed, StoreClosed) as failure:
                # The broker is about to end. Until it is cancelled it must not say that the
                # change is in force.
                log.info("a change of topics is left to the next start: %s", failure)
                await asyncio.get_running_loop().create_future()
            except OSError as failure:
                log.error("a change of topics waits for the disk: %s", failure)  # noqa: TRY400
                self.change_failure = failure
                await asyncio.sleep(RETRY_SECONDS)
        self.change_failure = None
        self.table = self._applied = planned.table
        self._tell_compacted()

    def _tell_compacted(self) -> None:
        self.store.set_compacted_topics({topic.name for topic in self.table.compacted})
        self.store_changed.ring()

    def _revision_is_stale(self, table: TopicTable) -> bool:
        """Whether what is written down is far behind.

        The newest revision seen is how a lost etcd is told from one in which topics were deleted.
        """
        age_seconds = self._clock.monotonic_seconds() - self._written_at
        return table.revision != self._written.revision and age_seconds >= NOTE_SECONDS

    def _write(self, table: TopicTable) -> None:
        self._topic_file.write(table, self._clock.now_ms())
        self._written, self._written_at = table, self._clock.monotonic_seconds()

    def note_revision(self) -> None:
        """At the end: write down how far the routes were followed."""
        if self._applied.revision != self._written.revision:
            try:
                self._write(self._applied)
            except OSError as failure:
                log.warning("the route revision was not written down: %s", failure)

    async def run_ticks(self) -> None:
        """Let the store do what is due, until cancelled or the store has failed.

        While it has something to do, several times a second; else when that changes.
        """
        pause_seconds = min(TICK_SECONDS_MAX, self.settings.flush_interval_ms / 1000)
        log_min = self.store.log_min_offset
        while True:
            now_ms = self.appends.store_clock.now_ms()
            try:
                advanced = self.store.tick(now_ms)
            except StoreFailed:
                # `_failed` ends the broker, with the reason.
                return
            for queue in advanced:
                self._arrived(queue)
            if self.store.log_min_offset != log_min:
                log_min = self.store.log_min_offset
                self.store_changed.ring()
                self.aside.log_shortened()
            self.compaction.publishing.ticked()
            self._report_refused_messages()
            self._report_refusals()
            idle_seconds = self.store.idle_ms(now_ms) / 1000
            if idle_seconds > pause_seconds:
                await self.store_changed.wait(min(idle_seconds, IDLE_SECONDS_MAX) - pause_seconds)
            await asyncio.sleep(pause_seconds)

    def _arrived(self, queue: QueueKey) -> None:
        """A queue has messages that its readers can have: wake who waits for them."""
        self._waiting.arrived(queue)
        self.aside.arrived(queue)

    def _report_refusals(self) -> None:
        """Say once when the disk begins to refuse something, and once when it does it again."""
        for what, refusal in (
            ("old files cannot be deleted", self.store.removal_failure),
            ("no recovery point can be written", self.store.point_failure),
        ):
            if refusal is not None and what not in self._refused:
                self._refused.add(what)
                log.warning("%s, it is tried again and again: %s", what, refusal)
            if refusal is None and what in self._refused:
                self._refused.discard(what)
                log.warning("%s: that is over", what)

    def _report_refused_messages(self) -> None:
        """Say once when messages are refused, whatever percentage comes after, and once when they
        are taken again."""
        reason = self.store.not_writable_reason
        if reason and not self._append_refused:
            log.error("messages are refused: %s", reason)
        if not reason and self._append_refused:
            log.info("messages are taken again")
        self._append_refused = bool(reason)

    def release_waiting(self) -> None:
        """Answer every waiting pull now, and let none wait any more."""
        self._waiting.release()

    @property
    def waiting_pulls(self) -> int:
        return len(self._waiting)

    @property
    def disk_used_ratio(self) -> float:
        """Share of the store's partition in use, 0 to 1."""
        usage = self.disk_usage
        return usage.used_bytes / max(usage.used_bytes + usage.usable_bytes, 1)

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
        self.appends.failed(reason)
        on_failed(reason)


def in_parts(names: Sequence[str], count_max: int) -> Iterator[Sequence[str]]:
    """Some at a time, in their order."""
    for first in range(0, len(names), count_max):
        yield names[first : first + count_max]
