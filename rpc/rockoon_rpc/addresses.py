"""Limits per client address, shared by all servers of a service: open connections and calls.

If a connection exceeds a budget (for example of RST_STREAM frames), the server closes it and closes
new connections of the same address immediately for `calm_seconds` (the pause of the address).
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
# Connections of an address that may end uselessly before it gets a pause: without a call within
# `SHORT_SECONDS`, with a failed TLS handshake, or because the peer breaks HTTP/2, which counts like
# `BROKEN_COST` of the others.
USELESS_BURST = 120
USELESS_PER_SECOND = 30
BROKEN_COST = 3
# Addresses with a pause, and addresses whose useless connections are counted. If more addresses
# flood, the oldest entries are discarded.
CALM_ADDRESSES_MAX = 10_000


def one_address(host: str) -> str:
    """Return a peer's address; an IPv4 address within an IPv6 address becomes plain IPv4."""
    if ":" not in host:
        # To parse it needs a quarter of the instructions of a short connection.
        return host
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


class Share:
    """Usage of one client address.

    Attributes:
        connections: number of open connections.
        calls: number of calls in progress.
        is_internal: a service of the cluster has, or had, a connection from this address.
    """

    __slots__ = ("address", "calls", "connections", "is_internal")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0
        self.calls = 0
        self.is_internal = False


class Addresses:
    """Usage and pauses of all client addresses.

    Args:
        connections_max: limit of open connections per address; 0: no limit.
        calm_seconds: duration of a pause.
        clock: returns monotonic seconds.

    Attributes:
        connections_max, calm_seconds: may be changed.
        closed: connections that were closed because their address had too many.
        calmed: connections that were closed during a pause, and those that caused one.
    """

    def __init__(
        self,
        connections_max: int = 0,
        calm_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connections_max = connections_max
        self.calm_seconds = calm_seconds
        self._clock = clock
        self.closed = self.calmed = 0
        self._shares: dict[str, Share] = {}
        self._calm_until: dict[str, float] = {}
        # Address → count of useless connections that is not recovered yet, and time of the last.
        self._useless: dict[str, tuple[float, float]] = {}
        self._unlogged: Counter[str] = Counter()
        self._log_after = self._log_calm_after = 0.0

    def enter(self, host: str) -> Share | None:
        """Count a new connection of a host, until `leave`; return the usage of its address.

        Returns:
            None if the caller must close the connection: the limit is reached, or the address
                has a pause.
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
        """Count the end of a connection."""
        share.connections -= 1
        if not share.connections:
            self._shares.pop(share.address, None)

    def count(self, host: str) -> int:
        """Return the number of open connections of a host."""
        share = self._shares.get(one_address(host))
        return 0 if share is None else share.connections

    def count_useless(self, address: str, cost: int) -> bool:
        """Count a connection that ended uselessly; return whether the address has too many.
        Accepting the next connections costs more than their frames.

        Args:
            cost: 1, or `BROKEN_COST`.
        """
        now = self._clock()
        count, counted_at = self._useless.pop(address, (0.0, now))
        count = max(count - (now - counted_at) * USELESS_PER_SECOND, 0.0) + cost
        if len(self._useless) >= CALM_ADDRESSES_MAX:
            del self._useless[next(iter(self._useless))]
        # Also if the address has no other connection: the next one must not begin at 0.
        self._useless[address] = count, now
        return count > USELESS_BURST

    def calm(self, address: str, reason: str) -> None:
        """Start the pause of an address because one of its connections exceeded a budget. An
        address that a service of the cluster uses gets no pause."""
        now = self._clock()
        self.calmed += 1
        share = self._shares.get(address)
        seconds = 0.0 if share is not None and share.is_internal else self.calm_seconds
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
