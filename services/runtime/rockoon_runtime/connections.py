"""A bound on the connections of one address: those beyond it are closed as they come."""

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, counter

log = logging.getLogger(__name__)

SAY_SECONDS = 60.0
ADDRESSES_SAID_MAX = 5

CLOSED = counter(
    "rockoon_connections_closed_total",
    "Connections closed because their address had more than connections_per_address_max",
)


# Without slots: a class can inherit from one class with slots only, and there are other parts.
@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """The part of a service's settings that is about connections; to be inherited."""

    connections_per_address_max: int = setting(
        2000,
        "connections that one address may have at once, further ones are closed (a proxy and all "
        "that is behind it are one address); 0 means no bound",
        minimum=0,
        maximum=1_000_000,
    )


def one_address(host: str) -> str:
    """A peer's address; IPv4 within IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


class ConnectionBound:
    """How many connections an address may have at all listeners of a service together.

    Args:
        per_address_max: 0 for no bound.

    Attributes:
        closed: connections closed since the process began.
    """

    def __init__(self, per_address_max: int) -> None:
        self.per_address_max = per_address_max
        self.closed = 0
        self._open: Counter[str] = Counter()
        self._unsaid: Counter[str] = Counter()
        self._say_after = 0.0

    def enter(self, host: str) -> bool:
        """Whether one more connection of a host is taken; who is, leaves when it has ended."""
        address = one_address(host)
        if not self.per_address_max or self._open[address] < self.per_address_max:
            self._open[address] += 1
            return True
        self.closed += 1
        self._unsaid[address] += 1
        self._say()
        return False

    def leave(self, host: str) -> None:
        """A connection that was taken has ended."""
        address = one_address(host)
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def count(self, host: str) -> int:
        """How many a host has."""
        return self._open[one_address(host)]

    def _say(self) -> None:
        now = time.monotonic()
        if now >= self._say_after:
            log.warning(
                "closed connections beyond the %d that an address may have "
                "(connections_per_address_max): %s",
                self.per_address_max,
                ", ".join(
                    f"{count} of {address}"
                    for address, count in self._unsaid.most_common(ADDRESSES_SAID_MAX)
                ),
            )
            self._unsaid.clear()
            self._say_after = now + SAY_SECONDS


def with_connections(
    table: Iterable[Metric], measure: Measure, bound: ConnectionBound
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and how many connections were closed."""

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), CLOSED.at(bound.closed)]

    return (*table, CLOSED), measured
