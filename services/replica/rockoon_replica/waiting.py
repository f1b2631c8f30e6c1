"""Waits of callers for a leader's committed end, or for a round (rule 11)."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from rockoon_core.errors import RockoonError


class CommitWaits:
    """Futures of waiting callers, in the order of their completion.

    Args:
        ask: starts a round. One runs at a time: later callers share the next one, so the number of
            rounds depends on time and not on callers, and an idle leader starts none.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        # The lowest end first.
        self._ends: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        # Waiting for the next round, and for the running one, whose number is `_number`.
        self._next: list[asyncio.Future[None]] = []
        self._asked: list[asyncio.Future[None]] = []
        self._number = 0

    def committed(self, end: int) -> "asyncio.Future[None]":
        """Completes when the log is committed up to an end."""
        reached = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (end, next(self._order), reached))
        return reached

    def reached(self, end: int) -> None:
        """The log is committed up to `end`."""
        while self._ends and self._ends[0][0] <= end:
            finish(heapq.heappop(self._ends)[2])

    def round(self) -> "asyncio.Future[None]":
        """Completes when a round that starts after this call is confirmed."""
        agreed = asyncio.get_running_loop().create_future()
        self._next.append(agreed)
        if len(self._next) == 1 and not self._asked:
            self._ask()
        return agreed

    def round_started(self, number: int) -> None:
        """A round starts, for all callers that wait now."""
        self._number = number
        self._asked, self._next = self._asked + self._next, []

    def agreed(self, number: int) -> None:
        """A quorum has confirmed the rounds up to this number."""
        if number < self._number:
            return
        asked, self._asked = self._asked, []
        for each in asked:
            finish(each)
        if self._next:
            self._ask()

    def refuse(self, refusal: RockoonError) -> None:
        """Fail all waits."""
        ends = [reached for _, _, reached in self._ends]
        for each in (*ends, *self._asked, *self._next):
            if not each.done():
                each.set_exception(refusal)


def finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
