"""Broker whose log has copies: it copies while another replica leads, and serves while it leads.

A life begins with opening the store and ends when leadership does. What was made of the log in
memory goes with it, because the next leader may cut what was appended.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from rockoon_broker.broker import CONFIG_DIRECTORY, Broker, prepared
from rockoon_broker.replication.store_log import StoreLog
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import StoreError
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.errors import NotEnoughReplicas, NotLeader, StoreFailed
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_proto.v1.nameserver_pb2 import ReplicaFacts as WireFacts
from rockoon_replica.actions import Remake, Reopen
from rockoon_replica.log_state import LogState
from rockoon_replica.nameserver_link import NameserverLink
from rockoon_replica.replica import LastAction, Replica
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from rockoon_replica.standing import Record
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from rockoon_broker.clock import Clock
    from rockoon_broker.rpc.service import BrokerService
    from rockoon_core.channels import Channels
    from rockoon_core.disk import Disk, DiskUsage
    from rockoon_replica.service import ReplicationService

log = logging.getLogger(__name__)

HAND_OVER_SECONDS = 5.0
TICK_SECONDS = 1.0

Running = Callable[[Broker, Stop], AbstractAsyncContextManager[None]]


class BrokerCopy:
    """One replica of a broker's log, as a process.

    Args:
        settings: as loaded; `copies` is more than one.
        store_host: IPv4 address and port to write into records.
        replica_id: of the store.
        nameservers, channels: whom to ask, and how other replicas are called.
        service: answers clients while this replica leads.
        replication: answers followers.
        stop: the process's.
        clock, disk: as of `serve`.
        running: does, while it is entered, what an open broker does all the time.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store_host: tuple[str, int],
        replica_id: str,
        nameservers: Nameservers,
        channels: "Channels",
        service: "BrokerService",
        replication: "ReplicationService",
        stop: Stop,
        clock: "Clock",
        disk: "Disk",
        running: Running,
    ) -> None:
        self._settings = settings
        self._store_settings = settings.for_store(store_host)
        self._replica_id = replica_id
        self._nameservers = nameservers
        self._channels = channels
        self._service = service
        self._replication = replication
        self._stop = stop
        self._clock = clock
        self._disk = disk
        self._running = running
        self._file = ReplicaFile(settings.store_path / CONFIG_DIRECTORY, disk)
        self._log: StoreLog | None = None
        self._replica: Replica | None = None
        self._broker: Broker | None = None
        self._link: NameserverLink | None = None
        self._leads = asyncio.Event()
        self.record = Record(asyncio.get_running_loop().time())
        # Set whenever `record.is_ready` has changed.
        self.readiness_news = asyncio.Event()
        self.opened = asyncio.Event()

    @property
    def replica(self) -> Replica | None:
        """Of the present life; None between two."""
        return self._replica

    @property
    def log_name(self) -> str:
        return self._settings.name

    def name_of(self, replica_id: str) -> str:
        """Name of another replica's process; its id while no nameserver has told."""
        return self._link.names.get(replica_id, replica_id) if self._link else replica_id

    @property
    def broker(self) -> Broker | None:
        """What serves clients; None while another replica leads."""
        return self._broker

    @property
    def store(self) -> Store | None:
        """The open one; None between two lives."""
        return self._log.store if self._log is not None else None

    @property
    def disk_usage(self) -> "DiskUsage":
        """The store's partition. Raises OSError."""
        return self._disk.usage(self._settings.store_path)

    def facts(self) -> WireFacts:
        """What nameservers are told with each registration."""
        facts = self._file.read() or ReplicaFacts()
        return WireFacts(
            empty=self._log is None or self._log.end == self._log.min_offset,
            copies=self._settings.copies,
            promised=facts.promised,
            version=facts.version.number,
            history=facts.version.history,
        )

    async def run(self) -> Remake | None:
        """Live, one life after the other, until the process is to stop.

        The process is stopped, with the reason, when the store cannot be used.

        Returns:
            Why the copy has to be made anew, with the store closed; None otherwise.

        Raises:
            Fatal: a rule was broken.
        """
        last: LastAction | None
        while not self._stop.requested:
            try:
                last = await self._live()
            except* (StoreError, OSError) as failures:
                reason = f"the store cannot be used: {failures.exceptions[0]}"
                # A sync that failed has said so already.
                self._stop.fail(Fatal(ExitStatus.STORE, reason))
            else:
                if isinstance(last, Remake):
                    return last
        return None

    async def hand_over(self) -> None:
        """Have another replica lead, if this one does; the process is about to end."""
        if self._replica is not None and self._broker is not None:
            await self._replica.hand_over(HAND_OVER_SECONDS)

    def _not_leader(self) -> NotLeader:
        replica = self._settings.replica or self._settings.name
        return NotLeader(replica=replica, log=self._settings.name)

    def close(self) -> None:
        """End the present life; `run` returns once the process is to stop."""
        if self._replica is not None:
            self._replica.close()

    # What the replica tells.

    def established(self, epoch: int) -> None:
        del epoch
        self._leads.set()

    def readiness_changed(self) -> None:
        self.readiness_news.set()

    def committed(self, end: int) -> None:
        if self._broker is not None:
            self._broker.appends.confirmed(end)
            if self._replica is not None:
                self._broker.store.retain_from = self._replica.retention_end

    def may_delete(self, min_offset: int) -> None:
        # Not deleted here: that this machine's clock says so too is the store's to find.
        if self._log is not None:
            self._log.store.retain_from = min_offset

    # A life.

    async def _live(self) -> LastAction | None:
        self._leads.clear()
        self._service.refuse(self._not_leader())
        opened = StoreLog(
            self._replica_id,
            self._open_store,
            self._clock,
            advanced=self._advanced,
            failed=self._failed,
        )
        try:
            self._log = opened
            return await self._follow_and_lead(opened)
        finally:
            self._replication.refuse(self._settings.name)
            self._log = self._replica = None
            with suppress(StoreError):
                opened.close()

    async def _follow_and_lead(self, opened: StoreLog) -> LastAction | None:
        name = self._settings.name

        def saw(state: LogState) -> None:
            if state.leader == self._replica_id:
                self._service.expect()
            elif self._broker is None:
                self._service.refuse(self._not_leader())
            replica.saw(state)

        link = self._link = NameserverLink(self._nameservers, BROKER, name, self._replica_id, saw)
        replica = self._replica = Replica(
            log_name=name,
            cluster=self._settings.cluster,
            replica_id=self._replica_id,
            replicated=opened,
            file=self._file,
            facts=self._file.read() or ReplicaFacts(),
            register=link,
            channels=self._channels,
            address_of=lambda who: link.addresses.get(who),
            owner=self,
            record=self.record,
        )
        self._replication.serve(name, replica)
        self.opened.set()
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(link.run(self._stop), name="log at the nameservers"),
                tasks.create_task(self._lead(opened, replica), name="leading"),
                tasks.create_task(self._tick(opened), name="store-ticks of a follower"),
            ]
            last = await replica.run()
            for task in others:
                task.cancel()
        if last is not None and not isinstance(last, Reopen | Remake):
            raise Fatal(ExitStatus.STORE, f"the copy of log {name} cannot go on: {last}")
        return last

    async def _lead(self, opened: StoreLog, replica: Replica) -> None:
        """Be a broker from the moment in which this replica leads until its life is over."""
        await self._leads.wait()

        def may_append() -> None:
            if not replica.appends_allowed:
                needed = replica.state.config.quorum if replica.state is not None else 0
                raise NotEnoughReplicas(connected="too few", log=self._settings.name, needed=needed)

        broker = await Broker.over(
            opened.store,
            prepared(self._settings, self._disk),
            self._settings,
            self._nameservers,
            self._clock,
            self._disk,
            may_append=may_append,
        )
        self._broker = broker
        try:
            async with self._running(broker, self._stop), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(broker, replica), name="sending to followers")
                self._service.serve(broker)
                await asyncio.Event().wait()
        finally:
            self._broker = None
            self._service.refuse(self._not_leader())
            broker.appends.failed(self._not_leader())
            broker.release_waiting()
            # No snapshot is written: it may know of what the next leader cuts.
            broker.compaction.close()
            if broker.key_index is not None:
                broker.key_index.close()

    async def _tick(self, opened: StoreLog) -> None:
        """Let the store do what is due, until a broker is made of it."""
        while not self._leads.is_set():
            opened.store.tick(self._clock.now_ms())
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._leads.wait()

    async def _send(self, broker: Broker, replica: Replica) -> None:
        while True:
            # Nothing awaits between two waits, so nothing that is appended is missed.
            await broker.store_changed.wait()
            replica.written()

    def _open_store(
        self, synced: Callable[[int], None], failed: Callable[[OSError], None]
    ) -> Store:
        return Store.open(
            self._store_settings,
            disk=self._disk,
            clock=self._clock,
            on_synced=synced,
            on_failed=failed,
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
        self.close()
