"""Minimal HTTP/2 for raw peers: frames with precomputed headers, and flow control."""

import socket
import struct
from collections.abc import Iterator
from select import select

from bench.compare.programs import MeasureFailed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
WINDOW_DEFAULT, WINDOW_MAX = 65_535, (1 << 31) - 1
HEAD_BYTES, FRAME_BYTES_MAX, READ_BYTES = 9, 16_384, 1 << 16
SECONDS_MAX = 60.0
_NUMBER, _SETTING, PREFIX = struct.Struct(">I"), struct.Struct(">HI"), struct.Struct(">BI")

Frame = tuple[int, int, int, bytes]
"""An HTTP/2 frame: kind, flags, stream and payload."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + _NUMBER.pack(stream)
    return head + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a header without a table entry. `name`: encoded name, or number of a static table
    entry."""
    return name + bytes((len(value),)) + value


_CONTENT_TYPE = literal(b"\x0f\x10", b"application/grpc")
ANSWER_HEADERS = b"\x88" + _CONTENT_TYPE
ANSWER_TRAILERS = literal(literal(b"\0", b"grpc-status"), b"0")


def call_headers(path: str, authority: str) -> bytes:
    """Return the encoded headers of a gRPC call over plain HTTP."""
    named = literal(b"\x04", path.encode()) + literal(b"\x01", authority.encode())
    return b"\x83\x86" + named + literal(literal(b"\0", b"te"), b"trailers") + _CONTENT_TYPE


def message(body: bytes) -> bytes:
    """Return a message with its gRPC prefix, as in DATA frames."""
    return PREFIX.pack(0, len(body)) + body


def beginning() -> bytes:
    """Return the first bytes of a connection: SETTINGS, and the largest windows."""
    settings = frame(SETTINGS, 0, 0, _SETTING.pack(INITIAL_WINDOW_SIZE, WINDOW_MAX))
    return settings + frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(WINDOW_MAX - WINDOW_DEFAULT))


class FrameReader:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._kept = b""

    def frames(self, data: bytes) -> Iterator[Frame]:
        data, at = self._kept + data, 0
        while len(data) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            stream = _NUMBER.unpack_from(data, at + 5)[0]
            yield data[at + 3], data[at + 4], stream, data[at + HEAD_BYTES : end]
            at = end
        self._kept = data[at:]


class SendWindows:
    """Flow-control windows: number of DATA bytes that the peer still allows."""

    def __init__(self) -> None:
        self.connection = self.initial = WINDOW_DEFAULT
        self.streams = dict[int, int]()

    def room(self, stream: int) -> int:
        return min(self.connection, self.streams.get(stream, self.initial))

    def spend(self, stream: int, count: int) -> None:
        self.connection -= count
        self.streams[stream] = self.streams.get(stream, self.initial) - count

    def settings(self, payload: bytes) -> None:
        for name, value in _SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                more, self.initial = value - self.initial, value
                self.streams = {each: left + more for each, left in self.streams.items()}

    def update(self, stream: int, payload: bytes) -> None:
        more = _NUMBER.unpack(payload)[0] & WINDOW_MAX
        if stream:
            self.streams[stream] = self.streams.get(stream, self.initial) + more
        else:
            self.connection += more


class RawClient:
    """A raw client connection with at most one call. It decodes no headers; it detects them by
    their flags.

    Raises:
        OSError: there is no server.
        MeasureFailed: the server ended the connection or reset the call, or is silent.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._reader = FrameReader()
        self._windows = SendWindows()
        self._authority = f"127.0.0.1:{port}"
        self._out = bytearray()
        self._stream = -1
        self._is_known = self.has_ended = False
        self.data_bytes = 0
        self.last_data = b""
        self._send(PREFACE + beginning())

    def wait_known(self) -> None:
        """Wait until the server has acknowledged the client's SETTINGS."""
        while not self._is_known:
            self._step()

    def begin(self, path: str) -> None:
        self._stream += 2
        self.has_ended = False
        self.data_bytes = 0
        headers = call_headers(path, self._authority)
        self._send(frame(HEADERS, END_HEADERS, self._stream, headers))

    def data(self, payload: bytes, *, ends: bool = False) -> bytes:
        """Return a payload as DATA frames of the call, as bytes for `send`."""
        return frame(DATA, END_STREAM if ends else 0, self._stream, payload)

    def send(self, ready: bytes, data_bytes: int) -> None:
        """Send encoded frames as soon as the windows have room for their DATA bytes."""
        while self._windows.room(self._stream) < data_bytes:
            self._step()
        self._windows.spend(self._stream, data_bytes)
        self._send(ready)

    def wait_data(self, count: int) -> None:
        """Wait until `count` bytes of DATA have arrived."""
        while self.data_bytes < count:
            self._step()

    def wait_end(self) -> None:
        while not self.has_ended:
            self._step()

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        self._out += data
        while self._out:
            self._step()

    def _step(self) -> None:
        """Wait until the socket is readable or writable, and read or write."""
        wanted = [self._socket] if self._out else []
        readable, writable, _ = select([self._socket], wanted, [], SECONDS_MAX)
        if not (readable or writable):
            raise MeasureFailed("the server is silent, or does not read")
        if writable:
            del self._out[: self._socket.send(self._out)]
        if readable:
            self._received(self._socket.recv(READ_BYTES))

    def _received(self, data: bytes) -> None:
        if not data:
            raise MeasureFailed("the server ended the connection")
        for kind, flags, stream, payload in self._reader.frames(data):
            if kind == DATA:
                self.data_bytes += len(payload)
                self.last_data = payload or self.last_data
            elif kind == WINDOW_UPDATE:
                self._windows.update(stream, payload)
            elif kind == SETTINGS and flags & ACK:
                self._is_known = True
            elif kind == SETTINGS:
                self._windows.settings(payload)
                self._out += frame(SETTINGS, ACK, 0)
            elif kind == PING and not flags & ACK:
                self._out += frame(PING, ACK, 0, payload)
            elif kind in (RESET, GOAWAY):
                raise MeasureFailed(f"the server ended it: frame {kind}, {payload!r}")
            if kind in (DATA, HEADERS) and flags & END_STREAM and stream == self._stream:
                self.has_ended = True
