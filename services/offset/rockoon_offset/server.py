"""The service's life: store, routes, registration, the gRPC server; put away in reverse order."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from grpc import aio

from rockoon_core.directory_lock import LOCK_FILE
from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt, StoreFailed, StoreLocked
from rockoon_core.start_position import NewQueueRule
from rockoon_node.frontend import NodeFrontend
from rockoon_node.lease import Lease
from rockoon_node.nameservers import Nameservers
from rockoon_node.store_id import store_place
from rockoon_offset.access_rules import RULES
from rockoon_offset.brokers import Brokers
from rockoon_offset.groups import Groups
from rockoon_offset.journal.export_files import ExportFiles
from rockoon_offset.journal.store import Store
from rockoon_offset.members.handover import Handovers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.metrics import TABLE, OffsetMetrics
from rockoon_offset.progress.commits import Commits, QueueEnds
from rockoon_offset.progress.lag import Lags
from rockoon_offset.progress.reset_plans import ResetPlans
from rockoon_offset.progress.transfer import Importer
from rockoon_offset.route_table import Change
from rockoon_offset.routes import Routes
from rockoon_offset.service import OffsetService
from rockoon_offset.settings import OffsetSettings
from rockoon_offset.start.resolver import Resolver
from rockoon_offset.start.subscriptions import Subscriptions
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE
from rockoon_proto.v1.offset_pb2_grpc import add_OffsetServiceServicer_to_server
from rockoon_runtime.access.settings import cluster_credentials
from rockoon_runtime.drain import QUIET_SECONDS
from rockoon_runtime.process import ExitStatus, Fatal, Stop, announce
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.tls import client_tls

log = logging.getLogger(__name__)

SERVICE_NAMES = ("rockoon.v1.OffsetService",)
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
    metrics: OffsetMetrics


async def serve(
    settings: OffsetSettings,
    stop: Stop,
    *,
    disk: Disk | None = None,
    announce: Callable[[str, str, str], None] = announce,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Run the offset service until `stop` is requested.

    It is announced when it has read the routes and is in them. From then on it goes on with what
    it knows while nameservers or brokers are away.

    Args:
        settings: see there.
        stop: ends it.
        disk: the file system of the journal.
        announce: told kind, name and address when it serves.
        quiet_seconds: how long nobody must have called before calls are refused at the end.

    Raises:
        SettingsError: no nameserver, a lease that heartbeats cannot keep, no etcd cluster id, or a
            certificate or cluster secret that cannot be used.
        ListenError: the address cannot be had.
        Fatal: the store cannot be used, or another offset service has the cluster.
    """
    if settings.heartbeat_seconds >= settings.lease_seconds:
        raise SettingsError("heartbeat_seconds must be less than lease_seconds")
    etcd_cluster_id(settings.accept_etcd_cluster_id)
    frontend = NodeFrontend("offset", settings, RULES, Lease("the offset service"))
    try:
        store = open_store(settings, stop, disk)
        try:
            parts = assembled(settings, store, frontend.nameservers)
            try:
                await run_parts(settings, frontend, stop, store, parts, announce, quiet_seconds)
            finally:
                await parts.brokers.close()
        finally:
            close_store(store, stop)
    finally:
        await frontend.nameservers.close()


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
    brokers = Brokers(
        table,
        settings.cluster,
        settings.broker_timeout_seconds,
        client_tls(settings),
        cluster_credentials(settings),
    )
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
    commits = Commits(store, table, ends, groups.release, now_ms)
    lags = Lags(
        store, table, brokers, groups.membership, time.monotonic_ns, settings.progress_entries_max
    )
    servicer = OffsetService(
        settings,
        store,
        groups,
        watch,
        resolver,
        commits,
        ResetPlans(store, table, brokers, watch, settings.plan_seconds, now_ms, time.monotonic),
        lags,
        Importer(store, table, subscriptions, brokers, watch, now_ms),
        routes,
        now_ms,
    )
    export_files = ExportFiles(store, settings.export_seconds, now_ms)
    metrics = OffsetMetrics(store, table, groups, lags, resolver, commits)
    return Parts(routes, brokers, watch, groups, export_files, servicer, metrics)


async def run_parts(
    settings: OffsetSettings,
    frontend: NodeFrontend,
    stop: Stop,
    store: Store,
    parts: Parts,
    announce: Callable[[str, str, str], None],
    quiet_seconds: float,
) -> None:
    def register(server: aio.Server) -> None:
        add_OffsetServiceServicer_to_server(parts.servicer, server)

    async with (
        frontend.telemetry(TABLE, parts.metrics.measure) as telemetry,
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
                now_ms(),
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
            server.begin_drain()
            await registration.leave()
            # Members learn from the routes when to come again.
            parts.watch.close()
            if stop.fatal is None:
                await server.wait_quiet(quiet_seconds)
        for loop in loops:
            loop.cancel()
    if stop.fatal is None:
        await parts.export_files.export()
