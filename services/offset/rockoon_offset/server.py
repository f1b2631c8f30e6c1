"""The service's life: store, routes, registration, the gRPC server; put away in reverse order."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from grpc import aio

from rockoon_node.nameservers import Nameservers
from rockoon_node.registration import Registration
from rockoon_offset.brokers import Brokers
from rockoon_offset.commits import Commits, QueueEnds
from rockoon_offset.disk import Disk
from rockoon_offset.export_files import ExportFiles
from rockoon_offset.group_watch import GroupWatch
from rockoon_offset.groups import Groups
from rockoon_offset.handover import Handovers
from rockoon_offset.lag import Lags
from rockoon_offset.reset_plans import ResetPlans
from rockoon_offset.resolver import Resolver
from rockoon_offset.route_table import Change
from rockoon_offset.routes import Routes
from rockoon_offset.service import OffsetService
from rockoon_offset.settings import OffsetSettings
from rockoon_offset.start_position import NewQueueRule
from rockoon_offset.store import Store
from rockoon_offset.subscriptions import Subscriptions
from rockoon_offset.transfer import Importer
from rockoon_proto.errors import StoreCorrupt, StoreFailed, StoreLocked
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE, Node
from rockoon_proto.v1.offset_pb2_grpc import add_OffsetServiceServicer_to_server
from rockoon_runtime.process import ExitStatus, Fatal, Stop, announce
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.wire import GrpcServer

log = logging.getLogger(__name__)

SERVICE_NAMES = ("rockoon.v1.OffsetService",)
VERSION = "0.1.0"
ETCD_CLUSTER_ID = re.compile(r"[0-9a-fA-F]{16}")


def now_ms() -> int:
    """Wall clock, epoch milliseconds: for people. Nothing is decided by it."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What a running service is made of."""

    routes: Routes
    brokers: Brokers
    watch: GroupWatch
    groups: Groups
    export_files: ExportFiles
    servicer: OffsetService


async def serve(
    settings: OffsetSettings,
    stop: Stop,
    *,
    disk: Disk | None = None,
    announce: Callable[[str, str, str], None] = announce,
) -> None:
    """Run the offset service until `stop` is requested.

    It is announced when it has read the routes and is in them. From then on it goes on with what
    it knows while nameservers or brokers are away.

    Args:
        settings: see there.
        stop: ends it.
        disk: the file system of the journal.
        announce: told kind, name and address when it serves.

    Raises:
        SettingsError: no nameserver, a lease that heartbeats cannot keep, or no etcd cluster id.
        ListenError: the address cannot be had.
        Fatal: the store cannot be used, or another offset service has the cluster.
    """
    if settings.heartbeat_seconds >= settings.lease_seconds:
        raise SettingsError("heartbeat_seconds must be less than lease_seconds")
    etcd_cluster_id(settings.accept_etcd_cluster_id)
    nameservers = Nameservers(settings.nameservers, settings.cluster)
    try:
        store = open_store(settings, stop, disk)
        try:
            parts = assembled(settings, store, nameservers)
            try:
                await run_parts(settings, stop, store, nameservers, parts, announce)
            finally:
                await parts.brokers.close()
        finally:
            close_store(store, stop)
    finally:
        await nameservers.close()


def etcd_cluster_id(written: str) -> int:
    """The number that a setting names in hexadecimal; 0 for none. Raises SettingsError."""
    if not written:
        return 0
    if not ETCD_CLUSTER_ID.fullmatch(written):
        raise SettingsError(f"accept_etcd_cluster_id: {written!r} is not 16 hexadecimal digits")
    return int(written, 16)


def open_store(settings: OffsetSettings, stop: Stop, disk: Disk | None) -> Store:
    def disk_failed(failure: StoreFailed) -> None:
        stop.fail(Fatal(ExitStatus.DISK_FAILED, str(failure)))

    try:
        return Store(
            settings.store_path,
            disk_failed,
            disk=disk,
            journal_bytes_max=settings.journal_bytes_max,
        )
    except (StoreCorrupt, StoreLocked) as failure:
        raise Fatal(ExitStatus.STORE, str(failure)) from failure
    except OSError as failure:
        raise Fatal(ExitStatus.STORE, f"cannot open {settings.store_path}: {failure}") from failure


def close_store(store: Store, stop: Stop) -> None:
    try:
        store.close()
    except StoreFailed as failure:
        stop.fail(Fatal(ExitStatus.DISK_FAILED, str(failure)))


def assembled(settings: OffsetSettings, store: Store, nameservers: Nameservers) -> Parts:
    def routes_changed(change: Change) -> None:
        groups.routes_changed(change)

    routes = Routes(
        nameservers, routes_changed, store, etcd_cluster_id(settings.accept_etcd_cluster_id)
    )
    table = routes.table
    brokers = Brokers(table, settings.cluster, settings.broker_timeout_seconds)
    watch = GroupWatch(settings.watchers_max)
    ends = QueueEnds(brokers, time.monotonic)
    groups = Groups(
        store,
        table,
        ends,
        watch,
        Handovers(round(settings.handover_seconds_max * 1e9)),
        settings.lease_seconds,
        time.monotonic_ns,
        now_ms,
        settings.broadcast_member_days_max,
    )
    subscriptions = Subscriptions(table, nameservers)
    resolver = Resolver(
        store,
        routes,
        subscriptions,
        groups,
        brokers,
        NewQueueRule[settings.new_queue_rule.upper()],
        settings.route_wait_seconds,
        now_ms,
    )
    servicer = OffsetService(
        settings,
        store,
        groups,
        watch,
        resolver,
        Commits(store, table, ends, groups.release, now_ms),
        ResetPlans(store, table, brokers, watch, settings.plan_seconds, now_ms, time.monotonic),
        Lags(
            store,
            table,
            brokers,
            groups.membership,
            time.monotonic_ns,
            settings.progress_entries_max,
        ),
        Importer(store, table, subscriptions, brokers, watch, now_ms),
        routes,
        now_ms,
    )
    export_files = ExportFiles(store, settings.export_seconds, now_ms)
    return Parts(routes, brokers, watch, groups, export_files, servicer)


async def run_parts(
    settings: OffsetSettings,
    stop: Stop,
    store: Store,
    nameservers: Nameservers,
    parts: Parts,
    announce: Callable[[str, str, str], None],
) -> None:
    def register(server: aio.Server) -> None:
        add_OffsetServiceServicer_to_server(parts.servicer, server)

    server = GrpcServer("offset", settings.cluster, settings.listen, register, SERVICE_NAMES)
    async with asyncio.TaskGroup() as tasks:
        loops = [
            tasks.create_task(parts.routes.run(stop), name="follow the routes"),
            tasks.create_task(parts.groups.run(), name="expire members"),
            tasks.create_task(parts.export_files.run(), name="export files"),
        ]
        async with server:
            await server.set_serving(False)
            registration = Registration(
                nameservers,
                Node(
                    kind=OFFSET_SERVICE,
                    name=settings.name,
                    address=settings.advertise or server.address,
                    store_id=store.store_id,
                    started_at_ms=now_ms(),
                    version=VERSION,
                ),
            )
            if await done_or_stopped(parts.routes.loaded, stop):
                loops.append(tasks.create_task(registration.run(stop), name="stay registered"))
                if await done_or_stopped(registration.in_routes, stop):
                    parts.groups.open()
                    await server.set_serving(True)
                    announce("offset", settings.name, settings.advertise or server.address)
                    await stop.wait()
            for loop in loops:
                loop.cancel()
            await registration.leave()
            # Streams would otherwise keep the server from draining.
            parts.watch.close()
    if stop.fatal is None:
        await parts.export_files.export()


async def done_or_stopped(event: asyncio.Event, stop: Stop) -> bool:
    """Wait for an event; False when the wish to stop came first."""
    async with asyncio.TaskGroup() as tasks:
        stopping = tasks.create_task(stop.wait(), name="stop while starting")
        waiting = tasks.create_task(event.wait(), name="start")
        await asyncio.wait({stopping, waiting}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        waiting.cancel()
    return event.is_set() and not stop.requested
