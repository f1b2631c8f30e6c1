"""Raw echo server that returns DATA frames unchanged, to measure the cost of client channels.

`python -m bench.layers.raw_server PORT`. It decodes no headers: all methods echo.
Each connection has a thread.
"""

import socket
import sys
import threading
from collections import deque

from bench.layers.frames import (
    ACK,
    ANSWER_HEADERS,
    ANSWER_TRAILERS,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    READ_BYTES,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    FrameReader,
    SendWindows,
    beginning,
    frame,
)

# Received bytes after which the connection's window is filled again.
WINDOW_BYTES_GIVEN = 1 << 29


class RawConnection:
    """Echoes the frames of one connection until the client closes it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._windows = SendWindows()
        # DATA and trailers that wait for room, in order: stream, payload or None for trailers.
        self._waiting = deque[tuple[int, bytes | None]]()
        self._out: list[bytes] = []
        self._received = 0

    def serve(self) -> None:
        reader = FrameReader()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._socket, self._socket.makefile("rb") as begun:
            if begun.read(len(PREFACE)) != PREFACE:
                return
            self._socket.sendall(beginning())
            while data := begun.read1(READ_BYTES):
                for kind, flags, stream, payload in reader.frames(data):
                    self._handle(kind, flags, stream, payload)
                self._answer()

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._received += len(payload)
            if payload:
                self._waiting.append((stream, payload))
        elif kind == HEADERS:
            self._out.append(frame(HEADERS, END_HEADERS, stream, ANSWER_HEADERS))
        elif kind == WINDOW_UPDATE:
            self._windows.update(stream, payload)
        elif kind == SETTINGS and not flags & ACK:
            self._windows.settings(payload)
            self._out.append(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif kind == RESET:
            self._waiting = deque(each for each in self._waiting if each[0] != stream)
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self._waiting.append((stream, None))

    def _answer(self) -> None:
        while self._waiting:
            stream, payload = self._waiting[0]
            if payload is None:
                flags = END_HEADERS | END_STREAM
                self._out.append(frame(HEADERS, flags, stream, ANSWER_TRAILERS))
                self._windows.streams.pop(stream, None)
            elif self._windows.room(stream) >= len(payload):
                self._windows.spend(stream, len(payload))
                self._out.append(frame(DATA, 0, stream, payload))
            else:
                break
            self._waiting.popleft()
        if self._received > WINDOW_BYTES_GIVEN:
            self._out.append(frame(WINDOW_UPDATE, 0, 0, self._received.to_bytes(4, "big")))
            self._received = 0
        if self._out:
            self._socket.sendall(b"".join(self._out))
            self._out.clear()


def main(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=64) as listening:
        while True:
            connected, _ = listening.accept()
            threading.Thread(target=RawConnection(connected).serve, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
