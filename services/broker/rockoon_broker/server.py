"""The broker process: start, serving, and shutdown."""

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpc import aio

from rockoon_broker.broker import CONFIG_DIRECTORY, STORE_ID_FILE, Broker
from rockoon_broker.clock import Clock, SystemClock
from rockoon_broker.metrics import TABLE, BrokerMetrics
from rockoon_broker.replication.serving import BrokerCopy
from rockoon_broker.rpc.access_rules import RULES
from rockoon_broker.rpc.service import (
    SERVICE_NAME,
    BrokerService,
    add_to_server,
    not_ready,
)
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import StorageError
from rockoon_core.disk import LOCK_FILE, Disk, StartInterrupted
from rockoon_core.errors import StoreCorrupt
from rockoon_core.protocol import AGENT_METADATA_KEY
from rockoon_node.frontend import NodeFrontend
from rockoon_node.key_follower import KeyFollower
from rockoon_node.nameservers import Nameservers
from rockoon_node.registration import NodeLease, Registration
from rockoon_node.store_directory import (
    keep_private,
    read_or_make_store_id,
    refuse_newer_format,
    store_place,
)
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_replica.copy_process import CopyProcess
from rockoon_replica.going_alone import leave_copies
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.service import RULES as REPLICATION_RULES
from rockoon_replica.service import ReplicationService
from rockoon_replica.service import add_to_server as add_replication
from rockoon_replica.settings import LOG_CHECKS, replica_identities
from rockoon_rpc.server_call import no_objection
from rockoon_runtime.process import (
    ExitStatus,
    Fatal,
    Program,
    Stop,
    announce,
    end_when_descriptor_lost,
)
from rockoon_runtime.settings import SettingsError, refused_by
from rockoon_runtime.settings_checks import addresses
from rockoon_runtime.telemetry.telemetry import Telemetry
from rockoon_runtime.wire import QUIET_SECONDS, GrpcServer

log = logging.getLogger(__name__)

CALLS_BESIDE_PULLS_MAX = 10_000
# How long a start waits for the nameservers before it serves without routes.
FIRST_ROUTES_SECONDS_MAX = 3.0
ALL_RULES = {**RULES, **REPLICATION_RULES}


async def serve(
    settings: BrokerSettings,
    stop: Stop,
    *,
    clock: Clock | None = None,
    disk: Disk | None = None,
    announce: Callable[[str, str, str], None] = announce,
    first_routes_seconds_max: float = FIRST_ROUTES_SECONDS_MAX,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Run a broker until `stop` is requested and the store is closed.

    Shutdown: not ready, leave the routes, answer waiting pulls, finish calls, close the store.

    Args:
        stop: stop request; also set here if a sync fails or the broker's name is in use.
        clock, disk: clocks and file layer; the real ones by default.
        announce: called with "broker", its name and its address when it serves.
        first_routes_seconds_max: maximum duration of each wait for the nameservers at the start.
        quiet_seconds: time without calls after which calls are refused at the end.

    Raises:
        Fatal: the store was refused.
        SettingsError, ListenError: a setting cannot be used.
    """
    config = settings.store_path / CONFIG_DIRECTORY
    refuse_newer_format(config)
    clock, disk = clock or SystemClock(), disk or Disk()
    end_when_descriptor_lost(disk, stop)
    frontend = NodeFrontend("broker", settings, ALL_RULES, NodeLease("the broker"))
    broker: Broker | None = None
    metrics = BrokerMetrics(clock)
    try:
        async with (
            frontend.live_settings.following(config, disk, stop, first_routes_seconds_max),
            frontend.telemetry(TABLE, metrics.measure, settings.process_name) as telemetry,
            asyncio.TaskGroup() as tasks,
        ):
            service = BrokerService(tasks, clock, frontend.calls)
            if telemetry.tracer is not None:
                service.trace(telemetry.tracer)
            replication = replication_of(settings)
            async with make_server(settings, frontend, service, replication, telemetry) as server:
                address = frontend.address(server)
                if settings.copies > 1:
                    parts = CopyParts(
                        settings, frontend, service, replication, server, stop, metrics
                    )
                    await serve_copy(parts, address, clock, disk, announce)
                    return
                broker = await open_to_follow(frontend, address, stop, clock, disk)
                if broker is None:
                    return
                metrics.follow(broker, service)
                registration = registration_of(broker, frontend, address, disk, clock.now_ms())
                doors = BrokerDoors(broker, service, server, registration, tasks, stop)
                keys = frontend.key_follower(address)
                loops = await doors.open(keys, first_routes_seconds_max)
                if not stop.requested:
                    announce("broker", settings.name, address)
                log.info("stopping: %s", await stop.wait())
                await doors.close(quiet_seconds)
            for task in loops:
                task.cancel()
            await broker.pending.finish()
    finally:
        await frontend.nameservers.close()
        if broker is not None:
            broker.topics.write_revision()
            close_store(broker, stop)


@dataclass(frozen=True, slots=True)
class BrokerDoors:
    """Endpoints of an open broker for clients and nameservers: opened last, closed first."""

    broker: Broker
    service: BrokerService
    server: GrpcServer
    registration: Registration
    tasks: asyncio.TaskGroup
    stop: Stop

    async def open(
        self, keys: KeyFollower | None, first_routes_seconds_max: float
    ) -> list[asyncio.Task[None]]:
        """Get the routes, answer calls, register; return the loops, to be cancelled at the end.

        Args:
            keys: keeps access keys up to date; None when access is off.
            first_routes_seconds_max: see `serve`.
        """
        broker, stop, tasks = self.broker, self.stop, self.tasks
        all_loops = itertools.chain(loops_of(broker, stop), followers_of(broker))
        loops = [tasks.create_task(loop, name=name) for name, loop in all_loops]
        if keys is not None:
            loops.append(tasks.create_task(keys.run(stop), name="access-keys"))
            await at_most(first_routes_seconds_max, keys.attempted, stop)
        await at_most(first_routes_seconds_max, broker.topics.routes.attempted, stop)
        # The nameservers may belong to another cluster.
        if stop.fatal is None:
            # Registered last: clients that find the broker in the routes must be answered.
            self.service.serve(broker)
            await self.server.set_serving(True)
            loops.append(tasks.create_task(self._stay_registered(), name="registration"))
            if broker.topics.routes.accepted.is_set():
                await at_most(first_routes_seconds_max, self.registration.attempted, stop)
        return loops

    async def _stay_registered(self) -> None:
        # A nameserver that has just started may not know its cluster and would accept any store.
        await self.broker.topics.routes.accepted.wait()
        await self.registration.run(self.stop)

    async def close(self, quiet_seconds: float) -> None:
        """Leave the routes, serve clients that still have old routes, then refuse calls."""
        self.server.start_drain()
        # From now on producers choose other brokers; consumers wait for this one to return.
        await self.registration.leave()
        self.broker.release_waiting()
        if self.stop.fatal is None:
            await self.server.wait_quiet(quiet_seconds)
        self.service.refuse(not_ready("it is stopping"))
        self.broker.pending.transactions.asking.end()
        self.broker.compaction.end()


def make_server(
    settings: BrokerSettings,
    frontend: NodeFrontend,
    service: BrokerService,
    replication: ReplicationService,
    telemetry: Telemetry,
) -> GrpcServer:
    def register(server: aio.Server) -> None:
        add_to_server(service, server)
        if settings.copies > 1:
            add_replication(replication, server)

    server = frontend.server(
        register,
        [SERVICE_NAME],
        tracer=telemetry.tracer,
        # Waiting pulls must not block appends.
        calls_max=settings.waiting_pulls_max + CALLS_BESIDE_PULLS_MAX,
        kept=[AGENT_METADATA_KEY],
    )
    service.on_batch(server.record_call)
    return server


def loops_of(broker: Broker, stop: Stop) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the tasks of a leading broker, by name; they run until cancelled."""
    yield "store-ticks", broker.ticks.run()
    yield "route-follower", broker.topics.routes.run(stop)
    yield "pending-messages", broker.pending.run()
    yield "unread-files", broker.unread.run()


def followers_of(broker: Broker) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the tasks that follow the log at all times, by name; they run until cancelled."""
    changed = broker.store_changed
    yield "producer-sequences", broker.sequences.run(changed)
    yield "pending-snapshots", broker.pending.write_snapshots(changed)
    yield "compaction", broker.compaction.run()
    if broker.key_index is not None:
        yield "key-index", broker.key_index.run()


@asynccontextmanager
async def running(broker: Broker, stop: Stop) -> AsyncIterator[None]:
    """Run the tasks of a leading broker."""
    async with asyncio.TaskGroup() as tasks:
        loops = [tasks.create_task(loop, name=name) for name, loop in loops_of(broker, stop)]
        try:
            yield
        finally:
            for task in loops:
                task.cancel()
            # Otherwise producers would wait here for checks instead of registering with the next
            # leader.
            broker.pending.transactions.asking.end()
            broker.compaction.end()
            await broker.pending.finish()


def replication_of(settings: BrokerSettings) -> ReplicationService:
    """Return the replication service for followers. Raises SettingsError."""
    if settings.copies > 1 and settings.flush != "sync":
        # With flush = async, acknowledged records may be lost on all copies.
        raise SettingsError("copies > 1 needs flush = sync")
    return ReplicationService(replica_identities(settings))


class CopyParts(NamedTuple):
    """Parts of a broker of a log with copies."""

    settings: BrokerSettings
    frontend: NodeFrontend
    service: BrokerService
    replication: ReplicationService
    server: GrpcServer
    stop: Stop
    metrics: BrokerMetrics


async def serve_copy(
    parts: CopyParts,
    address: str,
    clock: Clock,
    disk: Disk,
    announce: Callable[[str, str, str], None],
) -> None:
    """Run a replica of the broker's log until `stop` is requested; see `serve`."""
    settings, stop, live = parts.settings, parts.stop, parts.frontend.live
    store_host = await resolve_store_host(settings.store_host or address)
    end_following = no_objection

    def around(store_id: str) -> BrokerCopy:
        nonlocal end_following
        nameservers, current = parts.frontend.nameservers, live.current
        copy = BrokerCopy(
            current,
            store_host,
            store_id,
            nameservers,
            parts.service,
            stop,
            clock,
            disk,
            running,
            followers_of,
        )
        end_following()
        end_following = live.follow(copy.use_settings, current)
        return copy

    await CopyProcess(
        kind=BROKER,
        service="broker",
        settings=settings,
        frontend=parts.frontend,
        server=parts.server,
        replication=parts.replication,
        address=address,
        stop=stop,
        disk=disk,
        now_ms=clock.now_ms,
        config=settings.store_path / CONFIG_DIRECTORY,
        id_file=STORE_ID_FILE,
        moved_last=("commitlog", CONFIG_DIRECTORY),
        announce=announce,
        follow=lambda copy: parts.metrics.follow_copy(copy, parts.service),
    ).run(around)


@asynccontextmanager
async def interrupting(disk: Disk, stop: Stop) -> AsyncIterator[None]:
    """Interrupt disk reads when a stop is requested."""

    async def interrupt() -> None:
        await stop.wait()
        disk.interrupt()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(interrupt(), name="stop while starting")
        try:
            yield
        finally:
            # The stop may have been requested when all was read.
            waiting.cancel()
            disk.go_on()


async def open_to_follow(
    frontend: NodeFrontend, address: str, stop: Stop, clock: Clock, disk: Disk
) -> Broker | None:
    """Open the broker with the live settings, which it follows from then on; see `open_broker`."""
    current = frontend.live.current
    async with interrupting(disk, stop):
        broker = await open_broker(current, address, frontend.nameservers, stop, clock, disk)
    if broker is not None:
        frontend.live.follow(broker.use_settings, current)
    return broker


async def open_broker(
    settings: BrokerSettings,
    address: str,
    nameservers: Nameservers,
    stop: Stop,
    clock: Clock,
    disk: Disk,
) -> Broker | None:
    """Open the broker; None if the start was interrupted, Fatal if the store is refused."""
    store_host = await resolve_store_host(settings.store_host or address)
    id_file = settings.store_path / CONFIG_DIRECTORY / STORE_ID_FILE
    facts = await leave_copies(
        nameservers, BROKER, settings.name, settings.store_path, id_file, disk, stop
    )
    if stop.requested:
        return None

    def failed(reason: str) -> None:
        stop.fail(Fatal(ExitStatus.DISK_FAILED, reason))

    try:
        broker = await Broker.open(
            settings, store_host, nameservers, clock=clock, disk=disk, on_failed=failed
        )
    except (StorageError, StoreCorrupt, OSError) as failure:
        raise Fatal(ExitStatus.STORE, f"the store cannot be opened: {failure}") from failure
    except StartInterrupted:
        log.info("stopped before the store was recovered: the next start recovers it")
        return None
    open_own_epoch(broker, facts, clock.now_ms())
    with contextlib.suppress(OSError):
        keep_private(settings.store_path)
    recovery = broker.store.recovery
    log.info(
        "store %s open after %.2f s: %d records read from offset %d on (%s), %d topics",
        settings.store_path,
        broker.recovery_seconds,
        recovery.records_scanned,
        recovery.boundary,
        recovery.reason or "stopped cleanly",
        len(broker.topics.table.served),
    )
    if recovery.lost_files:
        log.warning(
            "the log ends at offset %d; %d bytes after it with %d whole records, which were "
            "not known to be durable, are kept in %s",
            recovery.log_end,
            recovery.bytes_cleared,
            recovery.records_in_lost,
            ", ".join(map(str, recovery.lost_files)),
        )
    return broker


def open_own_epoch(broker: Broker, facts: ReplicaFacts | None, now_ms: int) -> None:
    """Append the record of the epoch from which the log has only one copy.

    A former copy may have other bytes of the epoch before. If it returns, it is cut to the
    common part.

    Raises:
        Fatal: the record cannot be written.

    """
    if facts is None or facts.config is None:
        return
    boundaries = broker.store.boundaries()
    if not boundaries or boundaries[-1].epoch < facts.led:
        (itself,) = facts.config.in_sync
        try:
            broker.store.open_epoch(facts.led, itself, now_ms)
        except StorageError as failure:
            raise Fatal(ExitStatus.STORE, f"cannot open an epoch: {failure}") from failure


async def resolve_store_host(address: str) -> tuple[str, int]:
    """Resolve "host:port" to IPv4 address and port. Raises SettingsError: the host has no IPv4
    address, which records need."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, int(port), family=socket.AF_INET)
        return str(ipaddress.IPv4Address(found[0][4][0])), int(port)
    except (OSError, ValueError) as failure:
        raise SettingsError(
            f"{address} has no IPv4 address to write into records: set store_host"
        ) from failure


def registration_of(
    broker: Broker, frontend: NodeFrontend, address: str, disk: Disk, started_at_ms: int
) -> Registration:
    """Return the broker's registration; Fatal if the store's identity cannot be read."""
    store_path = broker.settings.store_path
    config = store_path / CONFIG_DIRECTORY
    try:
        for changed in disk.make_directory(config):
            disk.sync_directory(changed)
        store_id = read_or_make_store_id(config / STORE_ID_FILE, disk.replace_file)
        place = store_place(store_path / LOCK_FILE)
    except (StoreCorrupt, OSError) as failure:
        raise Fatal(ExitStatus.STORE, f"the store has no identity: {failure}") from failure
    return frontend.registration(
        BROKER, address, store_id, place, started_at_ms, lambda: broker.cluster.known
    )


async def at_most(seconds: float, event: asyncio.Event, stop: Stop) -> None:
    """Wait for an optional event, up to a time limit or until the broker must stop."""
    try:
        async with asyncio.timeout(seconds):
            await stop.or_event(event)
    except TimeoutError:
        log.warning("no nameserver has answered in %.1f s: starting without routes", seconds)


def close_store(broker: Broker, stop: Stop) -> None:
    sequences = broker.sequences.snapshot()
    pending = broker.pending.pending_index.capture()
    broker.compaction.close()
    if broker.key_index is not None:
        broker.key_index.close()
    try:
        broker.store.close()
    except StorageError as failure:
        stop.fail(Fatal(ExitStatus.DISK_FAILED, str(failure)))
    else:
        broker.sequences.write_last(sequences)
        broker.pending.write_last(pending)


PROGRAM = Program(
    "broker",
    "A broker of a Rockoon cluster: it stores messages.",
    BrokerSettings,
    serve,
    (
        *LOG_CHECKS,
        addresses(dialed=("store_host",)),
        refused_by(replication_of),
        # The host is resolved at the start.
        refused_by(lambda settings: settings.for_store(("127.0.0.1", 0))),
    ),
)
