"""A hostile peer: sends the bytes of an attack as fast as a server reads them.

`python -m support.http2_attacker PORT ATTACK CONNECTIONS` attacks until its standard input ends. If
the server closes a connection, the attacker opens it again.
"""

import argparse
import os
import select
import socket
import ssl
import time

from support import http2_frames as frames
from support.http2_attacks import ATTACKS, WATCH, Attack, Poll

# Differs from the address of honest callers: a server may refuse connections from it.
ADDRESS = "127.0.0.2"
CONNECT_SECONDS_MAX = 10.0
# Seconds between two failed attempts to connect.
AGAIN_SECONDS = 0.05
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


class Connection:
    """One connection of the attacker; opened again each time the server closes it."""

    def __init__(
        self, port: int, attack: Attack, once: bytes, again: bytes, tls: ssl.SSLContext | None
    ) -> None:
        self._port = port
        self._attack = attack
        self._once = frames.PREFACE + frames.settings({}) + once
        self._again = again
        self._tls = tls
        self._left = memoryview(b"")
        self._is_at_end = False
        self.socket: socket.socket | None = None
        self.due = 0.0
        """Time of the next write or connect, on `time.monotonic`'s clock."""

    @property
    def reads(self) -> bool:
        return self.socket is not None and self._attack.reads

    def writes(self, now: float) -> bool:
        return self.socket is not None and not self._is_at_end and now >= self.due

    def fileno(self) -> int:
        assert self.socket is not None
        return self.socket.fileno()

    def open(self, now: float) -> None:
        """Connect, or set the time of the next attempt."""
        try:
            plain = socket.create_connection(
                ("127.0.0.1", self._port), CONNECT_SECONDS_MAX, source_address=(ADDRESS, 0)
            )
        except OSError:
            self.due = now + AGAIN_SECONDS
            return
        try:
            self.socket = self._tls.wrap_socket(plain) if self._tls is not None else plain
        except OSError:
            plain.close()
            self.due = now + AGAIN_SECONDS
            return
        self.socket.setblocking(False)
        self._left = memoryview(self._once)
        self._is_at_end = False

    def step(self, *, may_read: bool, may_write: bool) -> None:
        """Read and write as much as the socket allows."""
        for may, act in ((may_read, self._read), (may_write, self._write)):
            if not may or self.socket is None:
                continue
            try:
                act(self.socket)
            except WOULD_BLOCK:
                continue
            except OSError:
                self._close()

    def _read(self, at: socket.socket) -> None:
        while at.recv(1 << 18):
            # `select` does not report bytes that TLS has already decrypted.
            if not isinstance(at, ssl.SSLSocket) or not at.pending():
                return
        self._close()

    def _write(self, at: socket.socket) -> None:
        if not self._left:
            if not self._again:
                at.shutdown(socket.SHUT_WR)
                self._is_at_end = True
                return
            self._left = memoryview(self._again)
        self._left = self._left[at.send(self._left) :]
        if not self._left and self._attack.pause_seconds:
            self.due = time.monotonic() + self._attack.pause_seconds

    def _close(self) -> None:
        assert self.socket is not None
        self.socket.close()
        self.socket = None


def main(port: int, attack: Attack, count: int, poll: Poll, tls: ssl.SSLContext | None) -> None:
    once = attack.first(poll)
    again = attack.again() if attack.again is not None else b""
    connections = [Connection(port, attack, once, again, tls) for _ in range(count)]
    print("ready", flush=True)
    # Unbuffered: `select` watches the descriptor.
    os.read(0, 1 << 10)
    while True:
        now = time.monotonic()
        for each in connections:
            if each.socket is None and now >= each.due:
                each.open(now)
        readers = [each for each in connections if each.reads]
        writers = [each for each in connections if each.writes(now)]
        later = [each.due - now for each in connections if each.due > now]
        watched: list[int | Connection] = [0, *readers]
        readable, writable, _ = select.select(watched, writers, [], min([1.0, *later]))
        if 0 in readable:
            return
        for each in {*readers, *writers}:
            each.step(may_read=each in readable, may_write=each in writable)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("connections", type=int)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--poll-path", default=WATCH)
    parser.add_argument("--poll-message", type=bytes.fromhex, default=b"")
    parser.add_argument("--poll-headers", type=bytes.fromhex, default=b"")
    given = parser.parse_args()
    main(
        given.port,
        ATTACKS[given.attack],
        given.connections,
        Poll(given.poll_path, given.poll_message, given.poll_headers),
        tls_context() if given.tls else None,
    )
