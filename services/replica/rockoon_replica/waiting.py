"""Waits of callers for what a leader's log becomes: a committed end, or a round (rule 11)."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from rockoon_core.errors import RockoonError


class Waiting:
    """Futures of those who wait, in the order in which they are answered.

    Args:
        ask: begins a round. One is out at a time: who comes meanwhile shares the next one, so that
            rounds cost by time and not by callers, and an idle leader asks none.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        # The nearest end first.
        self._ends: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        # Who waits for the next round, and for the one that is out; 0: none is.
        self._next: list[asyncio.Future[None]] = []
        self._asked: list[asyncio.Future[None]] = []
        self._number = 0

    def committed(self, end: int) -> "asyncio.Future[None]":
        """Done when the log is committed up to an end."""
        reached = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (end, next(self._order), reached))
        return reached

    def reached(self, end: int) -> None:
        """The log is committed up to here."""
        while self._ends and self._ends[0][0] <= end:
            finish(heapq.heappop(self._ends)[2])

    def round(self) -> "asyncio.Future[None]":
        """Done when a round that begins after this call is agreed."""
        agreed = asyncio.get_running_loop().create_future()
        self._next.append(agreed)
        if len(self._next) == 1 and not self._asked:
            self._ask()
        return agreed

    def begins(self, number: int) -> None:
        """The round of this number is what all who wait now have asked for."""
        self._number = number
        self._asked, self._next = self._asked + self._next, []

    def agreed(self, number: int) -> None:
        """A quorum has answered the rounds up to this number."""
        if number < self._number:
            return
        asked, self._asked = self._asked, []
        for each in asked:
            finish(each)
        if self._next:
            self._ask()

    def refuse(self, refusal: RockoonError) -> None:
        """All of them wait in vain."""
        ends = [reached for _, _, reached in self._ends]
        for each in (*ends, *self._asked, *self._next):
            if not each.done():
                each.set_exception(refusal)


def finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
