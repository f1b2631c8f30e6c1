"""Turns: how connections share the event loop.

A connection handles at most one turn of input at once (`Limits.turn_bytes`). If it has more, it
stops reading and joins a line. In each iteration of the loop each line gives a turn to one of its
connections with much input. So any number of busy or hostile connections delay a timer, a lease or
another call by one turn only. Addresses are served in rotation, and the connections of an address
in rotation: twenty connections of one address have the share of one.

Many connections with a little input each are bounded too. If the connections of a line have cost
more than `ITERATION_COST_MAX` in an iteration, the input of the next ones waits in the line. If
input is handled at once, this module is not called.

There are three lines, so that replication does not wait behind clients: connections of clients,
those of the cluster's services, and those that this side has opened. Each has its own bound, so no
line can stop another.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary

# Of one line in one iteration of the loop: events, turns, and KiB of input.
ITERATION_COST_MAX = 128


class Waiting(Protocol):
    """A connection in a line.

    Attributes:
        address: of its peer.
    """

    address: str

    def next_turn(self) -> None:
        """Handle one turn; join the line again if input is left."""
        ...


class Line:
    """Connections of one kind, by address, in rotation.

    Args:
        schedule: has `serve` called in the next iteration of the loop.
        cost_max: of an iteration.

    Attributes:
        cost: of this iteration, counted by the connections. It is not reset while it is low, which
            would need a callback in each iteration.
        notice_at: a cost from which `is_used_up` is asked before input is handled.
    """

    __slots__ = ("_cost_max", "_joined", "_schedule", "_waiting", "cost", "notice_at")

    def __init__(self, schedule: Callable[[], None], cost_max: float) -> None:
        self._schedule = schedule
        self._cost_max = cost_max
        self._waiting: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._joined = 0
        self.cost = 0
        # At half of the bound the next iteration begins to count again. So the bound is reached by
        # input of one iteration, or of two.
        self.notice_at = cost_max / 2

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, connection: Waiting) -> None:
        """Let a connection have a turn later. It must not be in a line already."""
        self._joined += 1
        self._waiting.setdefault(connection.address, deque()).append(connection)
        self._schedule()

    def is_used_up(self) -> bool:
        """Whether further input has to wait for the next iteration."""
        self._schedule()
        return self.cost >= self._cost_max

    def serve(self) -> None:
        """Begin an iteration: give turns, until they have cost enough or a connection has input for
        more than one."""
        self.cost = 0
        joined = self._joined
        while self._waiting and self.cost < self._cost_max and self._joined == joined:
            self._pop().next_turn()

    def _pop(self) -> Waiting:
        address, connections = self._waiting.popitem(last=False)
        connection = connections.popleft()
        if connections:
            self._waiting[address] = connections
        return connection


class Turns:
    """The lines of one event loop.

    Attributes:
        own: connections that this side has opened; their peers were chosen.
        services: connections of the cluster's services.
        clients: other connections.
    """

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "Turns"]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.own = Line(self._schedule, float("inf"))
        self.services = Line(self._schedule, ITERATION_COST_MAX)
        self.clients = Line(self._schedule, ITERATION_COST_MAX)
        self._lines = (self.own, self.services, self.clients)
        self._is_scheduled = False

    @classmethod
    def of_loop(cls) -> "Turns":
        """The lines of the running loop."""
        loop = asyncio.get_running_loop()
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_scheduled = False
        try:
            for line in self._lines:
                line.serve()
        finally:
            if any(self._lines):
                self._schedule()
