"""Ports that stay ours while a node is down.

The system hands out ports of its ephemeral range (from 32768 on Linux, 49152 elsewhere) to
outgoing connections, so a node that listened there could find its port taken when it comes back.

Below that range clusters share the ports out in blocks. A block belongs to the process that has its
first port bound, and goes with it, however it ends. So two clusters that start at the same moment
never choose the same port, although both only begin to listen a second later; and what one of them
keeps for a node that is down, the other does not take.
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
# The system's own: programs that seed theirs alike are not to choose alike.
CHANCE = random.SystemRandom()


def can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a server does: connections of the last run in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            # Linux lets two sockets bind with SO_REUSEADDR while neither listens.
            probe.listen(1)
        except OSError:
            return False
        return True


class PortBlock:
    """Ports of which no other block's owner chooses any, until `close`.

    Args:
        around: a port whose block is taken if it is free, else any; None means any.

    Raises:
        OSError: every block is taken.
    """

    def __init__(self, around: int | None = None) -> None:
        first, self._guard = claim(around)
        # Also for threads that choose at once.
        self._changes = threading.Lock()
        # Not in order: who has the block next hardly chooses what a stopped node will want again.
        self._ports = CHANCE.sample(range(first + 1, first + BLOCK_PORTS), BLOCK_PORTS - 1)

    def choose(self, taken: Collection[int] = ()) -> int:
        """A port of the block that nobody listens on: the one whose last choice is longest ago.

        Args:
            taken: ports that it must not be.

        Raises:
            OSError: there is none.
        """
        with self._changes:
            for port in self._ports:
                if port not in taken and can_listen(port):
                    self._ports.remove(port)
                    self._ports.append(port)
                    return port
        raise OSError(f"no free port between {min(self._ports)} and {max(self._ports)}")

    def close(self) -> None:
        """Leave the block to others. May be called twice."""
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(around: int | None) -> tuple[int, socket.socket]:
    """A free block: its first port, and the socket that has it bound."""
    firsts = list(range(LOWEST, HIGHEST - BLOCK_PORTS + 1, BLOCK_PORTS))
    CHANCE.shuffle(firsts)
    if around is not None:
        firsts.sort(key=lambda first: not first <= around < first + BLOCK_PORTS)
    for first in firsts:
        # Without SO_REUSEADDR one socket alone can be bound; it does not listen, so whoever
        # connects to it by mistake is refused.
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


def choose_port(taken: Collection[int] = ()) -> int:
    """A port that nobody listens on, of a block that this process keeps to its end.

    Args:
        taken: ports that it must not be.
    """
    return process_block().choose(taken)
