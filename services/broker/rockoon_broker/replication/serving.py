"""Broker of a log with copies: state and tasks while this replica follows and while it leads.

A *term* is one run of a replica (`rockoon_replica.log_copy`). Before a replica leads, its broker is
made only from committed records. When its leadership ends, the broker's state is discarded, because
the next leader may cut records from which the state was derived.

The broker of a follower applies records as they are committed. A replica that starts to lead
applies only the last committed records, however long its log is. Invariants:

1. Nothing is applied before it is committed, so nothing has to be undone. A cut reopens the store,
   and another broker is made from snapshots and the log.
2. Applying works in small pieces, so that copying, acknowledging and committing wait for one at
   most.

A follower copies its leader's current generation of each compacted topic, with the calls of a
compaction job, and verifies it like an upload. Until then it keeps the messages that the leader has
deleted (rule 12 of docs/understand/replication.md), so a slow copy costs only disk space.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from rockoon_broker.broker import Broker, prepared
from rockoon_broker.replication.store_log import StoreLog
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import MarkDamaged, StorageError, StoreDamaged
from rockoon_broker.store.log.reading import rewrite_closed
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY
from rockoon_broker.store.store import Store
from rockoon_broker.topics.served_topics import as_log_topics
from rockoon_core.clock import wait_at_most
from rockoon_core.errors import NotEnoughReplicas, NotLeader, StoreFailed
from rockoon_format.checksums import crc32
from rockoon_format.file_names import file_name_to_offset
from rockoon_node.nameservers import Nameservers
from rockoon_replica.replica import Replica
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from rockoon_broker.clock import Clock
    from rockoon_broker.rpc.service import BrokerService
    from rockoon_core.disk import Disk, DiskUsage
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc

from rockoon_core.errors import BrokerUnavailable, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_format.generation import GenerationError, Manifest
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_replica.member import Role

if TYPE_CHECKING:
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub
from collections.abc import Awaitable, Iterable
from contextlib import asynccontextmanager

from rockoon_runtime.waking import Bell

# Some milliseconds of work.
PIECE_BYTES_MAX = 1 << 20
# Records committed within this time are applied together.
GATHER_SECONDS = 0.2
Loops = Callable[[Broker], Iterable[tuple[str, Coroutine[Any, Any, None]]]]
"""Returns named tasks that follow a broker's log until cancelled."""


class WarmBroker:
    """The broker of one term of a replica. Used only by the event loop's thread.

    Args:
        opened: the log; a cut replaces its store.
        leads: set when this replica leads: then all of its log is committed, and not cut in
            this term. Call `wake` after setting it.
        make: makes a broker from a store.
        loops: tasks to run from then on, also while it leads.

    Attributes:
        broker: the broker, once it is made.
    """

    def __init__(
        self,
        opened: StoreLog,
        leads: asyncio.Event,
        make: Callable[[Store], Awaitable[Broker]],
        loops: Loops,
    ) -> None:
        self._opened = opened
        self._make = make
        self._loops = loops
        self._leads = leads
        self._news = Bell()
        self.broker: Broker | None = None

    def wake(self) -> None:
        """Notify that more of the log is committed, or that this replica leads."""
        self._news.ring()
        if self.broker is not None:
            self.broker.store_changed.ring()

    async def run(self, leading: Callable[[Broker], Awaitable[None]]) -> None:
        """Keep a broker up to date until cancelled.

        Args:
            leading: called once, when this replica leads and its whole log is applied.

        Raises:
            StorageError, OSError: the store cannot be used.
        """
        while True:
            store = self._opened.store
            # Snapshots may contain committed records that the store counts as uncommitted after a
            # start.
            while store.visible_end < store.recovery.log_end and not self._leads.is_set():
                await self._news.wait()
                store = self._opened.store
            try:
                broker = await self._make(store)
            except (StorageError, OSError, ValueError):
                if self._opened.store is store:
                    raise
                # It was closed for a cut.
                continue
            async with self._followed(broker):
                if await self._follow(broker):
                    await leading(broker)

    @asynccontextmanager
    async def _followed(self, broker: Broker) -> AsyncIterator[None]:
        """Run the tasks that follow a broker's log."""
        self.broker = broker
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(loop, name=name) for name, loop in self._loops(broker)]
                try:
                    yield
                finally:
                    for task in running:
                        task.cancel()
        finally:
            # Write no snapshot: a leader's state may contain records that the next leader cuts.
            self.broker = None
            broker.compaction.close()
            if broker.key_index is not None:
                broker.key_index.close()

    async def _follow(self, broker: Broker) -> bool:
        """Apply the committed log until this replica leads; return True when all of it is applied,
        False when the store was replaced."""
        loop = asyncio.get_running_loop()
        records = 0
        while True:
            if broker.store is not self._opened.store:
                return False
            began = loop.time()
            read = broker.follow(PIECE_BYTES_MAX)
            if self._leads.is_set():
                records += read or 0
                if read is None:
                    break
                await asyncio.sleep(0)
            elif read is not None:
                # Sleep as long as the read lasted, so that other tasks get half of the time.
                await asyncio.sleep(loop.time() - began)
            else:
                await self._news.wait()
                await wait_at_most(GATHER_SECONDS, self._leads.wait())
        records += broker.lead()
        log.info("starting to lead: applied %d records of the log", records)
        return True


log = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
# After a leader that does not answer, and after invalid files.
RETRY_SECONDS = 5.0
REFUSED_SECONDS = 60.0
CALL_SECONDS_MAX = 30.0
PIECE_BYTES = 1 << 20


class GenerationCopying:
    """Keeps the generation of a copy equal to its leader's. Used by the event loop's thread.

    Args:
        broker: made from the copy.
        replica: knows the leader and the leader's active generation.
        cluster: sent with calls, so that a node of another cluster refuses them.
    """

    def __init__(self, broker: Broker, replica: Replica, cluster: str) -> None:
        self._broker = broker
        self._replica = replica
        self._metadata = ((CLUSTER_METADATA_KEY, cluster),)
        # Identity of a generation of the leader that cannot replace the own one. A later generation
        # of the leader can.
        self._ignored_identity = 0
        self._attempts = 0

    async def run(self) -> None:
        """Copy the leader's generation whenever it differs, until cancelled."""
        while True:
            seconds = LOOK_SECONDS
            wanted = self._replica.member.leader_generation
            known = (0, self._broker.store.compaction.identity, self._ignored_identity)
            if self._replica.role is Role.FOLLOWER and wanted not in known:
                try:
                    seconds = await self._get(wanted)
                except (RockoonError, GenerationError, OSError) as failure:
                    log.info("could not copy the leader's generation, retrying: %s", failure)
                    seconds = RETRY_SECONDS
            await asyncio.sleep(seconds)

    async def _get(self, wanted: int) -> float:
        """Copy the leader's active generation; return the seconds until the next check.

        Raises:
            RockoonError: the leader does not answer.
            GenerationError: its answer has no valid manifest.
            OSError: the disk.
        """
        channel = self._replica.leader_channel()
        if channel is None:
            return LOOK_SECONDS
        stub: BrokerAsyncStub = BrokerStub(channel)
        try:
            described = await stub.DescribeCompaction(
                pb.DescribeCompactionRequest(), timeout=CALL_SECONDS_MAX, metadata=self._metadata
            )
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, BrokerUnavailable, broker="the leader") from failure
        if not described.manifest:
            return LOOK_SECONDS
        manifest = Manifest.from_json(described.manifest)
        store = self._broker.store
        own = store.compaction.manifest
        if own is not None and not may_replace(manifest, own):
            log.info(
                "keeping generation %d, up to %d of the log; the leader has another %d, up to %d",
                *(own.generation, own.log_end),
                *(manifest.generation, manifest.log_end),
            )
            self._ignored_identity = wanted
            return LOOK_SECONDS
        uploads = self._broker.compaction.uploads
        while uploads.has_ended(upload_id := self._upload_id(described.manifest)):
            # Discarded while the leader was away, or ended by an attempt that the disk refused.
            self._attempts += 1
        held = {file.sha256 for part in (own.parts if own else ()) for file in part.files}
        for name, size, sha256 in (file for part in manifest.parts for file in part.files):
            # Not copied: files of this copy's generation, and files of an earlier process.
            if sha256 not in held and uploads.size_of(upload_id, name) != size:
                pieces = self._pieces(stub, manifest.generation, name, size)
                await uploads.put(upload_id, name, pieces)
        while min(store.visible_end, store.durable_end) < manifest.log_end:  # noqa: ASYNC110 - rare
            await asyncio.sleep(LOOK_SECONDS)
        if self._replica.role is not Role.FOLLOWER:
            return LOOK_SECONDS
        marks = {each.topic: each.dropped_below for each in described.dropped}
        refusal = await self._broker.compaction.copy(upload_id, described.manifest, manifest, marks)
        self._attempts += bool(refusal)
        return REFUSED_SECONDS if refusal else LOOK_SECONDS

    def _upload_id(self, manifest: bytes) -> str:
        return f"copy-{hashlib.sha256(manifest).hexdigest()[:32]}-{self._attempts}"

    async def _pieces(
        self, stub: "BrokerAsyncStub", generation: int, name: str, size: int
    ) -> AsyncIterator[bytes]:
        at = 0
        while at < size:
            request = pb.ReadGenerationRequest(
                generation=generation, file_name=name, offset=at, max_bytes=PIECE_BYTES
            )
            try:
                reply = await stub.ReadGeneration(
                    request, timeout=CALL_SECONDS_MAX, metadata=self._metadata
                )
            except grpc.RpcError as failure:
                raise from_rpc_error(failure, BrokerUnavailable, broker="the leader") from failure
            if not reply.data:
                # Shorter than its manifest states; the completion of the upload reports it.
                return
            at += len(reply.data)
            yield reply.data


def may_replace(leader: Manifest, own: Manifest) -> bool:
    """Return whether the leader's generation may replace the one of this copy.

    If this copy led and no follower copied its generation, the next leader's generation may have
    the same number, or cover less of the log, while this copy has already deleted more of its log.
    """
    return leader.generation > own.generation and leader.log_end >= own.log_end


TICK_SECONDS = 1.0
# While a generation is being adopted.
BUSY_TICK_SECONDS = 0.1

Running = Callable[[Broker, Stop], AbstractAsyncContextManager[None]]


class BrokerCopy:
    """`LogService` of a replicated broker: serves clients while this replica leads, keeps derived
    state warm while it follows.

    Args:
        settings: as loaded; `copies` is more than one.
        store_host: IPv4 address and port to write into records.
        replica_id: replica id of the store.
        nameservers: nameservers that the broker follows.
        service: answers clients while this replica leads.
        stop: stop request of the process.
        clock, disk: see `serve`.
        running: context manager that runs the tasks of a leading broker.
        followers: tasks that follow the log at all times.
    """

    log_failures = (StorageError,)
    crc32 = staticmethod(crc32)

    def __init__(
        self,
        settings: BrokerSettings,
        store_host: tuple[str, int],
        replica_id: str,
        nameservers: Nameservers,
        service: "BrokerService",
        stop: Stop,
        clock: "Clock",
        disk: "Disk",
        running: Running,
        followers: Loops,
    ) -> None:
        self._settings = settings
        self._store_host = store_host
        self._store_settings = settings.for_store(store_host)
        self._replica_id = replica_id
        self._nameservers = nameservers
        self._service = service
        self._stop = stop
        self._clock = clock
        self._disk = disk
        self._running = running
        self._followers = followers
        self._log: StoreLog | None = None
        self._replica: Replica | None = None
        self._broker: Broker | None = None
        self._warm: WarmBroker | None = None

    def use_settings(self, settings: BrokerSettings) -> None:
        """Use other values of live settings."""
        self._settings = settings
        self._store_settings = settings.for_store(self._store_host)
        made = None if self._warm is None else self._warm.broker
        if made is not None:
            made.use_settings(settings)
        if self._log is not None:
            self._log.store.use_settings(self._store_settings, self._clock.now_ms())

    @property
    def broker(self) -> Broker | None:
        """The broker that serves clients; None while another replica leads."""
        return self._broker

    @property
    def store(self) -> Store | None:
        """The open store; None between two terms."""
        return self._log.store if self._log is not None else None

    @property
    def disk_usage(self) -> "DiskUsage":
        """Fill of the store's partition. Raises OSError."""
        return self._disk.usage(self._settings.store_path)

    # A `LogService`.

    def open_log(self, lost: Callable[[str], None]) -> StoreLog:
        self._log = StoreLog(
            self._replica_id,
            partial(self._open_store, lost),
            self._clock,
            topics=lambda: as_log_topics(prepared(self._settings, self._disk).read()),
            advanced=self._advanced,
            failed=self._failed,
        )
        return self._log

    def damage_of(self, failure: Exception) -> int | None:
        """Return the position of a damaged record of the log's own topic; its queue lists it, so it
        was committed."""
        return failure.physical_offset if isinstance(failure, MarkDamaged) else None

    def rewrite(self, position: int, data: bytes) -> None:
        settings = self._store_settings
        directory = settings.root / LOG_DIRECTORY
        rewrite_closed(directory, settings.commit_log_file_bytes, self._disk, position, data)

    async def run_service(self, replica: Replica, leads: asyncio.Event) -> None:
        opened = self._log
        assert opened is not None, "it was opened before"
        self._replica = replica
        making = partial(self._make_broker, replica)

        def loops(broker: Broker) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
            yield from self._followers(broker)
            copying = GenerationCopying(broker, replica, self._settings.cluster)
            yield "generations of the leader", copying.run()

        warm = self._warm = WarmBroker(opened, leads, making, loops)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(warm.run(partial(self._lead, replica)), name="warm broker")
                await self._tick(opened, leads)
                warm.wake()
        finally:
            self._log = self._replica = self._warm = None

    def hold_calls(self) -> None:
        self._service.hold_calls()

    def refuse(self, refusal: NotLeader) -> None:
        self._service.refuse(refusal)

    def committed(self, end: int) -> None:
        if self._warm is not None:
            self._warm.wake()
        if self._broker is not None:
            self._broker.appends.confirmed(end)
            if self._replica is not None:
                _update_retain_from(self._broker, self._replica)

    def may_delete(self, min_offset: int) -> None:
        # Only permits it: the store still checks ages by this machine's clock.
        if self._log is not None:
            self._log.store.retain_from = min_offset

    async def _make_broker(self, replica: Replica, store: Store) -> Broker:
        def check_may_append() -> None:
            if not replica.appends_allowed:
                needed = replica.state.config.quorum if replica.state is not None else 0
                raise NotEnoughReplicas(connected="too few", log=self._settings.name, needed=needed)

        settings = self._settings
        broker = await Broker.from_store(
            store,
            prepared(settings, self._disk),
            settings,
            self._nameservers,
            self._clock,
            self._disk,
            check_may_append=check_may_append,
        )

        def on_damage(damage: StoreDamaged) -> None:
            if damage.path.parent.name == LOG_DIRECTORY:
                position = file_name_to_offset(damage.path.name) + damage.position
                replica.check.add(position, position + 1)

        broker.pulls.on_damage = on_damage
        if self._settings is not settings:
            # Changed while the broker was made.
            broker.use_settings(self._settings)
        return broker

    async def _lead(self, replica: Replica, broker: Broker) -> None:
        """Let a broker lead until cancelled."""
        not_leader = NotLeader(
            replica=self._settings.replica or self._settings.name, log=self._settings.name
        )
        # The broker was made before the log's last records arrived.
        broker.load_log_topics()
        self._broker = broker
        try:
            async with self._running(broker, self._stop), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(broker, replica), name="sending to followers")
                tasks.create_task(self._hold(broker, replica), name="retention and copies")
                self._service.serve(broker, replica.round)
                await asyncio.Event().wait()
        finally:
            self._broker = None
            self._service.refuse(not_leader)
            broker.appends.failed(not_leader)
            broker.release_waiting()

    async def _tick(self, opened: StoreLog, leads: asyncio.Event) -> None:
        """Run the store's periodic work until this replica leads."""
        while not leads.is_set():
            now_ms = self._clock.now_ms()
            opened.store.tick(now_ms)
            is_busy = not opened.store.idle_ms(now_ms)
            await wait_at_most(BUSY_TICK_SECONDS if is_busy else TICK_SECONDS, leads.wait())

    async def _hold(self, broker: Broker, replica: Replica) -> None:
        """Keep the log for lagging copies, and report when that has lasted too long."""
        since: float | None = None
        reported = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            _update_retain_from(broker, replica)
            held, now = broker.store.retention_held_end, self._clock.monotonic_seconds()
            since = (since or now) if held else None
            if since is not None and now - since < self._settings.copy_away_seconds_max:
                held = 0
            if held != reported:
                replica.retention_held(held)
                reported = held

    async def _send(self, broker: Broker, replica: Replica) -> None:
        while True:
            # No await between two waits, so that no append is missed.
            await broker.store_changed.wait()
            replica.written()

    def _open_store(
        self,
        lost: Callable[[str], None],
        synced: Callable[[int], None],
        failed: Callable[[OSError], None],
    ) -> Store:
        return Store.open(
            self._store_settings,
            disk=self._disk,
            clock=self._clock,
            on_synced=synced,
            on_failed=failed,
            on_loss=lost,
            by_quorum=True,
        )

    def _advanced(self, queues: Sequence[QueueKey]) -> None:
        if self._broker is not None:
            for queue in queues:
                self._broker.arrived(queue)

    def _failed(self, failure: OSError) -> None:
        reason = f"a sync of {self._settings.store_path} failed: {failure}"
        if self._broker is not None:
            self._broker.appends.failed(StoreFailed(reason=reason))
        self._stop.fail(Fatal(ExitStatus.DISK_FAILED, reason))
        if self._replica is not None:
            self._replica.close()


def _update_retain_from(broker: Broker, replica: Replica) -> None:
    """Let retention delete what all copies have, but only after routes have provided the compacted
    topics: those stored here may be from an earlier term of this replica."""
    if broker.store.compaction.knows_topics:
        broker.store.retain_from = replica.retention_end
