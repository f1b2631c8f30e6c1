"""Connections of a service: settings of their bounds, and metrics of closed ones."""

from collections.abc import Iterable
from dataclasses import dataclass

from rockoon_rpc.addresses import Addresses
from rockoon_rpc.limits import Limits
from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, counter

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
    )
    connections_per_address_max: int = setting(
        2000,
        "maximum open connections per client address, 0 = unlimited; more are closed. Clients "
        "behind one proxy share an address",
        minimum=0,
        maximum=1_000_000,
    )
    calls_per_address_max: int = setting(
        0,
        "maximum calls in progress per client address, streams and waiting pulls included, 0 = "
        "half of the calls that the service accepts; more are refused",
        minimum=0,
        maximum=1_000_000,
    )
    streams_per_connection_max: int = setting(
        1000,
        "maximum calls in progress on one connection; more are refused, and clients open another "
        "connection",
        minimum=1,
        maximum=100_000,
    )
    headers_bytes_max: int = setting(
        16 << 10,
        "maximum headers of one call, bytes, with 32 added for each header",
        minimum=4096,
        maximum=1 << 20,
    )
    request_seconds_max: float = setting(
        30.0,
        "maximum time to receive the request of a call with one request, seconds",
        minimum=0.1,
        maximum=3600,
    )
    unread_answers_bytes_max: int = setting(
        8 << 20,
        "maximum response bytes that a connection's client has not read; beyond it the service "
        "reads nothing from the connection",
        minimum=1 << 16,
        maximum=1 << 30,
    )
    turn_bytes: int = setting(
        64 << 10,
        "received bytes of one connection that are handled before other connections are handled",
        minimum=16 << 10,
        maximum=1 << 24,
    )
    turn_calls: int = setting(
        64,
        "new calls of one connection that start before other connections are handled",
        minimum=1,
        maximum=10_000,
    )
    idle_frames_per_second: int = setting(
        1000,
        "maximum frames without effect (PING, SETTINGS, window updates) that one connection may "
        "send per second in addition to those that its calls need, with a burst of ten times as "
        "many; more close it",
        minimum=10,
        maximum=1_000_000,
    )
    resets_per_second: int = setting(
        2000,
        "maximum calls that one connection may cancel per second, with a burst of ten times as "
        "many; more close it. A call beyond streams_per_connection_max counts as 20",
        minimum=10,
        maximum=1_000_000,
    )
    calm_seconds: float = setting(
        5.0,
        "time for which new connections of an address are closed after one of its connections has "
        "used up these budgets, seconds, 0 = none",
        minimum=0,
        maximum=3600,
    )

    def limits(self, message_bytes_max: int) -> Limits:
        """The limits of each connection, from the settings."""
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
        """The bounds per address, shared by all listeners of the service."""
        return Addresses(self.connections_per_address_max, self.calm_seconds)


def with_connections(
    table: Iterable[Metric], measure: Measure, addresses: Addresses
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and the numbers of closed connections."""

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), CLOSED.at(addresses.closed), CALMED.at(addresses.calmed)]

    return (*table, CLOSED, CALMED), measured
