"""Nameserver fail-over: the order of tries; a call can use any nameserver; a watch moves to the
next one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rockoon_core.clock import Backoff
from rockoon_core.errors import NameserverUnavailable, RockoonError, TimedOut

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


Reply = TypeVar("Reply")

# First pause of a watch, or of a call to nameservers, after all nameservers failed.
ROUND_PAUSE_SECONDS = 0.1


async def call_any(
    order: FailoverOrder, ask: Callable[[str], Awaitable[Reply]], retry_seconds: float = 0.0
) -> Reply:
    """Call one nameserver after the other until one replies, each at least once.

    A call that changes something may have been applied although its reply was lost: if that
    matters, the call must be repeatable (`if_absent`).

    Args:
        order: fail-over order, shared by all calls of a connection; each result updates it.
        ask: makes the call at an address, with its own deadline, and raises a RockoonError.
        retry_seconds: how long to repeat rounds while all fail in a retriable way; 0: one round.

    Raises:
        RockoonError: the first one that is not retriable, or the last one.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_seconds
    backoff = Backoff()
    while True:
        # One order per round: otherwise concurrent failing calls would make each other skip some.
        for address in (round_order := order.order(loop.time())):
            try:
                reply = await ask(address)
            except RockoonError as error:
                # Also after a final error: another nameserver may have newer data next time.
                is_silent = isinstance(error, NameserverUnavailable | TimedOut)
                order.failed(address, loop.time(), is_silent=is_silent)
                last_of_round = address == round_order[-1]
                if not error.retriable or (last_of_round and loop.time() >= deadline):
                    raise
            else:
                order.answered(address)
                return reply
        await asyncio.sleep(min(backoff.next_seconds(), max(deadline - loop.time(), 0)))


class WatchRotation:
    """Selects the nameserver of a watch: the same one while it replies, then the next.

    Args:
        addresses: in the order to try; not empty.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        # Pauses between rounds in which all nameservers failed.
        self._backoff = Backoff(ROUND_PAUSE_SECONDS)
        self._index = 0
        # Consecutive failures.
        self._failures = 0

    @property
    def address(self) -> str:
        return self._addresses[self._index]

    @property
    def round_failed(self) -> bool:
        """True if all nameservers have failed since the last reply."""
        return self._failures >= len(self._addresses)

    def answered(self) -> None:
        """Record that the watch has received an update."""
        self._failures = 0
        self._backoff.reset()

    def failed(self) -> float:
        """Switch to the next nameserver; return the seconds to wait before calling it."""
        self._failures += 1
        self._index = (self._index + 1) % len(self._addresses)
        return 0.0 if self._failures % len(self._addresses) else self._backoff.next_seconds()
