"""Connections of a service: the settings of their bounds, and the metrics of closed ones."""

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
    "Connections closed because their address had used up a budget (floods), in the pause of "
    "calm_seconds too",
)
TABLE = (CLOSED, CALMED)


# Without slots: a class can inherit from one class with slots only, and there are other parts.
@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """The part of a service's settings that is about connections; to be inherited."""

    connections_max: int = setting(
        20_000,
        "open connections of one listener, further ones are closed; half of the process's open "
        "files if that is less",
        minimum=1,
        maximum=1_000_000,
    )
    connections_per_address_max: int = setting(
        2000,
        "connections that one address may have at once, further ones are closed (a proxy and all "
        "that is behind it are one address); 0 means no bound",
        minimum=0,
        maximum=1_000_000,
    )
    calls_per_address_max: int = setting(
        0,
        "calls in progress that one address may have, streams and waiting pulls included, further "
        "ones are refused; 0 means half of the calls that the service accepts",
        minimum=0,
        maximum=1_000_000,
    )
    streams_per_connection_max: int = setting(
        1000,
        "calls in progress on one connection, further ones are refused; clients open another "
        "connection",
        minimum=1,
        maximum=100_000,
    )
    headers_bytes_max: int = setting(
        16 << 10,
        "headers of one call, bytes, 32 added for each header",
        minimum=4096,
        maximum=1 << 20,
    )
    request_seconds_max: float = setting(
        30.0,
        "from the headers of a call with one request to the end of the request, seconds",
        minimum=0.1,
        maximum=3600,
    )
    unread_answers_bytes_max: int = setting(
        8 << 20,
        "answers that a connection's peer does not read, bytes; beyond it nothing is read from "
        "the connection",
        minimum=1 << 16,
        maximum=1 << 30,
    )
    turn_bytes: int = setting(
        64 << 10,
        "received bytes of one connection that are handled before other connections have a turn",
        minimum=16 << 10,
        maximum=1 << 24,
    )
    turn_calls: int = setting(
        64,
        "new calls of one connection that begin before other connections have their turn",
        minimum=1,
        maximum=10_000,
    )
    idle_frames_per_second: int = setting(
        1000,
        "frames without effect (PING, SETTINGS, window updates) that one connection may send per "
        "second beside those that its calls allow, with a burst of ten times as many; more end it",
        minimum=10,
        maximum=1_000_000,
    )
    resets_per_second: int = setting(
        2000,
        "calls that one connection may cancel per second, with a burst of ten times as many; more "
        "end it. A call beyond streams_per_connection_max counts as 20",
        minimum=10,
        maximum=1_000_000,
    )
    calm_seconds: float = setting(
        5.0,
        "for which new connections of an address are closed after one of its connections has used "
        "up these budgets, seconds; 0 means no pause",
        minimum=0,
        maximum=3600,
    )

    def limits(self, message_bytes_max: int) -> Limits:
        """The limits of each connection."""
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
        """The shares of addresses, for all listeners of the service together."""
        return Addresses(self.connections_per_address_max, self.calm_seconds)


def with_connections(
    table: Iterable[Metric], measure: Measure, addresses: Addresses
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and how many connections were closed."""

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), CLOSED.at(addresses.closed), CALMED.at(addresses.calmed)]

    return (*table, CLOSED, CALMED), measured
