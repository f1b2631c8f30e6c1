"""Start and shutdown of the offset service: store, routes, registration, gRPC server."""

import asyncio
from collections.abc import Callable, Iterable

from grpc import aio

from rockoon_core.clock import wall_clock_ms
from rockoon_core.disk import LOCK_FILE, Disk
from rockoon_core.errors import StoreCorrupt, StoreFailed, StoreLocked
from rockoon_node.frontend import NodeFrontend
from rockoon_node.registration import NodeLease
from rockoon_node.store_directory import cluster_id, refuse_newer_format, store_place
from rockoon_offset.access_rules import RULES
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.metrics import TABLE, of_process
from rockoon_offset.parts import SERVICE_NAMES, OffsetParts, assembled
from rockoon_offset.replication.serving import STORE_ID_FILE, serve_copy
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1.in_flight_pb2_grpc import add_InFlightServiceServicer_to_server
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE
from rockoon_proto.v1.offset_pb2_grpc import add_OffsetServiceServicer_to_server
from rockoon_replica.going_alone import leave_copies
from rockoon_replica.service import RULES as REPLICATION_RULES
from rockoon_replica.settings import LOG_CHECKS, replica_identities
from rockoon_runtime.process import (
    ExitStatus,
    Fatal,
    Program,
    Stop,
    announce,
    end_when_descriptor_lost,
)
from rockoon_runtime.settings import SettingsError, refused_by
from rockoon_runtime.telemetry.metrics import Measurement
from rockoon_runtime.wire import QUIET_SECONDS


async def serve(
    settings: OffsetSettings,
    stop: Stop,
    *,
    disk: Disk | None = None,
    announce: Callable[[str, str, str], None] = announce,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Run the offset service until `stop` is requested.

    The service is announced once it has read the routes and is listed in them. From then on it
    continues with the routes that it has while nameservers or brokers are unreachable.

    Args:
        announce: called with kind, name and address once the service serves.
        quiet_seconds: at shutdown, calls are refused after this long without a call.

    Raises:
        SettingsError: no nameserver, a lease not longer than the heartbeat interval, an invalid
            etcd cluster id, or an unusable certificate or cluster secret.
        ListenError: the service cannot listen on the address.
        Fatal: the store cannot be used, or the cluster has another offset service.
    """
    check_values(settings)
    refuse_newer_format(settings.store_path)
    disk = disk or Disk()
    end_when_descriptor_lost(disk, stop)
    rules = {**RULES, **REPLICATION_RULES}
    frontend = NodeFrontend("offset", settings, rules, NodeLease("the offset service"))
    try:
        async with frontend.live_settings.following(settings.store_path, disk, stop):
            if settings.copies > 1:
                await serve_copy(settings, frontend, stop, disk, announce)
            else:
                await serve_alone(settings, frontend, stop, disk, announce, quiet_seconds)
    finally:
        await frontend.nameservers.close()


async def serve_alone(
    settings: OffsetSettings,
    frontend: NodeFrontend,
    stop: Stop,
    disk: Disk,
    announce: Callable[[str, str, str], None],
    quiet_seconds: float,
) -> None:
    """Run the service with the only copy of its journal; see `serve`."""
    root = settings.store_path
    nameservers, id_file = frontend.nameservers, root / STORE_ID_FILE
    facts = await leave_copies(
        nameservers, OFFSET_SERVICE, settings.name, root, id_file, disk, stop
    )
    if stop.requested:
        return
    store = open_store(settings, stop, disk, 0 if facts is None else facts.led)
    try:
        parts = assembled(settings, store, nameservers)
        try:
            await run_parts(settings, frontend, stop, store, parts, announce, quiet_seconds)
        finally:
            await parts.brokers.close()
    finally:
        close_store(store, stop)


def open_store(settings: OffsetSettings, stop: Stop, disk: Disk, epoch: int) -> JournalStore:
    def disk_failed(failure: StoreFailed) -> None:
        stop.fail(Fatal(ExitStatus.DISK_FAILED, str(failure)))

    try:
        return JournalStore(
            settings.store_path,
            disk_failed,
            disk=disk,
            journal_bytes_max=settings.journal_bytes_max,
            epoch=epoch,
        )
    except (StoreCorrupt, StoreLocked) as failure:
        raise Fatal(ExitStatus.STORE, str(failure)) from failure
    except OSError as failure:
        raise Fatal(ExitStatus.STORE, f"cannot open {settings.store_path}: {failure}") from failure


def close_store(store: JournalStore, stop: Stop) -> None:
    try:
        store.close()
    except StoreFailed as failure:
        stop.fail(Fatal(ExitStatus.DISK_FAILED, str(failure)))


def check_values(settings: OffsetSettings) -> None:
    """Raises SettingsError if values that are valid one by one cannot be used together."""
    if settings.heartbeat_seconds >= settings.lease_seconds:
        raise SettingsError(
            f"heartbeat_seconds = {settings.heartbeat_seconds} must be less than "
            f"lease_seconds = {settings.lease_seconds}"
        )
    cluster_id("accept_etcd_cluster_id", settings.accept_etcd_cluster_id)


async def run_parts(
    settings: OffsetSettings,
    frontend: NodeFrontend,
    stop: Stop,
    store: JournalStore,
    parts: OffsetParts,
    announce: Callable[[str, str, str], None],
    quiet_seconds: float,
) -> None:
    def register(server: aio.Server) -> None:
        add_OffsetServiceServicer_to_server(parts.servicer, server)
        add_InFlightServiceServicer_to_server(parts.in_flight, server)

    async def measure() -> Iterable[Measurement]:
        own = of_process(settings.store_path, is_ready=parts.groups.is_open)
        return [*own, *await parts.metrics.measure()]

    async with (
        frontend.telemetry(TABLE, measure) as telemetry,
        asyncio.TaskGroup() as tasks,
    ):
        loops = [
            tasks.create_task(parts.routes.run(stop), name="follow the routes"),
            tasks.create_task(parts.groups.run(), name="expire members"),
            tasks.create_task(parts.export_files.run(), name="export files"),
        ]
        async with frontend.server(register, SERVICE_NAMES, tracer=telemetry.tracer) as server:
            address = frontend.address(server)
            registration = frontend.registration(
                OFFSET_SERVICE,
                address,
                store.store_id,
                store_place(settings.store_path / LOCK_FILE),
                wall_clock_ms(),
                lambda: store.cluster.known,
            )
            if (keys := frontend.key_follower(address)) is not None:
                loops.append(tasks.create_task(keys.run(stop), name="access keys"))
                await stop.or_event(keys.attempted)
            if await stop.or_event(parts.routes.loaded):
                loops.append(tasks.create_task(registration.run(stop), name="stay registered"))
                if await stop.or_event(registration.in_routes):
                    parts.groups.open()
                    await server.set_serving(True)
                    announce("offset", settings.name, address)
                    await stop.wait()
            server.start_drain()
            await registration.leave()
            # Members connect again once the routes list an offset service.
            parts.watch.close()
            if stop.fatal is None:
                await server.wait_quiet(quiet_seconds)
        for loop in loops:
            loop.cancel()
    if stop.fatal is None:
        await parts.export_files.export()


PROGRAM = Program(
    "offset",
    "Rockoon's offset service: progress of consumer groups",
    OffsetSettings,
    serve,
    (*LOG_CHECKS, refused_by(check_values), refused_by(replica_identities)),
)
