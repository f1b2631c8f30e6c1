"""Ports that stay reserved for a node while it is down.

The system uses ports of its ephemeral range (from 32768 on Linux, 49152 elsewhere) for outgoing
connections. A node that listened there could find its port in use after a restart.

Clusters divide the ports below that range into blocks. A block belongs to the process that has its
first port bound, until that process ends. So two clusters that start at the same moment never
choose the same port, although they listen only a second later, and no cluster uses a port that
another one keeps for a node that is down.
"""

import random
import socket
import threading
from collections.abc import Collection
from functools import cache
from typing import Self

LOWEST, HIGHEST = 20_000, 32_000
# More than the nodes of the largest cluster.
BLOCK_PORTS = 64
# Random numbers of the system: programs with equal seeds must not choose equal ports.
CHANCE = random.SystemRandom()


def can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of the last run in TIME_WAIT are ignored.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            # Linux lets two sockets with SO_REUSEADDR bind while neither listens.
            probe.listen(1)
        except OSError:
            return False
        return True


class PortBlock:
    """A block of ports that owners of other blocks do not use, until `close`.

    Args:
        around: prefer the block of this port; None for any block.

    Raises:
        OSError: no block is free.
    """

    def __init__(self, around: int | None = None) -> None:
        first, self._guard = claim(around)
        # Several threads may choose at the same time.
        self._changes = threading.Lock()
        # In random order: the block's next owner should not choose ports of a stopped node.
        self._ports = CHANCE.sample(range(first + 1, first + BLOCK_PORTS), BLOCK_PORTS - 1)

    def choose(self, excluded: Collection[int] = ()) -> int:
        """Return a free port of the block, the one that was chosen least recently.

        Args:
            excluded: ports that are not chosen.

        Raises:
            OSError: no port is free.
        """
        with self._changes:
            for port in self._ports:
                if port not in excluded and can_listen(port):
                    self._ports.remove(port)
                    self._ports.append(port)
                    return port
        raise OSError(f"no free port between {min(self._ports)} and {max(self._ports)}")

    def close(self) -> None:
        """Release the block. May be called twice."""
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(around: int | None) -> tuple[int, socket.socket]:
    """Claim a free block; return its first port, and the socket that is bound to it."""
    firsts = list(range(LOWEST, HIGHEST - BLOCK_PORTS + 1, BLOCK_PORTS))
    CHANCE.shuffle(firsts)
    if around is not None:
        firsts.sort(key=lambda first: not first <= around < first + BLOCK_PORTS)
    for first in firsts:
        # Without SO_REUSEADDR only one socket can be bound. It does not listen, so a connection to
        # it is refused.
        guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        return first, guard
    raise OSError(f"no free block of {BLOCK_PORTS} ports between {LOWEST} and {HIGHEST}")


@cache
def process_block() -> PortBlock:
    return PortBlock()


def choose_port(excluded: Collection[int] = ()) -> int:
    """Return a free port of a block that this process keeps until its end.

    Args:
        excluded: ports that are not chosen.
    """
    return process_block().choose(excluded)
