"""The gateway's process: a connection to the cluster, the parts on it, the gRPC server."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from grpc import aio

from rockoon import Cluster
from rockoon_gateway.calls import HEADERS
from rockoon_gateway.cluster_side import access, connected
from rockoon_gateway.metrics import TABLE
from rockoon_gateway.parts import assembled
from rockoon_gateway.scaling.scaler import Scaler
from rockoon_gateway.settings import GatewaySettings
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import add_AdminServicer_to_server
from rockoon_proto.apache.rocketmq.v2.service_pb2_grpc import add_MessagingServiceServicer_to_server
from rockoon_proto.keda.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from rockoon_runtime.drain import QUIET_SECONDS
from rockoon_runtime.frontend import Frontend
from rockoon_runtime.process import Stop, announce
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.wire import GrpcServer

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
        settings: of this gateway.
        stop: ends it.
        announce: called with kind, name and address when it serves.
        quiet_seconds: time without calls after which new calls are refused at the end.

    Raises:
        SettingsError: no nameserver, or a file that cannot be used.
        ListenError: it cannot listen on an address.
        RockoonError: the nameservers refuse, or none has ever replied.
    """
    if not settings.nameservers:
        raise SettingsError("nameservers is empty: set the nameservers of the gateway's cluster")
    if settings.plain_connections and settings.tls == "off":
        raise SettingsError("plain_connections is set, but tls = off: `listen` has no TLS anyway")
    frontend = Frontend("gateway", settings, {})
    async with AsyncExitStack() as opened:
        tasks = await opened.enter_async_context(asyncio.TaskGroup())
        signatures = await access(settings, frontend, stop, tasks, opened)
        cluster = await connected(settings, stop, opened)
        parts = assembled(settings, cluster, signatures, tasks)
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
        exported = await opened.enter_async_context(
            frontend.telemetry(TABLE, parts.metrics.measure)
        )
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
            server.begin_drain()
        for server in servers:
            await server.wait_quiet(quiet_seconds)


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
