"""Fail-over order of nameservers: which is asked first, and which next. Pure: time is given."""

from collections.abc import Sequence

# A nameserver that did not answer is asked after the others for so long: each try may hang again.
SILENT_SECONDS = 10.0


class FailoverOrder:
    """The order of a connection's nameservers: on with the one that works, last those that hang.

    Args:
        addresses: "host:port" of each, in the order to try; not empty.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        # Index of the one to ask first.
        self._first = 0
        # Address → until when the others are asked before it.
        self._silent_until: dict[str, float] = {}

    def order(self, now: float) -> list[str]:
        """The addresses as they are to be asked, each once.

        Kept by a call for a whole round: calls that fail at the same time would otherwise make
        each other skip one.

        Args:
            now: seconds of a clock that only rises, here and below.
        """
        turned = [*self._addresses[self._first :], *self._addresses[: self._first]]
        return sorted(turned, key=lambda address: self._silent_until.get(address, 0.0) > now)

    def answered(self, address: str) -> None:
        """A call was done there."""
        self._silent_until.pop(address, None)

    def failed(self, address: str, now: float, *, is_silent: bool) -> None:
        """A call was not done there, and may be elsewhere.

        Args:
            is_silent: nothing came back at all, within the time that the call had.
        """
        if is_silent:
            self._silent_until[address] = now + SILENT_SECONDS
        self._first = (self._addresses.index(address) + 1) % len(self._addresses)
