"""A bound on the connections of one address: the newest beyond it are closed.

    every second, with more open files than half the bound:
        this process's own sockets  →  those of the listening port, by peer address
        an address beyond the bound →  its newest connections are shut down

Sockets are read by their numbers and never duplicated: closing a duplicate of a file gives up the
POSIX locks that the process has on it, the store's among them. So between a look and a shutdown a
number may have got another meaning. A shutdown of what is no socket fails; the number is compared
with the socket's inode just before; and should another connection have it even so, its caller makes
a new one.

Linux only: elsewhere there is no /proc/self/fd, and no bound.
"""

import ipaddress
import logging
import os
import socket
import stat
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, counter

log = logging.getLogger(__name__)

OWN_FILES = "/proc/self/fd"
LOOK_SECONDS = 1.0
SAY_SECONDS = 60.0
ADDRESSES_SAID_MAX = 5

CLOSED = counter(
    "rockoon_connections_closed_total",
    "Connections closed because their address had more than connections_per_address_max",
)


# Without slots: a class can inherit from one class with slots only, and there are other parts.
@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """The part of a service's settings that is about connections; to be inherited."""

    connections_per_address_max: int = setting(
        2000,
        "connections that one address may have at once, the newest beyond are closed (Linux; a "
        "proxy and all that is behind it are one address); 0 means no bound",
        minimum=0,
        maximum=1_000_000,
    )


class Connection(NamedTuple):
    """A connection that somebody made to the listening port."""

    address: str
    first_look: int
    """Number of the look that found it first: by this alone, connections have an order in time."""
    inode: int
    """Of the socket. The kernel gives each processor a range, so it orders only roughly."""


def beyond(connections: Iterable[Connection], per_address_max: int) -> list[Connection]:
    """The newest connections of each address that has more than it may. Pure."""
    by_address: dict[str, list[Connection]] = defaultdict(list)
    for each in connections:
        by_address[each.address].append(each)
    return [
        each
        for theirs in by_address.values()
        if len(theirs) > per_address_max
        for each in sorted(theirs)[per_address_max:]
    ]


def one_address(host: str) -> str:
    """A peer's address; IPv4 within IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


def caller_of(fd: int, port: int) -> str | None:
    """Who is at the other end of a socket of `port`; None for anything else."""
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if borrowed.getsockname()[1] != port:
            return None
        return one_address(borrowed.getpeername()[0])
    except OSError:
        # The listening socket itself, or a connection that has just ended.
        return None
    finally:
        borrowed.detach()


def shut_down(fd: int, inode: int) -> bool:
    """End a connection; False when the number is another's by now, or it has ended."""
    try:
        if os.fstat(fd).st_ino != inode:
            return False
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        borrowed.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        borrowed.detach()
    return True


class ConnectionBound:
    """How many connections an address may have at one listener; counts what was closed for it.

    Args:
        per_address_max: 0 for no bound.
        look_seconds: how often connections are looked at.
    """

    def __init__(self, per_address_max: int, look_seconds: float = LOOK_SECONDS) -> None:
        self.per_address_max = per_address_max
        self.look_seconds = look_seconds
        # By port: each is written by the thread of its listener alone.
        self._closed: dict[int, int] = {}

    @property
    def closed(self) -> int:
        """Connections closed since the process began."""
        return sum(list(self._closed.values()))

    def note_closed(self, port: int, count: int) -> None:
        self._closed[port] = self._closed.get(port, 0) + count

    @property
    def holds(self) -> bool:
        """Whether there is a bound, and this system lets it be held."""
        if self.per_address_max and not os.path.isdir(OWN_FILES):
            log.warning("connections per address are not bounded: there is no %s", OWN_FILES)
            return False
        return self.per_address_max > 0


class ConnectionGuard:
    """Holds the bound at one port, in a thread of its own; `start` and `stop` it.

    Args:
        port: the port listened on.
        bound: how many, and where it is counted.
    """

    def __init__(self, port: int, bound: ConnectionBound) -> None:
        self._port = port
        self._bound = bound
        self._ended = threading.Event()
        # The thread's alone from here on.
        self.looks = 0
        # By inode: the connection, or None for another socket and for one that was shut down.
        self._known: dict[int, Connection | None] = {}
        self._unsaid: Counter[str] = Counter()
        self._say_after = 0.0
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._bound.look_seconds):
            self.look()

    def look(self) -> None:
        """Close what is beyond the bound now."""
        per_address_max = self._bound.per_address_max
        try:
            files = os.listdir(OWN_FILES)
        except OSError:
            # It takes a descriptor itself; there may be one at the next look.
            return
        # Looking begins below the bound, so that older connections are known by then.
        if len(files) <= per_address_max // 2:
            return
        numbers = self._sockets(files)
        closed: Counter[str] = Counter()
        for each in beyond(filter(None, self._known.values()), per_address_max):
            if shut_down(numbers[each.inode], each.inode):
                closed[each.address] += 1
            # Open until the server has noticed; to be counted and closed once.
            self._known[each.inode] = None
        if closed:
            self._bound.note_closed(self._port, closed.total())
            self._unsaid += closed
        self._say()

    def _sockets(self, files: Iterable[str]) -> dict[int, int]:
        """Descriptors by inode of the sockets that are open; `_known` is brought up to them."""
        self.looks += 1
        numbers: dict[int, int] = {}
        for fd in map(int, files):
            try:
                status = os.fstat(fd)
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                numbers[status.st_ino] = fd
        known: dict[int, Connection | None] = {}
        for inode, fd in numbers.items():
            if inode in self._known:
                known[inode] = self._known[inode]
            else:
                address = caller_of(fd, self._port)
                known[inode] = Connection(address, self.looks, inode) if address else None
        self._known = known
        return numbers

    def _say(self) -> None:
        now = time.monotonic()
        if self._unsaid and now >= self._say_after:
            log.warning(
                "closed connections beyond the %d that an address may have "
                "(connections_per_address_max): %s",
                self._bound.per_address_max,
                ", ".join(
                    f"{count} of {address}"
                    for address, count in self._unsaid.most_common(ADDRESSES_SAID_MAX)
                ),
            )
            self._unsaid.clear()
            self._say_after = now + SAY_SECONDS


def with_connections(
    table: Iterable[Metric], measure: Measure, bound: ConnectionBound
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and how many connections were closed."""

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), CLOSED.at(bound.closed)]

    return (*table, CLOSED), measured
