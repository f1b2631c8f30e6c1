"""Turns: how connections with much input share the event loop.

A connection handles at most one turn of input at once (`Limits.turn_bytes`). If it has more, it
stops reading and joins a line. In each iteration of the loop one connection of the line has its
next turn, so any number of busy or hostile connections delay a timer, a lease or another call by
one turn only. Addresses are served in rotation, and the connections of an address in rotation:
twenty connections of one address have the share of one.

Connections between the services of a cluster have a line of their own, which is served in each
iteration too: replication does not wait behind clients.
"""

import asyncio
from collections import OrderedDict, deque
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary


class Waiting(Protocol):
    """A connection in the line.

    Attributes:
        address: of its peer.
        is_internal: its peer is a service of the cluster, or this side has opened it.
    """

    address: str
    is_internal: bool

    def next_turn(self) -> None:
        """Handle one turn; join the line again if input is left."""
        ...


class _Line:
    """Connections by address, in rotation."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def append(self, connection: Waiting) -> None:
        self._waiting.setdefault(connection.address, deque()).append(connection)

    def pop(self) -> Waiting:
        address, connections = self._waiting.popitem(last=False)
        connection = connections.popleft()
        if connections:
            self._waiting[address] = connections
        return connection


class Turns:
    """The line of one event loop."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "Turns"]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines = (_Line(), _Line())
        self._is_scheduled = False

    @classmethod
    def of_loop(cls) -> "Turns":
        """The line of the running loop."""
        loop = asyncio.get_running_loop()
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    def join(self, connection: Waiting) -> None:
        """Let a connection have a turn later. It must not be in the line already."""
        self._lines[connection.is_internal].append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_scheduled = False
        for line in self._lines:
            if line:
                try:
                    line.pop().next_turn()
                finally:
                    if any(self._lines):
                        self._schedule()
