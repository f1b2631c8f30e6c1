"""Turns: fair sharing of the event loop between connections.

In one turn a connection handles a limited amount of input (`Limits.turn_bytes`). If it has more, it
stops reading and joins a line, which is a queue of connections. In each iteration of the event
loop, each line runs the turn of one connection. So any number of busy or hostile connections delay
a timer, a lease or another call by one turn only. A line serves addresses in rotation, and within
an address its connections in rotation: twenty connections of one address get the share of one.

Many connections with little input each are limited too. If the connections of a line have cost
more than `ITERATION_COST_MAX` in an iteration, the next connections wait in the line. Without
contention, connections handle their input directly.

There are three lines of open connections, so that replication does not wait for clients:
connections of clients, connections of the cluster's services, and connections that this process has
opened. A fourth line has ended connections of a server whose calls must still be cancelled: to
cancel thousands of calls in one iteration would delay everything else by seconds. A fifth line has
accepted connections whose TLS handshake has not started. Each line has its own limit, so that no
line can block another. The limit of opened connections is for fairness:
if a thousand replies arrive together, the callers of the first replies continue before the last
replies are parsed, and the connections whose replies arrived first are served first.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary

# Limit of the cost of one line per iteration of the loop. An event, a turn and a unit of input cost
# 1 each.
ITERATION_COST_MAX = 128
# Calls of ended connections that are cancelled per iteration. Each costs about as much as four
# events.
CANCELLED_CALLS_MAX = 32
# TLS handshakes that start per iteration. Each costs about a millisecond, most of it for the
# signature, while a hostile client can send the same ClientHello again at no cost.
HANDSHAKES_MAX = 4
# A unit is a power of two of bytes: 1 KiB; 64 KiB from servers that this process has chosen, which
# often send many messages together.
UNIT_BITS, OWN_UNIT_BITS = 10, 16


class Waiting(Protocol):
    """Interface of a connection that waits in a line.

    Attributes:
        address: address of the peer.
    """

    address: str

    def next_turn(self) -> None:
        """Handle one turn of input; join the line again if more input is left."""
        ...


class Line:
    """Queue of connections of one kind that wait for a turn; serves their addresses in rotation.

    Args:
        count_again: schedules a call of `serve` in the next iteration of the event loop.
        cost_max: limit of `cost` per iteration.
        unit_bits: logarithm of the bytes that cost 1.

    Attributes:
        cost: cost of the turns since it was last set to 0; the connections add to it. At `cost_max`
            further input must wait in the line.
        notice_at: at this cost a connection must call `count_again`, which sets the cost to 0 in
            the next iteration. A lower cost is not set to 0: that would need a callback in each
            iteration. So a cost below this one may be a sum over several iterations.
    """

    __slots__ = (
        "_joined", "_waiting", "cost", "cost_max", "count_again", "notice_at", "unit_bits",
    )  # fmt: skip

    def __init__(
        self, count_again: Callable[[], None], cost_max: int, unit_bits: int = UNIT_BITS
    ) -> None:
        self.count_again = count_again
        self.cost_max = cost_max
        self.unit_bits = unit_bits
        self._waiting: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._joined = 0
        self.cost = 0
        # Half of the limit: the costs of earlier iterations stay below it.
        self.notice_at = cost_max // 2

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, connection: Waiting) -> None:
        """Queue a connection for a later turn. It must not be in a line already."""
        self._joined += 1
        self._waiting.setdefault(connection.address, deque()).append(connection)
        self.count_again()

    def serve(self) -> None:
        """Start an iteration: run turns until the limit is reached, or until one connection with
        more than a turn of input was served."""
        self.cost = 0
        joined = self._joined
        while self._waiting and self.cost < self.cost_max and self._joined == joined:
            self._pop().next_turn()

    def _pop(self) -> Waiting:
        address, connections = self._waiting.popitem(last=False)
        connection = connections.popleft()
        if connections:
            self._waiting[address] = connections
        return connection


class Turns:
    """The lines in which connections of one event loop wait for their turns.

    Attributes:
        own: connections that this process has opened.
        services: connections of the cluster's services.
        clients: other connections.
        ended: ended connections with calls that are not cancelled yet; a call costs 1.
        handshakes: accepted connections that wait for the start of their TLS handshake.
    """

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "Turns"]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.own = Line(self._schedule, ITERATION_COST_MAX, OWN_UNIT_BITS)
        self.services = Line(self._schedule, ITERATION_COST_MAX)
        self.clients = Line(self._schedule, ITERATION_COST_MAX)
        self.ended = Line(self._schedule, CANCELLED_CALLS_MAX)
        self.handshakes = Line(self._schedule, HANDSHAKES_MAX)
        self._lines = (self.own, self.services, self.clients, self.ended, self.handshakes)
        self._is_scheduled = False

    @classmethod
    def of_loop(cls) -> "Turns":
        """Return the lines of the running event loop."""
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
