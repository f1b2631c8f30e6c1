"""Addresses: connections and calls of each address at all servers of a service together.

An address has a bound of connections and of calls. A pause follows when one of its connections has
used up a budget: new connections of the address are closed at once.
"""

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable

log = logging.getLogger(__name__)

LOG_SECONDS = 60.0
ADDRESSES_LOGGED_MAX = 5
CALM_LOG_SECONDS = 1.0
# Addresses in a pause. If more addresses flood, the oldest pauses are forgotten.
CALM_ADDRESSES_MAX = 10_000


def one_address(host: str) -> str:
    """A peer's address; IPv4 within IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


class Share:
    """What one address has.

    Attributes:
        connections: open ones.
        calls: in progress.
        is_internal: a service of the cluster has, or had, one of the connections.
    """

    __slots__ = ("address", "calls", "connections", "is_internal")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0
        self.calls = 0
        self.is_internal = False


class Addresses:
    """The shares of all addresses.

    Args:
        connections_max: of one address; 0 for no bound.
        calm_seconds: of a pause.
        clock: monotonic seconds.

    Attributes:
        closed: connections that were closed because their address had too many.
        calmed: connections that were closed in a pause, and those that caused one.
    """

    def __init__(
        self,
        connections_max: int = 0,
        calm_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connections_max = connections_max
        self._calm_seconds = calm_seconds
        self._clock = clock
        self.closed = self.calmed = 0
        self._shares: dict[str, Share] = {}
        self._calm_until: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()
        self._log_after = self._log_calm_after = 0.0

    def enter(self, host: str) -> Share | None:
        """Count one more connection of a host; the share leaves when the connection has ended.

        Returns:
            None: the connection is to be closed.
        """
        address = one_address(host)
        if self._calm_until and self._is_calm(address):
            self.calmed += 1
            return None
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = Share(address)
        elif self.connections_max and share.connections >= self.connections_max:
            self.closed += 1
            self._unlogged[address] += 1
            self._log()
            return None
        share.connections += 1
        return share

    def leave(self, share: Share) -> None:
        """A connection has ended."""
        share.connections -= 1
        if not share.connections:
            self._shares.pop(share.address, None)

    def count(self, host: str) -> int:
        """Open connections of a host."""
        share = self._shares.get(one_address(host))
        return 0 if share is None else share.connections

    def calm(self, address: str, reason: str) -> None:
        """A connection of an address has used up a budget: the address has a pause, unless a
        service of the cluster has the same address."""
        now = self._clock()
        self.calmed += 1
        share = self._shares.get(address)
        seconds = 0.0 if share is not None and share.is_internal else self._calm_seconds
        if seconds:
            self._calm_until.pop(address, None)
            if len(self._calm_until) >= CALM_ADDRESSES_MAX:
                del self._calm_until[next(iter(self._calm_until))]
            self._calm_until[address] = now + seconds
        if now >= self._log_calm_after:
            self._log_calm_after = now + CALM_LOG_SECONDS
            log.warning(
                "closed a connection of %s: %s; its new connections are closed for %g s",
                address,
                reason,
                seconds,
            )

    def _is_calm(self, address: str) -> bool:
        until = self._calm_until.get(address)
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._calm_until[address]
        return False

    def _log(self) -> None:
        now = self._clock()
        if now >= self._log_after:
            log.warning(
                "closed connections beyond the %d that an address may have "
                "(connections_per_address_max): %s",
                self.connections_max,
                ", ".join(
                    f"{count} of {address}"
                    for address, count in self._unlogged.most_common(ADDRESSES_LOGGED_MAX)
                ),
            )
            self._unlogged.clear()
            self._log_after = now + LOG_SECONDS
