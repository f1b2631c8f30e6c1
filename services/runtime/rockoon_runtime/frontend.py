"""Frontend of a service: servers, access, TLS and telemetry, equal for all services.

A service is a library with a `serve(settings, stop)`, which its program passes to `process.run`:

    frontend = Frontend("gateway", settings, RULES)
    async with frontend.telemetry(TABLE, metrics.measure) as telemetry:
        async with frontend.server(register, SERVICE_NAMES, tracer=telemetry.tracer) as server:
            await server.set_serving(True)
            announce("gateway", settings.name, settings.advertise or server.address)
            await stop.wait()
            server.start_drain()
            await server.wait_quiet()

`rockoon_node.frontend.NodeFrontend` is the frontend of services that register with nameservers.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from grpc import aio

from rockoon_rpc.addresses import Addresses
from rockoon_rpc.limits import MESSAGE_BYTES_MAX, Limits
from rockoon_rpc.server_call import no_objection
from rockoon_runtime.access.gate import TABLE as ACCESS_TABLE
from rockoon_runtime.access.gate import (
    AccessSettings,
    access_gate,
    cluster_credentials,
)
from rockoon_runtime.access.rules import Rules
from rockoon_runtime.error_guard import RPC_LATENCY, CallTimes
from rockoon_runtime.live_settings import LiveSettings
from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, counter
from rockoon_runtime.telemetry.telemetry import LOG_LEVELS, Telemetry, TelemetrySettings
from rockoon_runtime.tls import CERTIFICATE_LEFT, TlsSettings, server_tls
from rockoon_runtime.wire import CALLS_MAX, DrainSettings, GrpcServer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


CLOSED = counter(
    "rockoon_connections_closed_total",
    "Connections closed because their address had more than connections_per_address_max",
)
CALMED = counter(
    "rockoon_connections_calmed_total",
    "Connections closed because their address had used up a budget (floods), including those "
    "closed during calm_seconds",
)
TABLE = (CLOSED, CALMED)


# Without slots: a class can inherit from one class with slots only, and services inherit several.
@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """The connection settings of a service; a base class of its settings."""

    connections_max: int = setting(
        20_000,
        "maximum open connections of one listener, or half of the process's open files if that is "
        "less; more are closed",
        minimum=1,
        maximum=1_000_000,
        live=True,
    )
    connections_per_address_max: int = setting(
        2000,
        "maximum open connections per client address, 0 = unlimited; more are closed. Clients "
        "behind one proxy share an address",
        minimum=0,
        maximum=1_000_000,
        live=True,
    )
    calls_per_address_max: int = setting(
        0,
        "maximum calls in progress per client address, streams and waiting pulls included, 0 = "
        "half of the calls that the service accepts; more are refused",
        minimum=0,
        maximum=1_000_000,
        live=True,
    )
    streams_per_connection_max: int = setting(
        1000,
        "maximum calls in progress on one connection; more are refused, and clients open another "
        "connection",
        minimum=1,
        maximum=100_000,
        live=True,
    )
    headers_bytes_max: int = setting(
        16 << 10,
        "maximum headers of one call, bytes, with 32 added for each header",
        minimum=4096,
        maximum=1 << 20,
        live=True,
    )
    request_seconds_max: float = setting(
        30.0,
        "maximum time to receive the request of a call with one request, seconds",
        minimum=0.1,
        maximum=3600,
        live=True,
    )
    unread_answers_bytes_max: int = setting(
        8 << 20,
        "maximum response bytes that a connection's client has not read; beyond it the service "
        "reads nothing from the connection",
        minimum=1 << 16,
        maximum=1 << 30,
        live=True,
    )
    turn_bytes: int = setting(
        64 << 10,
        "received bytes of one connection that are handled before other connections are handled",
        minimum=16 << 10,
        maximum=1 << 24,
        live=True,
    )
    turn_calls: int = setting(
        64,
        "new calls of one connection that start before other connections are handled",
        minimum=1,
        maximum=10_000,
        live=True,
    )
    idle_frames_per_second: int = setting(
        1000,
        "maximum frames without effect (PING, SETTINGS, window updates) that one connection may "
        "send per second in addition to those that its calls need, with a burst of ten times as "
        "many; more close it",
        minimum=10,
        maximum=1_000_000,
        live=True,
    )
    resets_per_second: int = setting(
        2000,
        "maximum calls that one connection may cancel per second, with a burst of ten times as "
        "many; more close it. A call beyond streams_per_connection_max counts as 20",
        minimum=10,
        maximum=1_000_000,
        live=True,
    )
    calm_seconds: float = setting(
        5.0,
        "time for which new connections of an address are closed after one of its connections has "
        "used up these budgets, seconds, 0 = none",
        minimum=0,
        maximum=3600,
        live=True,
    )

    def limits(self, message_bytes_max: int) -> Limits:
        return Limits(
            message_bytes_max=message_bytes_max,
            header_list_bytes_max=self.headers_bytes_max,
            streams_max=self.streams_per_connection_max,
            turn_bytes=self.turn_bytes,
            turn_calls=self.turn_calls,
            unsent_bytes_max=self.unread_answers_bytes_max,
            request_seconds_max=self.request_seconds_max,
            idle_frames_burst=10 * self.idle_frames_per_second,
            idle_frames_per_second=self.idle_frames_per_second,
            resets_burst=10 * self.resets_per_second,
            resets_per_second=self.resets_per_second,
            calm_seconds=self.calm_seconds,
        )

    def addresses(self) -> Addresses:
        """Return the bounds per address, shared by all listeners of the service."""
        return Addresses(self.connections_per_address_max, self.calm_seconds)


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(
    TlsSettings, AccessSettings, TelemetrySettings, ConnectionSettings, DrainSettings
):
    """The settings that every service has; each service documents its own three below.

    Attributes:
        cluster: the cluster's name.
        name: the service's name, for people and in the routes.
        listen: "host:port".
        sources: source of each value, by name, if a program loaded the settings.
    """

    sources: ClassVar[Mapping[str, str]] = {}

    cluster: str
    name: str
    listen: str


class Frontend:
    """Servers, access, TLS and telemetry of one service. The service creates it once, before it
    opens files or ports.

    Args:
        check_may_answer: see `GrpcServer`.

    Raises:
        SettingsError: a certificate or a cluster secret is not valid.

    Attributes:
        tls: certificate for callers; None if connections are plain.
        credentials: signs this service's own calls; None if access is off.
        gate: refuses calls; None if access is off.
        calls: durations of calls, recorded by servers and by handlers of request streams.
        live: the settings in use, with the live settings.
    """

    def __init__(
        self,
        service: str,
        settings: ServiceSettings,
        rules: Rules,
        check_may_answer: Callable[[], None] = no_objection,
    ) -> None:
        self._service = service
        self._settings = settings
        self.tls = server_tls(settings)
        self.credentials = cluster_credentials(settings)
        self.gate = access_gate(settings, self.credentials, rules)
        self.calls = CallTimes()
        self._check_may_answer = check_may_answer
        self._internal = [path for path, rule in rules.items() if rule.services_only]
        self._addresses = settings.addresses()
        # Each server, and the maximum size of its messages.
        self._servers: list[tuple[GrpcServer, int]] = []
        self.live: LiveSettings[Any] = LiveSettings(settings)
        self.live.follow(self._use_settings, settings)

    def _use_settings(self, settings: ServiceSettings) -> None:
        if settings.log_level != self._settings.log_level:
            logging.getLogger().setLevel(LOG_LEVELS[settings.log_level])
        self._settings = settings
        addresses = self._addresses
        addresses.connections_max = settings.connections_per_address_max
        addresses.calm_seconds = settings.calm_seconds
        for server, message_bytes_max in self._servers:
            server.use_limits(
                settings.limits(message_bytes_max),
                settings.calls_per_address_max or None,
                settings.connections_max,
            )

    def telemetry(self, table: Iterable[Metric], measure: Measure, node_id: str = "") -> Telemetry:
        """Return the telemetry of the service: its metrics, those of every service, and its traces.

        Args:
            node_id: name of the process, if several processes have the service's name.
        """
        tls, gate, addresses, settings = self.tls, self.gate, self._addresses, self._settings
        every = [*table, RPC_LATENCY, *TABLE]
        every += () if tls is None else (CERTIFICATE_LEFT,)
        every += () if gate is None else ACCESS_TABLE

        async def measured() -> Iterable[Measurement]:
            return [
                *await measure(),
                *self.calls.measurements(),
                *(() if tls is None else (tls.measurement(),)),
                *(() if gate is None else gate.measurements()),
                CLOSED.at(addresses.closed),
                CALMED.at(addresses.calmed),
            ]

        node_id = node_id or settings.name
        return Telemetry(self._service, settings.cluster, node_id, settings, every, measured)

    def server(
        self,
        register: Callable[[aio.Server], None],
        service_names: Sequence[str],
        *,
        tracer: "Tracer | None",
        also_listen: str = "",
        calls_max: int = CALLS_MAX,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        kept: Sequence[str] | None = (),
        reuse_port: bool = False,
        own_access: bool = False,
        accepts_plain: bool = False,
    ) -> GrpcServer:
        """Return a server, not entered yet.

        Args:
            register, service_names, calls_max, kept, reuse_port, accepts_plain: see `GrpcServer`.
            message_bytes_max: longer requests are refused.
            tracer: tracer of the telemetry.
            also_listen: address of a further server; empty means the address in the settings.
            own_access: the servicer permits or refuses calls; the gate is not used.
        """
        settings = self._settings
        server = GrpcServer(
            self._service,
            settings.cluster,
            also_listen or settings.listen,
            register,
            service_names,
            drain=settings,
            calls_max=calls_max,
            calls_per_address_max=settings.calls_per_address_max or None,
            connections_max=settings.connections_max,
            addresses=self._addresses,
            limits=settings.limits(message_bytes_max),
            tls=self.tls,
            accepts_plain=accepts_plain,
            # One health listener per service.
            health_listen="" if also_listen else settings.tls_health_listen,
            calls=self.calls,
            gate=None if own_access else self.gate,
            check_may_answer=self._check_may_answer,
            internal=self._internal,
            kept=kept,
            reuse_port=reuse_port,
        )
        server.trace(tracer)
        self._servers.append((server, message_bytes_max))
        return server
