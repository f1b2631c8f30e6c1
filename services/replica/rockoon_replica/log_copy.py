"""One copy of a log in a process: follows while another replica leads, serves while it leads.

The process runs one `Replica` after another. Each run begins when the log is opened. It ends when a
leader loses its leadership, when the replica must be remade or is halted, or when the process
stops. State derived from the log is discarded at the end of a run, because the next leader may cut
appended records.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rockoon_core.errors import NotLeader, RockoonError
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import ReplicaFacts as WireFacts
from rockoon_replica.actions import Halt, Remake
from rockoon_replica.log import ReplicatedLog
from rockoon_replica.log_state import LogState, ProcessRun
from rockoon_replica.nameserver_link import NameserverLink
from rockoon_replica.peers import Peers
from rockoon_replica.replica import LastAction, Replica
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile, read_halt
from rockoon_replica.standing import CopyRecord
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from rockoon_core.channels import Channels
    from rockoon_proto.v1.nameserver_pb2 import NodeKind
    from rockoon_replica.service import ReplicationService
    from rockoon_replica.settings import CopySettings

log = logging.getLogger(__name__)

HAND_OVER_SECONDS = 5.0
# How long a log that cannot be opened waits for a copy that has its damaged record.
REPAIR_SECONDS_MAX = 60.0
REPAIR_RETRY_SECONDS = 0.5


class OpenLog(ReplicatedLog, Protocol):
    """A replicated log that can be closed."""

    def close(self) -> None:
        """Close the log. Raises one of `LogService.log_failures` if that may have failed."""


class LogService(Protocol):
    """Interface of the service that uses a copy of its log. Only `run_service` waits."""

    @property
    def log_failures(self) -> tuple[type[Exception], ...]:
        """Exceptions that mean that the log cannot be used. They end the process."""

    @property
    def crc32(self) -> Callable[[bytes], int]:
        """Function that computes CRC-32 like `zlib.crc32`, for all bytes that copies receive."""

    def open_log(self, lost: Callable[[str], None]) -> OpenLog:
        """Open the service's log.

        Args:
            lost: to be called, with the reason, before records are cut that this copy may have
                acknowledged.

        Raises:
            Exception: one of `log_failures`.
        """

    def damage_of(self, failure: Exception) -> int | None:
        """Position of the damaged committed record that prevented opening the log; None for any
        other failure."""

    def rewrite(self, position: int, data: bytes) -> None:
        """Replace bytes of the closed log by another copy's; durable on return.

        Raises:
            ValueError: the bytes are not intact records from this position on.
            OSError: the disk.
        """

    async def run_service(self, replica: Replica, leads: asyncio.Event) -> None:
        """Run the service on the open log until cancelled: as a follower, and once `leads` is set
        as the leader, which serves clients."""

    def hold_calls(self) -> None:
        """Make clients' calls wait: this copy is about to lead."""

    def refuse(self, refusal: NotLeader) -> None:
        """Refuse clients' calls: another copy leads."""

    def committed(self, end: int) -> None:
        """Process a larger committed end; see `rockoon_replica.replica.Owner`."""

    def may_delete(self, min_offset: int) -> None:
        """Process the leader's deletion of records; see `rockoon_replica.replica.Owner`."""


Service = TypeVar("Service", bound=LogService)


class LogCopy(Generic[Service]):
    """One copy of a service's log in this process: runs its replicas, one after the other.

    Args:
        kind: kind of the service.
        service: uses the log.
        stop: requests the end of the process.

    Attributes:
        service: uses the log.
        replica: replica of the present run; None between two.
        record: state that outlasts runs.
        readiness_news: set when `record.is_ready` has changed.
        opened: set when the log was opened for the first time, or the copy is halted.
        halted: why it does not participate; empty: it does. See `write_halt`.
    """

    def __init__(
        self,
        kind: "NodeKind",
        settings: "CopySettings",
        replica_id: str,
        nameservers: Nameservers,
        channels: "Channels",
        service: Service,
        replication: "ReplicationService",
        file: ReplicaFile,
        stop: Stop,
    ) -> None:
        self.kind = kind
        self.replica_id = replica_id
        self._settings = settings
        self._nameservers = nameservers
        self._channels = channels
        self.service = service
        self._replication = replication
        self._file = file
        self._stop = stop
        self._link: NameserverLink | None = None
        self._run_counted = False
        # For a store without a file, which the first promise writes.
        self._first_facts = ReplicaFacts(run=ProcessRun(1, secrets.randbits(62) + 1))
        self._leads = asyncio.Event()
        self.log: OpenLog | None = None
        self.replica: Replica | None = None
        self.record = CopyRecord(asyncio.get_running_loop().time())
        self.readiness_news = asyncio.Event()
        self.opened = asyncio.Event()
        self.halted = ""

    @property
    def log_name(self) -> str:
        return self._settings.name

    @property
    def replica_name(self) -> str:
        """Name of this process among the replicas of its log."""
        return self._settings.replica or self._settings.name

    def name_of(self, replica_id: str) -> str:
        """Name of another replica's process; its id if no nameserver has sent a name."""
        return self._link.names.get(replica_id, replica_id) if self._link else replica_id

    def facts(self) -> WireFacts:
        """Facts about this replica that each registration reports to the nameservers."""
        facts = self._file.read() or self._first_facts
        return WireFacts(
            empty=not self.halted and (self.log is None or self.log.end == self.log.min_offset),
            copies=self._settings.copies,
            promised=facts.promised,
            version=facts.version.number,
            history=facts.version.history,
            starts=facts.run.starts,
            run=facts.run.number,
            halted=self.halted,
        )

    def not_leader(self) -> NotLeader:
        """Return the error for clients while another replica leads."""
        return NotLeader(replica=self.replica_name, log=self.log_name)

    async def run(self) -> Remake | None:
        """Run replicas, one after the other, until the process stops.

        If the log cannot be used, the process is stopped with the reason.

        Returns:
            Why the copy must be remade, with the log closed; None otherwise.
        """
        last: LastAction | None
        cannot_be_used: tuple[type[Exception], ...] = (*self.service.log_failures, OSError)
        while not self._stop.requested:
            try:
                self.halted = self.halted or read_halt(self._file.directory)
                last = await (self._stay_halted() if self.halted else self._run_once())
                if isinstance(last, Halt):
                    self.halted = last.reason
                    self._file.halt(last.reason)
            except* cannot_be_used as failures:
                reason = f"the store cannot be used: {failures.exceptions[0]}"
                # A failed sync has called this already.
                self._stop.fail(Fatal(ExitStatus.STORE, reason))
            else:
                if isinstance(last, Remake):
                    return last
        return None

    async def _stay_halted(self) -> None:
        """Wait, without participating, until the process is stopped; it then ends with exit status
        STORE.

        If the process ended, its supervisor would restart it in a loop.
        """
        what = (
            f"the copy of log {self.log_name} is halted, and its store is left as it is: "
            f"{self.halted}"
        )
        log.error(
            "%s. Rescue its records, then start it with an empty store (docs/operate/logs.md)", what
        )
        self.service.refuse(self.not_leader())
        self.opened.set()
        # Nameservers may have this process registered as participating.
        self.record.run_raised.set()
        await self._stop.wait()
        self._stop.fail(Fatal(ExitStatus.STORE, what))

    async def hand_over(self) -> None:
        """Hand over to another replica if this one leads; the process is about to end."""
        if self.replica is not None and self._leads.is_set():
            await self.replica.hand_over(HAND_OVER_SECONDS)

    def close(self) -> None:
        """Stop the present replica; `run` returns once the process stops."""
        if self.replica is not None:
            self.replica.close()

    # `Owner`

    def established(self, epoch: int) -> None:
        del epoch
        self._leads.set()

    def readiness_changed(self) -> None:
        self.readiness_news.set()

    def committed(self, end: int) -> None:
        self.service.committed(end)

    def may_delete(self, min_offset: int) -> None:
        self.service.may_delete(min_offset)

    # One run

    async def _run_once(self) -> LastAction | None:
        self._leads.clear()
        self.service.refuse(self.not_leader())
        if not self._run_counted:
            self._file.begin_run(self._first_facts.run.number)
            self._run_counted = True
        opened = await self._open()
        try:
            self.log = opened
            if reason := self._file.doubt_short(opened.end):
                self._log_loss(reason)
            return await self._follow_and_lead(opened)
        finally:
            self._replication.refuse(self.log_name)
            self.log = self.replica = None
            self._file.acknowledged.close()
            with suppress(*self.service.log_failures):
                opened.close()

    async def _open(self) -> OpenLog:
        """Open the log; a damaged record that prevents it is rewritten from another copy first."""
        while True:
            try:
                return self.service.open_log(self._lost)
            except self.service.log_failures as failure:
                position = self.service.damage_of(failure)
                if position is None or self._stop.requested:
                    raise
                log.warning(
                    "log %s cannot be opened: %s; the record at %d is read from another copy",
                    *(self.log_name, failure, position),
                )
                if not await self._rewrite_closed(position):
                    raise

    async def _rewrite_closed(self, position: int) -> bool:
        """Rewrite a record of the closed log from another copy; return whether that was done."""
        link = NameserverLink(
            self._nameservers,
            self._channels,
            self.kind,
            self.log_name,
            self.replica_id,
            lambda _: None,
        )
        peers = Peers(
            self.log_name,
            self._settings.cluster,
            self._channels,
            lambda who: link.addresses.get(who),
            lambda: [who for who in link.addresses if who != self.replica_id],
            self.service.crc32,
        )
        deadline = asyncio.get_running_loop().time() + REPAIR_SECONDS_MAX
        source = ""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(link.run(self._stop), name="log at the nameservers")
            while not (source or self._stop.requested):
                source = await self._rewrite_from(peers, position)
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(REPAIR_RETRY_SECONDS)
            following.cancel()
        if source:
            self.record.checks.repaired_records += 1
            log.warning(
                "log %s: the damaged record at %d is rewritten from copy %s",
                *(self.log_name, position, link.names.get(source, source)),
            )
        return bool(source)

    async def _rewrite_from(self, peers: Peers, position: int) -> str:
        """Rewrite a record from the first copy that has it intact; return its id, or ""."""
        for who in peers.others():
            with suppress(RockoonError, ValueError):
                self.service.rewrite(position, await peers.read_committed(who, position))
                return who
        return ""

    def _lost(self, reason: str) -> None:
        """Mark this copy as unsound until it has copied the lost records."""
        if self._file.doubt():
            self._log_loss(reason)

    def _log_loss(self, reason: str) -> None:
        log.error("log %s: this copy may have lost records: %s", self.log_name, reason)

    async def _follow_and_lead(self, opened: OpenLog) -> LastAction | None:
        name = self.log_name

        def state_received(state: LogState) -> None:
            if state.leader == self.replica_id:
                self.service.hold_calls()
            elif not self._leads.is_set():
                self.service.refuse(self.not_leader())
            replica.state_received(state)

        link = self._link = NameserverLink(
            self._nameservers, self._channels, self.kind, name, self.replica_id, state_received
        )
        replica = self.replica = Replica(
            log_name=name,
            cluster=self._settings.cluster,
            replica_id=self.replica_id,
            replicated=opened,
            file=self._file,
            facts=self._file.read() or self._first_facts,
            register=link,
            channels=self._channels,
            address_of=lambda who: link.addresses.get(who),
            owner=self,
            record=self.record,
            crc32=self.service.crc32,
            scrub_bytes_per_second=self._settings.scrub_bytes_per_second,
            record_seconds=self._settings.record_committed_seconds,
        )
        self._replication.serve(name, replica)
        self.opened.set()
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(link.run(self._stop), name="log at the nameservers"),
                tasks.create_task(
                    self.service.run_service(replica, self._leads), name="service of a copy"
                ),
            ]
            last = await replica.run()
            for task in others:
                task.cancel()
        return last
