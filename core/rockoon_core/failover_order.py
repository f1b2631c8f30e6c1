"""Fail-over order of nameservers. Pure: time is an argument."""

from collections.abc import Sequence

# A silent nameserver is tried last for this long: each try may hang again.
SILENT_SECONDS = 10.0


class FailoverOrder:
    """Order of nameservers for fail-over: first the one that replies, last those that do not reply
    in time.

    Args:
        addresses: "host:port" of each nameserver, in the initial order; not empty.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        # Index of the first one.
        self._first = 0
        # Address → time until which it is tried last.
        self._silent_until: dict[str, float] = {}

    def order(self, now: float) -> list[str]:
        """Return the addresses in the order to try, each once.

        A call uses one result for a whole round: otherwise concurrent failing calls would make each
        other skip addresses.

        Args:
            now: seconds of a monotonic clock, here and below.
        """
        turned = [*self._addresses[self._first :], *self._addresses[: self._first]]
        return sorted(turned, key=lambda address: self._silent_until.get(address, 0.0) > now)

    def answered(self, address: str) -> None:
        """Record that a call to this address succeeded."""
        self._silent_until.pop(address, None)

    def failed(self, address: str, now: float, *, is_silent: bool) -> None:
        """Record that a call to this address failed, and may succeed at another nameserver.

        Args:
            is_silent: no reply arrived within the call's time limit.
        """
        if is_silent:
            self._silent_until[address] = now + SILENT_SECONDS
        self._first = (self._addresses.index(address) + 1) % len(self._addresses)
