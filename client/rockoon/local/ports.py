"""Ports that stay ours while a node is down.

The system hands out ports of its ephemeral range (from 32768 on Linux, 49152 elsewhere) to
outgoing connections, so a node that listened there could find its port taken when it comes back.
"""

import random
import socket
from collections.abc import Collection

LOWEST, HIGHEST = 20_000, 32_000
TRIES_MAX = 1_000


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


def choose_port(taken: Collection[int]) -> int:
    """A port below the ephemeral range that nobody listens on and that is not in `taken`."""
    for _ in range(TRIES_MAX):
        port = random.randrange(LOWEST, HIGHEST)
        if port not in taken and can_listen(port):
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST}")
