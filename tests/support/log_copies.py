"""Copies of a log in one process: real streams between them, each through its own gate."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from grpc import aio

from rockoon_core.channels import Channels
from rockoon_core.disk import Disk
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_replica.actions import Remake, Reopen
from rockoon_replica.log_state import LogState
from rockoon_replica.member import Role
from rockoon_replica.nameserver_link import NameserverLink
from rockoon_replica.replica import Replica
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from rockoon_replica.service import ReplicationService, add_to_server
from rockoon_runtime.process import Stop
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.eventually import eventually
from support.file_log import FileLog
from support.log_register import FakeRegister
from support.log_watch import register
from support.nameserver import Nameserver
from support.tcp_gate import TcpGate

LOG = "broker-a"
# Long enough for a busy machine: a healthy leader is never silent for this time.
SILENT_SECONDS = 1.0


class Copy:
    """One replica with its server, log and file; it runs from each `start` to the next `stop`.

    Attributes:
        log: open while the replica runs.
        committed, established, allowed, readiness: last values of the calls to its owner.
        ends: reasons for which its runs ended.
    """

    def __init__(self, copies: "Copies", name: str, directory: Path) -> None:
        self.copies = copies
        self.name = name
        self.directory = directory
        self.disk = Disk()
        self.target = ""
        self.log: Any
        self.replica: Replica
        self.committed = 0
        self.established: list[int] = []
        self.readiness: list[bool] = []
        self.ends: list[object] = []
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    @property
    def is_leading(self) -> bool:
        return self.is_up and self.replica.role is Role.LEADING and self.replica.appends_allowed

    @property
    def is_up(self) -> bool:
        return self._task is not None and self._up.is_set()

    def saw(self, state: LogState) -> None:
        self.replica.state_received(state)

    async def start(self) -> None:
        self._ended.clear()
        self._task = self.copies.tasks.create_task(self._live(), name=self.name)
        await self._up.wait()

    async def stop(self) -> None:
        """Stop as a killed process does: connections break without a message."""
        assert self._task is not None
        task, self._task = self._task, None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})

    async def send(self, *payloads: bytes) -> int:
        """Append as a broker does for producers; return when all payloads are committed."""
        for payload in payloads:
            self.log.append(payload)
        end = self.log.end
        self.replica.written()
        await self.replica.wait_committed(end)
        return end

    async def _live(self) -> None:
        service = ReplicationService()

        def register(server: aio.Server) -> None:
            add_to_server(service, server)

        channels = Channels()
        listen = self.target or "127.0.0.1:0"
        server = GrpcServer("replica", self.copies.cluster, listen, register, [], drain=AT_ONCE)
        try:
            async with server:
                self.target = server.address
                await self.copies.moved(self)
                while True:
                    await self._one_life(service, channels)
        finally:
            self._up.clear()
            await channels.close()

    async def _one_life(self, service: ReplicationService, channels: Channels) -> None:
        self.log = self.copies.open_log(self.directory, self.disk)
        self.committed = 0
        try:
            link, following = None, None
            if self.copies.nameservers is not None:
                # The replica is created with it.
                link = NameserverLink(
                    self.copies.nameservers,
                    channels,
                    BROKER,
                    LOG,
                    self.name,
                    lambda state: self.saw(state),
                )
                following = self.copies.tasks.create_task(link.run(Stop()), name="nameservers")
            file = ReplicaFile(self.directory, Disk())
            self.replica = Replica(
                log_name=LOG,
                cluster=self.copies.cluster,
                replica_id=self.name,
                replicated=self.log,
                file=file,
                facts=file.read() or ReplicaFacts(),
                register=link or self.copies.register.of(self.name),
                channels=channels,
                address_of=lambda to: self.copies.address(self.name, to),
                owner=_Told(self),
                silent_seconds=self.copies.silent_seconds,
                scrub_bytes_per_second=self.copies.scrub_bytes_per_second,
            )
            service.serve(LOG, self.replica)
            if link is None:
                self.copies.register.watch(self.name, self.replica.state_received)
            self._up.set()
            last = await self.replica.run()
            self.ends.append(last)
            if isinstance(last, Remake):
                (self.directory / "log").rename(self.directory / "aside")
            else:
                assert isinstance(last, Reopen), last
        finally:
            if following is not None:
                following.cancel()
            service.refuse(LOG)
            self.log.close()


class _Told:
    """The owner of a replica: records its calls in the copy."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def established(self, epoch: int) -> None:
        self._copy.established.append(epoch)

    def readiness_changed(self) -> None:
        self._copy.readiness.append(self._copy.replica.is_ready)

    def committed(self, end: int) -> None:
        assert end >= self._copy.committed
        self._copy.committed = end

    def may_delete(self, min_offset: int) -> None:
        pass


class Copies:
    """All replicas of one log.

    Attributes:
        register: the nameservers.
        silent_seconds: time for which a leader may be silent.
        scrub_bytes_per_second: see `Replica`.
    """

    def __init__(
        self,
        directory: Path,
        names: tuple[str, ...],
        tasks: asyncio.TaskGroup,
        open_log: Callable[[Path, Disk], Any],
    ) -> None:
        self.tasks = tasks
        self.open_log = open_log
        self.register = FakeRegister(LOG, names)
        # The real nameservers, instead of the fake.
        self.nameserver: Nameserver | None = None
        self.nameservers: Nameservers | None = None
        self.cluster = "rockoon"
        self.silent_seconds = SILENT_SECONDS
        self.scrub_bytes_per_second = 0
        self._gates: dict[tuple[str, str], TcpGate] = {}
        self.all: dict[str, Copy] = {}
        for name in names:
            (directory / name).mkdir()
            self.all[name] = Copy(self, name, directory / name)

    def address(self, follower: str, leader: str) -> str:
        """Return the address under which one copy connects to another."""
        gate = self._gates.get((follower, leader))
        return self.all[leader].target if gate is None else gate.address

    def gate(self, follower: str, leader: str) -> TcpGate:
        return self._gates[follower, leader]

    async def moved(self, copy: Copy) -> None:
        if self.nameserver is not None:
            await register(self.nameserver, copy.name, address=copy.target)
        for (_, to), gate in self._gates.items():
            if to == copy.name:
                gate.target = copy.target

    async def open(self) -> None:
        for follower, leader in itertools.permutations(self.all, 2):
            gate = TcpGate("127.0.0.1:1")
            await gate.open()
            self._gates[follower, leader] = gate

    async def close(self) -> None:
        for copy in self.all.values():
            if copy._task is not None:
                await copy.stop()
        for gate in self._gates.values():
            await gate.cut()

    async def start(self) -> Copy:
        """Start all replicas; return the leader."""
        for copy in self.all.values():
            await copy.start()
        return await self.leader()

    async def leader(self, *, other_than: Copy | None = None) -> Copy:
        """Return the leader once there is one that accepts appends."""
        found = [copy for copy in self.all.values() if copy is not other_than]
        return (await eventually(lambda: [copy for copy in found if copy.is_leading]))[0]

    def followers(self, leader: Copy) -> list[Copy]:
        return [copy for copy in self.all.values() if copy is not leader]

    async def equal(self, end: int) -> None:
        """Wait until the logs of all running copies are equal, committed, and reach this end."""

        def equal() -> bool:
            logs = [copy.log for copy in self.all.values() if copy.is_up]
            return (
                all(log.committed_end == log.end == logs[0].end >= end for log in logs)
                and len({log.content() for log in logs}) == 1
            )

        await eventually(equal)

    def freeze(self, copy: Copy, *, frozen: bool = True) -> None:
        """Block all bytes from and to a copy; connections stay open."""
        for (follower, leader), gate in self._gates.items():
            if copy.name in (follower, leader):
                gate.freeze() if frozen else gate.thaw()


@asynccontextmanager
async def copies(
    directory: Path,
    names: tuple[str, ...] = ("a", "b", "c"),
    *,
    gated: bool = True,
    open_log: Callable[[Path, Disk], Any] = lambda path, disk: FileLog(path / "log", disk),
) -> AsyncIterator[Copies]:
    """Create replicas, which the test starts.

    Args:
        gated: each pair of copies connects through a gate; otherwise directly, and a process that
            has ended refuses connections.
        open_log: opens the log in a directory; the log has the methods of FileLog.
    """
    async with asyncio.TaskGroup() as tasks:
        made = Copies(directory, names, tasks, open_log)
        if gated:
            await made.open()
        try:
            yield made
        finally:
            await made.close()
