"""Nameserver fail-over: a call is done by any of them, a watch goes on at the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rockoon_core.backoff import Backoff
from rockoon_core.errors import NameserverUnavailable, RockoonError, TimedOut
from rockoon_core.failover_order import FailoverOrder

Reply = TypeVar("Reply")

# The first pause of a watch, or of what is told to nameservers, when none of them has answered.
ROUND_PAUSE_SECONDS = 0.1


async def call_any(
    order: FailoverOrder, ask: Callable[[str], Awaitable[Reply]], retry_seconds: float = 0.0
) -> Reply:
    """Ask one nameserver after the other until one answers, each at least once.

    A call that changes something may have been done although its answer was lost: where that
    matters, ask in a way that may be repeated (`if_absent`).

    Args:
        order: whom to ask; shared by all calls of a connection, told what became of each.
        ask: makes the call at an address, with its own deadline, and raises a RockoonError.
        retry_seconds: how long to go on, round after round, while every one fails in a way that
            can pass; 0 means one round.

    Raises:
        RockoonError: the first answer that another try would not change, or the last one.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_seconds
    backoff = Backoff()
    while True:
        # For a whole round: calls that fail at the same time would else make each other skip one.
        for address in (round_order := order.order(loop.time())):
            try:
                reply = await ask(address)
            except RockoonError as error:
                # Also behind an answer that is final: another may know better next time.
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
    """The nameserver at which a watch is: the same while it answers, the next when it does not.

    Args:
        addresses: in the order to try; not empty.
        backoff: between rounds in which every one has failed.
    """

    def __init__(self, addresses: Sequence[str], backoff: Backoff | None = None) -> None:
        self._addresses = tuple(addresses)
        self._backoff = backoff or Backoff(ROUND_PAUSE_SECONDS)
        self._index = 0
        # In a row.
        self._failures = 0

    @property
    def address(self) -> str:
        return self._addresses[self._index]

    @property
    def round_failed(self) -> bool:
        """Whether every nameserver has failed since one last answered."""
        return self._failures >= len(self._addresses)

    def answered(self) -> None:
        """The watch has brought something."""
        self._failures = 0
        self._backoff.reset()

    def failed(self) -> float:
        """Go on to the next; returns how long to wait before it is tried, seconds."""
        self._failures += 1
        self._index = (self._index + 1) % len(self._addresses)
        return 0.0 if self._failures % len(self._addresses) else self._backoff.next_seconds()
