"""A long, bad wire between a host and the bridge: frames arrive late or never.

python -m hosts.wire HOST_INTERFACE BRIDGE_INTERFACE

Creates both interfaces (taps) in its own namespace and prints `ready`; the caller moves them. Lines
on standard input set the wire from then on: `delay_ms loss_percent`. At first it is short and good.
The lost frames depend on their number only.
"""

import fcntl
import heapq
import itertools
import os
import random
import selectors
import struct
import sys
import time

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x0002 | 0x1000
FRAME_BYTES_MAX = 1 << 16
# Frames in transit; more are lost, as in a router whose queue is full.
FRAMES_MAX = 10_000


def make_tap(name: str) -> int:
    """Create an interface; return the descriptor of its frames."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return descriptor


class Wire:
    """Transfers frames between two descriptors."""

    def __init__(self, one: int, other: int) -> None:
        self._other_end = {one: other, other: one}
        self._chance = random.Random(0)
        self._number = itertools.count()
        # Due time, number, destination, and the frame.
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self.delay_seconds = 0.0
        self.loss = 0.0

    def take(self, end: int) -> None:
        """Read the frames that wait at one end."""
        while True:
            try:
                frame = os.read(end, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            if self._chance.random() < self.loss or len(self._under_way) >= FRAMES_MAX:
                continue
            due = time.monotonic() + self.delay_seconds
            entry = (due, next(self._number), self._other_end[end], frame)
            heapq.heappush(self._under_way, entry)

    def give(self) -> float | None:
        """Send due frames; return seconds until the next one, None if none waits."""
        while self._under_way:
            wait_seconds = self._under_way[0][0] - time.monotonic()
            if wait_seconds > 0:
                return wait_seconds
            _, _, end, frame = heapq.heappop(self._under_way)
            try:
                os.write(end, frame)
            except OSError:
                # The interface is down or its queue is full: lost, like any frame on this wire.
                continue
        return None


def main(host_interface: str, bridge_interface: str) -> None:
    ends = make_tap(host_interface), make_tap(bridge_interface)
    wire = Wire(*ends)
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(wire.give()):
                if key.fd in ends:
                    wire.take(key.fd)
                    continue
                said = os.read(key.fd, 1 << 10).decode().split()
                if not said:
                    return
                wire.delay_seconds, wire.loss = float(said[-2]) / 1e3, float(said[-1]) / 1e2


if __name__ == "__main__":
    main(*sys.argv[1:])
