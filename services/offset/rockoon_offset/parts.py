"""Assembly of an offset service from its parts and a store of progress."""

import time
from dataclasses import dataclass

from rockoon_core.clock import steady_clock
from rockoon_core.clock import wall_clock_ms as now_ms
from rockoon_core.start_position import NewQueueRule
from rockoon_node.nameservers import Nameservers
from rockoon_node.store_directory import cluster_id
from rockoon_offset.brokers import Brokers
from rockoon_offset.groups import Groups
from rockoon_offset.in_flight.clients import KnownClients
from rockoon_offset.in_flight.filters import ReaderFilters
from rockoon_offset.in_flight.known_receivers import GroupReceivers
from rockoon_offset.in_flight.producers import KnownProducers
from rockoon_offset.in_flight.receivers import Receivers
from rockoon_offset.in_flight.service import InFlightService
from rockoon_offset.members.handover import Handovers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.metrics import OffsetMetrics
from rockoon_offset.progress.commits import Commits, QueueEndCache
from rockoon_offset.progress.export_files import ExportFiles
from rockoon_offset.progress.group_queues import GroupQueues
from rockoon_offset.progress.importer import Importer
from rockoon_offset.progress.lag import Lags
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.reset_plans import ResetPlans
from rockoon_offset.route_table import AppliedUpdate
from rockoon_offset.routes import FollowedRoutes
from rockoon_offset.service import OffsetService
from rockoon_offset.settings import OffsetSettings
from rockoon_offset.start.resolver import Resolver, Subscriptions
from rockoon_runtime.access.gate import cluster_credentials
from rockoon_runtime.tls import client_tls

SERVICE_NAMES = ("rockoon.v1.OffsetService", "rockoon.v1.InFlightService")


@dataclass(frozen=True, slots=True)
class OffsetParts:
    """Components that the program runs, serves or closes."""

    routes: FollowedRoutes
    brokers: Brokers
    watch: GroupWatch
    groups: Groups
    export_files: ExportFiles
    servicer: OffsetService
    in_flight: InFlightService
    metrics: OffsetMetrics


def assembled(
    settings: OffsetSettings, store: ProgressStore, nameservers: Nameservers
) -> OffsetParts:
    """Assemble a service. Its start is written to the store immediately."""

    def routes_changed(change: AppliedUpdate) -> None:
        groups.routes_changed(change)

    accepted_etcd = cluster_id("accept_etcd_cluster_id", settings.accept_etcd_cluster_id)
    routes = FollowedRoutes(nameservers, routes_changed, store, accepted_etcd)
    table, wait = routes.table, settings.route_wait_seconds
    brokers = Brokers(
        table,
        settings.cluster,
        settings.broker_timeout_seconds,
        client_tls(settings),
        cluster_credentials(settings),
    )
    watch = GroupWatch(settings.watchers_max)
    ends = QueueEndCache(brokers, time.monotonic)
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
    group_queues = GroupQueues(routes, nameservers, wait)
    resolver = Resolver(
        store,
        routes,
        subscriptions,
        groups,
        brokers,
        NewQueueRule[settings.new_queue_rule.upper()],
        wait,
        now_ms,
    )
    commits = Commits(store, table, ends, groups.release, now_ms)
    clock_ms = steady_clock()
    rows_max, members = settings.progress_entries_max, groups.membership
    filters = ReaderFilters(members, clock_ms)
    lease_ms = round(settings.client_lease_seconds * 1000)
    clients = KnownClients(lease_ms, clock_ms())
    group_receivers = GroupReceivers(store, clients, filters, clock_ms)
    lags = Lags(store, table, brokers, members, filters, time.monotonic_ns, rows_max, clock_ms)
    servicer = OffsetService(
        settings,
        store,
        groups,
        watch,
        resolver,
        commits,
        ResetPlans(store, table, brokers, watch, settings.plan_seconds, now_ms, time.monotonic),
        lags,
        Importer(store, table, subscriptions, group_queues, brokers, watch, now_ms),
        routes,
        group_receivers,
        now_ms,
    )
    receivers = Receivers(store, routes, resolver, groups, ends, filters, clock_ms, wait, lease_ms)
    export_files = ExportFiles(store, settings.export_seconds, now_ms)
    metrics = OffsetMetrics(store, table, groups, lags, resolver, commits, receivers)
    in_flight = InFlightService(receivers, clients, KnownProducers(lease_ms))
    return OffsetParts(routes, brokers, watch, groups, export_files, servicer, in_flight, metrics)
