"""The gateway's process: a connection to the cluster, the parts on it, the gRPC server."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from grpc import aio

from rockoon import Cluster
from rockoon.errors import NameserverUnavailable
from rockoon.net.access import AccessKey
from rockoon_core.channels import Tls
from rockoon_core.clock import wall_clock_ms
from rockoon_core.signature import CLUSTER_KEY_ID
from rockoon_gateway.calls import HEADERS, Callers
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import TelemetryStreams
from rockoon_gateway.consoles.groups_report import GroupReports
from rockoon_gateway.consoles.lookups import Lookups
from rockoon_gateway.consuming.consuming import Consuming
from rockoon_gateway.groups import CachedGroups
from rockoon_gateway.lite.lite_topics import Expiry, LiteTopics
from rockoon_gateway.metrics import TABLE, GatewayMetrics
from rockoon_gateway.producing.message_checks import SendLimits
from rockoon_gateway.producing.sending import Sending
from rockoon_gateway.producing.transactions import GatewayTransactions
from rockoon_gateway.routes import QueryRoutes, TopicRoutes
from rockoon_gateway.scaler import Scaler
from rockoon_gateway.service import ConsoleServicer, MessagingServicer, Services
from rockoon_gateway.settings import GatewaySettings
from rockoon_gateway.signatures import SecretFile, Signatures
from rockoon_node.key_follower import KeyFollower
from rockoon_node.nameservers import Nameservers
from rockoon_node.settings_follower import SettingsFollower, store_setting
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import add_AdminServicer_to_server
from rockoon_proto.apache.rocketmq.v2.service_pb2_grpc import add_MessagingServiceServicer_to_server
from rockoon_proto.keda.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from rockoon_proto.v1.settings_pb2_grpc import add_SettingsServicer_to_server
from rockoon_runtime import settings_service
from rockoon_runtime.access.gate import cluster_secrets
from rockoon_runtime.access.keys import KeyTable
from rockoon_runtime.access.rules import on_cluster
from rockoon_runtime.frontend import Frontend
from rockoon_runtime.process import Program, Stop, announce
from rockoon_runtime.settings import SettingsError, refused_by
from rockoon_runtime.settings_checks import (
    CHECKS,
    addresses,
    advertised,
    caller_files,
    host_in_certificate,
)
from rockoon_runtime.settings_service import SettingsService
from rockoon_runtime.telemetry.telemetry import Telemetry
from rockoon_runtime.tls import client_tls
from rockoon_runtime.wire import QUIET_SECONDS, GrpcServer

log = logging.getLogger(__name__)

# A short limit: the gateway retries no calls without its client's knowledge.
RETRY_SECONDS = 2.0
# `access = optional` lets clients without a key send. They must not change settings of the cluster.
RULES = dict.fromkeys(settings_service.RULES, on_cluster("admin", never_open=True))


def cluster_tls(settings: GatewaySettings) -> Tls | None:
    """TLS for connections to services; None: off. Raises SettingsError for a missing file."""
    if settings.cluster_tls == "same":
        return client_tls(settings)
    inner = dataclasses.replace(
        settings,
        tls=settings.cluster_tls,
        tls_ca=settings.cluster_tls_ca or settings.tls_ca,
        tls_certificate=settings.cluster_tls_certificate or settings.tls_certificate,
        tls_key=settings.cluster_tls_key or settings.tls_key,
    )
    return client_tls(inner)


def connection(settings: GatewaySettings) -> Cluster:
    """Create the connection to the cluster, with the services' own key."""
    access = None
    if settings.access != "off":
        file = settings.cluster_secret_file
        access = AccessKey(CLUSTER_KEY_ID, cluster_secrets(settings)()[0], file)
    cluster = Cluster(
        settings.nameservers,
        cluster=settings.cluster,
        retry_seconds=RETRY_SECONDS,
        connect_seconds_max=RETRY_SECONDS,
        tls=cluster_tls(settings),
        access=access,
    )
    cluster.agent = cluster.agent._replace(gateway=settings.name)
    return cluster


async def connected(settings: GatewaySettings, stop: Stop, opened: AsyncExitStack) -> Cluster:
    """Return the open connection, as soon as a nameserver replies.

    Raises:
        SettingsError: a file cannot be used.
        RockoonError: the nameservers refuse, or a stop was requested before one replied.
    """
    told = False
    while True:
        try:
            return await opened.enter_async_context(connection(settings))
        except NameserverUnavailable as failure:
            if stop.requested:
                raise
            if not told:
                log.warning("%s; waiting for a nameserver", failure)
            told = True


def secrets_of_clients(settings: GatewaySettings) -> SecretFile | None:
    """Read the secrets with which clients sign; None without the file. Raises SettingsError."""
    if settings.client_secrets is None:
        if settings.access == "on":
            raise SettingsError("access = on needs client_secrets: all calls would be refused")
        return None
    if settings.access == "off":
        raise SettingsError("client_secrets is set, but access = off: calls are not checked")
    return SecretFile(settings.client_secrets)


async def admin_address(
    settings: GatewaySettings,
    frontend: Frontend,
    nameservers: Nameservers,
    opened: AsyncExitStack,
) -> str:
    """Start the server with which operators show and change settings; return its "host:port", empty
    without one. It has a port of its own: clients' addresses may be those of a load balancer.
    """
    if not settings.admin_listen:
        return ""
    service = SettingsService(
        "gateway", settings.name, frontend.live, partial(store_setting, nameservers)
    )

    def register(server: aio.Server) -> None:
        add_SettingsServicer_to_server(service, server)

    names = (settings_service.SERVICE_NAME,)
    server = frontend.server(
        register,
        names,
        tracer=None,
        also_listen=settings.admin_listen,
        # Operators connect as to the other services of the cluster.
        accepts_plain=cluster_tls(settings) is None,
    )
    await opened.enter_async_context(server)
    await server.set_serving(True)
    return settings.admin_advertise or server.address


async def follow_nameservers(
    settings: GatewaySettings,
    frontend: Frontend,
    stop: Stop,
    tasks: asyncio.TaskGroup,
    opened: AsyncExitStack,
) -> Signatures:
    """Follow access keys and live settings; return the object that checks clients' signatures, once
    the live settings and the present keys of the cluster are in use.

    Args:
        tasks: owns the tasks that follow.
        opened: ends them.
    """
    nameservers = Nameservers(
        settings.nameservers, settings.cluster, cluster_tls(settings), frontend.credentials
    )
    opened.push_async_callback(nameservers.close)
    address = await admin_address(settings, frontend, nameservers, opened)

    async def follow(follower: KeyFollower | SettingsFollower, name: str) -> None:
        following = tasks.create_task(follower.run(stop), name=name)
        opened.callback(following.cancel)
        await stop.or_event(follower.attempted)

    secrets = secrets_of_clients(settings)
    keys: KeyTable | None = None
    if frontend.gate is not None:
        await follow(KeyFollower(nameservers, frontend.gate, address), "access keys")
        keys = frontend.gate.keys
    await follow(
        SettingsFollower(
            *(nameservers, "gateway", settings.name, frontend.live),
            address,
            settings.admin_tls_server_name,
        ),
        "live settings",
    )
    is_optional = settings.access == "optional"
    return Signatures(keys, secrets, wall_clock_ms, optional=is_optional)


@dataclass(frozen=True, slots=True)
class GatewayParts:
    services: Services
    servicer: MessagingServicer
    consoles: ConsoleServicer
    metrics: GatewayMetrics
    expiry: Expiry
    lite_topics: LiteTopics
    transactions: GatewayTransactions

    def use_settings(self, settings: GatewaySettings) -> None:
        """Use the values of other live settings."""
        services = self.services
        services.presence.seconds_max = settings.client_seconds_max
        services.telemetry.body_bytes_max = settings.body_bytes_max
        services.sending.limits = send_limits(settings)
        self.transactions.checked_max = settings.checked_topics_max
        self.lite_topics.count_max = settings.lite_topics_max
        self.expiry.scan_seconds = settings.lite_look_seconds


def send_limits(settings: GatewaySettings) -> SendLimits:
    return SendLimits(settings.body_bytes_max, round(settings.delay_seconds_max * 1000))


def assembled(
    settings: GatewaySettings,
    cluster: Cluster,
    signatures: Signatures,
    tasks: asyncio.TaskGroup,
) -> GatewayParts:
    """Create the components of a gateway; `tasks` owns those that read Telemetry streams."""
    presence = Presence(settings.client_seconds_max)
    topics = TopicRoutes(cluster, create=settings.create_topics)
    groups = CachedGroups(cluster, create=settings.create_groups)
    lite_topics = LiteTopics(cluster, settings.lite_topics_max)
    telemetry = TelemetryStreams(presence, topics, groups, settings.body_bytes_max, tasks)
    transactions = GatewayTransactions(
        cluster, topics, presence, settings.send_seconds_max, settings.checked_topics_max
    )
    sending = Sending(
        cluster,
        topics,
        lite_topics,
        presence,
        transactions,
        send_limits(settings),
        timeout_seconds=settings.send_seconds_max,
        buffer_bytes_max=settings.buffer_bytes_max,
        clock=wall_clock_ms,
    )
    consuming = Consuming(
        cluster,
        topics,
        groups,
        lite_topics,
        presence,
        settings.name,
        create_groups=settings.create_groups,
    )
    services = Services(QueryRoutes(cluster, topics), presence, telemetry, sending, consuming)
    callers = Callers(signatures)
    metrics = GatewayMetrics(
        presence, telemetry, signatures, sending, transactions, consuming, callers.refused
    )
    consoles = ConsoleServicer(
        settings.name,
        callers,
        GroupReports(cluster, consuming.reports.soon),
        Lookups(cluster, topics, presence, telemetry),
        sending,
        presence,
    )
    expiry = Expiry(cluster, lite_topics, consuming.lite_subscriptions, settings.lite_look_seconds)
    servicer = MessagingServicer(callers, services)
    return GatewayParts(services, servicer, consoles, metrics, expiry, lite_topics, transactions)


if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SCALER_SERVICE_NAMES = ("externalscaler.ExternalScaler",)
SERVICE_NAMES = ("apache.rocketmq.v2.MessagingService", "apache.rocketmq.v2.Admin")

# A batch of messages with bodies of 4 MiB, which RocketMQ's proxy accepts.
MESSAGE_BYTES_MAX = 130 << 20


async def serve(
    settings: GatewaySettings,
    stop: Stop,
    *,
    announce: Callable[[str, str, str], None] = announce,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Run the gateway until `stop` is requested.

    Args:
        announce: called with kind, name and address when it serves.
        quiet_seconds: time without calls after which new calls are refused at the end.

    Raises:
        SettingsError: no nameserver, or a file that cannot be used.
        ListenError: it cannot listen on an address.
        RockoonError: the nameservers refuse, or none has ever replied.
    """
    check_values(settings)
    frontend = Frontend("gateway", settings, RULES)
    async with AsyncExitStack() as opened:
        tasks = await opened.enter_async_context(asyncio.TaskGroup())
        signatures = await follow_nameservers(settings, frontend, stop, tasks, opened)
        cluster = await connected(settings, stop, opened)
        # The loop that measures is not free before `parts` exists.
        exported = await opened.enter_async_context(
            frontend.telemetry(TABLE, lambda: parts.metrics.measure())
        )
        continue_traces(cluster, exported)
        parts = assembled(settings, cluster, signatures, tasks)
        # Ends before the connection, whose tasks the parts create.
        opened.callback(frontend.live.follow(parts.use_settings, settings))
        services = parts.services
        opened.push_async_callback(services.sending.close)

        def register(server: aio.Server) -> None:
            add_MessagingServiceServicer_to_server(parts.servicer, server)
            add_AdminServicer_to_server(parts.consoles, server)

        forgetting = tasks.create_task(services.presence.run(), name="forget silent clients")
        opened.callback(forgetting.cancel)
        expiring = tasks.create_task(parts.expiry.run(), name="expire lite topics")
        opened.callback(expiring.cancel)
        consuming = services.consuming
        returning = tasks.create_task(consuming.returned_messages.run(), name="give back")
        opened.callback(returning.cancel)
        reporting = tasks.create_task(consuming.reports.run(), name="report clients")
        opened.callback(reporting.cancel)
        # Runs after the servers end: cancelled receives have queued their messages by then.
        opened.push_async_callback(consuming.returned_messages.flush)
        opened.push_async_callback(consuming.reports.report)
        clients = client_listener(settings, frontend, register, exported.tracer)
        servers = [await opened.enter_async_context(clients)]
        if settings.scaler_listen:
            scaler = scaler_listener(settings, frontend, cluster)
            servers.append(await opened.enter_async_context(scaler))
        for server in servers:
            await server.set_serving(True)
        announce("gateway", settings.name, servers[0].address)
        await stop.wait()
        # Otherwise the servers would wait for open streams and waiting receivers.
        services.telemetry.close()
        services.consuming.close()
        for server in servers:
            server.start_drain()
        for server in servers:
            await server.wait_quiet(quiet_seconds)


ADMIN_ADVERTISED = advertised("admin_listen", "admin_advertise")
ADMIN_HOST_IN_CERTIFICATE = host_in_certificate(
    "admin_listen", "admin_advertise", "admin_tls_server_name"
)


def check_values(settings: GatewaySettings) -> None:
    """Raises SettingsError if values that are valid one by one cannot be used together."""
    if not settings.nameservers:
        raise SettingsError("nameservers is empty: set the nameservers of the gateway's cluster")
    if settings.plain_connections and settings.tls == "off":
        raise SettingsError("plain_connections is set, but tls = off: `listen` has no TLS anyway")
    for fault in ADMIN_ADVERTISED(settings):
        raise SettingsError(fault)


def continue_traces(cluster: Cluster, exported: Telemetry) -> None:
    """Continue the traces of the gateway's clients in calls of brokers, if spans are exported."""
    if exported.tracer_provider is not None:
        from rockoon.tracing import Tracing

        # A ratio of 0: the gateway starts no traces.
        cluster.hooks = Tracing(0.0, exported.tracer_provider)


def client_listener(
    settings: GatewaySettings,
    frontend: Frontend,
    register: Callable[[aio.Server], None],
    tracer: "Tracer | None",
) -> GrpcServer:
    """Create the server for RocketMQ's clients."""
    return frontend.server(
        register,
        SERVICE_NAMES,
        tracer=tracer,
        message_bytes_max=MESSAGE_BYTES_MAX,
        kept=HEADERS,
        reuse_port=settings.reuse_port,
        own_access=True,
        accepts_plain=settings.plain_connections,
    )


def scaler_listener(settings: GatewaySettings, frontend: Frontend, cluster: Cluster) -> GrpcServer:
    """Create the server for KEDA, on its own port: KEDA signs no calls, and the network must
    restrict access."""

    def register(server: aio.Server) -> None:
        add_ExternalScalerServicer_to_server(Scaler(cluster.admin), server)

    return frontend.server(
        register,
        SCALER_SERVICE_NAMES,
        tracer=None,
        also_listen=settings.scaler_listen,
        own_access=True,
    )


def admin_host_in_certificate(settings: GatewaySettings) -> Iterator[str]:
    """Yield the fault of a certificate that does not have the host that operators call."""
    try:
        has_tls = cluster_tls(settings) is not None
    except SettingsError:
        # `caller_files` reports it.
        return
    # Operators of a cluster without TLS call the port without TLS.
    if has_tls:
        yield from ADMIN_HOST_IN_CERTIFICATE(settings)


PROGRAM = Program(
    "gateway",
    "Rockoon's gateway: RocketMQ's 5.x clients on this cluster",
    GatewaySettings,
    serve,
    (
        *CHECKS,
        addresses(
            listen=("scaler_listen", "admin_listen"), dialed=("nameservers", "admin_advertise")
        ),
        ADMIN_ADVERTISED,
        admin_host_in_certificate,
        refused_by(check_values),
        refused_by(secrets_of_clients),
        caller_files(cluster_tls, "cluster_tls"),
    ),
)
