"""An honest caller on raw sockets: calls a server's health service, and measures the replies.

`python -m support.honest_caller PORT [CA]` reads lines "SECONDS" from its standard input. For each
it connects, calls for that time, and prints rate and p99 as JSON. It ends at the end of the input.
"""

import json
import socket
import ssl
import sys
import time
from collections.abc import Iterator

from hpack import Decoder

from support import http2_frames as frames
from support.http2_attacks import call
from support.waiting import hold_up

CALLS_PER_SECOND = 100
# Timeout of a call. A failed call counts as a call of this duration.
CALL_SECONDS_MAX = 5.0


class CallFailed(Exception):
    """A call got no reply with status OK; the text is the reason."""


class Caller:
    """Calls over one connection, one after another.

    Args:
        port: port of the server on 127.0.0.1.
        ca: PEM file of the authority that signed the server's certificate; None: no TLS.
    """

    def __init__(self, port: int, ca: str | None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), CALL_SECONDS_MAX)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            context.set_alpn_protocols(["h2"])
            try:
                self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
            except OSError:
                plain.close()
                raise
        self._socket.sendall(frames.PREFACE + frames.settings({}))
        self._received = b""
        self._decoder = Decoder()
        self._stream_id = -1

    def call(self) -> None:
        """Make a call. Raises CallFailed or OSError: the connection cannot be used further."""
        self._stream_id += 2
        self._socket.settimeout(CALL_SECONDS_MAX)
        self._socket.sendall(call(self._stream_id))
        status: bytes | None = None
        for kind, flags, stream_id, payload in self._frames():
            if kind == frames.SETTINGS and not flags & frames.ACK:
                self._socket.sendall(frames.frame(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.PING and not flags & frames.ACK:
                self._socket.sendall(frames.frame(frames.PING, frames.ACK, 0, payload))
            elif kind == frames.HEADERS:
                for name, value in self._decoder.decode(payload, raw=True):
                    if name == b"grpc-status":
                        status = value
            elif kind == frames.DATA and payload:
                self._socket.sendall(frames.window_update(0, len(payload)))
            elif kind in (frames.GOAWAY, frames.RST_STREAM):
                raise CallFailed(f"frame of type {kind}: {payload!r}")
            if stream_id == self._stream_id and flags & frames.END_STREAM:
                if status != b"0":
                    raise CallFailed(f"status {status!r}")
                return

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield the next frames: kind, flags, stream and payload."""
        while True:
            head = self._exactly(frames.HEAD_BYTES)
            word, flags, stream_id = frames.HEAD.unpack(head)
            yield word & 0xFF, flags, stream_id, self._exactly(word >> 8)

    def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            received = self._socket.recv(1 << 16)
            if not received:
                raise CallFailed("the server has ended the connection")
            self._received += received
        found, self._received = self._received[:count], self._received[count:]
        return found

    def close(self) -> None:
        self._socket.close()


def measured(port: int, ca: str | None, seconds: float) -> dict[str, float | str]:
    """Call at most `CALLS_PER_SECOND` times a second; return the figures."""
    took: list[float] = []
    failed, failure = 0, ""
    caller: Caller | None = None
    due = began = time.monotonic()
    while (called := time.monotonic()) < began + seconds:
        try:
            if caller is None:
                caller = Caller(port, ca)
            caller.call()
            took.append(time.monotonic() - called)
        except (OSError, CallFailed) as broken:
            failed, failure = failed + 1, repr(broken)
            took.append(CALL_SECONDS_MAX)
            if caller is not None:
                caller.close()
                caller = None
        due = max(due + 1 / CALLS_PER_SECOND, time.monotonic())
        hold_up(due - time.monotonic())
    lasted = time.monotonic() - began
    if caller is not None:
        caller.close()
    took.sort()
    return {
        "per_second": (len(took) - failed) / lasted,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
        "failed": failed,
        "failure": failure,
    }


def main(port: int, ca: str | None) -> None:
    for line in sys.stdin:
        print(json.dumps(measured(port, ca, float(line))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
