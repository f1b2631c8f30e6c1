"""Minimal HTTP/2 for raw peers: frames with precomputed headers, and flow control."""

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from select import select

from bench.compare.programs import MeasureFailed
from bench.layers import echo

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
    their flags. Raises OSError: there is no server; MeasureFailed: the server ended the connection
    or reset the call, or is silent."""

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


MESSAGE = message(bytes(100))
BURST_MESSAGES = 100_000
# Messages of one write. They fill most of a DATA frame of 16 KiB.
WRITE_MESSAGES = 125


def burst(port: int, path: str, *, in_full_frames: bool, messages: int = BURST_MESSAGES) -> int:
    """Send a stream of messages as fast as flow control allows.

    Args:
        path: method: `echo.STREAM` or `echo.COUNT`.
        messages: number of messages, a multiple of `WRITE_MESSAGES`.
        in_full_frames: put `WRITE_MESSAGES` messages into a DATA frame, like grpc's C library;
            otherwise one message, like grpc-go and grpc-java.

    Returns:
        `messages`.

    Raises:
        MeasureFailed: the server ended the call, or its answer is wrong.
    """
    client = RawClient(port)
    try:
        client.begin(path)
        if in_full_frames:
            ready = client.data(MESSAGE * WRITE_MESSAGES)
        else:
            ready = client.data(MESSAGE) * WRITE_MESSAGES
        for _ in range(messages // WRITE_MESSAGES):
            client.send(ready, WRITE_MESSAGES * len(MESSAGE))
        client.send(client.data(b"", ends=True), 0)
        client.wait_end()
        answered = message(str(messages).encode())
        if path == echo.STREAM:
            is_right = client.data_bytes == messages * len(MESSAGE)
        else:
            is_right = client.data_bytes == len(answered) and client.last_data == answered
        if not is_right:
            raise MeasureFailed(f"the server answered {client.data_bytes} bytes to a burst")
    finally:
        client.close()
    return messages


def one_by_one(port: int, seconds: float) -> int:
    """Send each message of a stream after the echo of the one before; return the number of
    messages."""
    client = RawClient(port)
    try:
        client.begin(echo.STREAM)
        ready, sent, end = client.data(MESSAGE), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            client.send(ready, len(MESSAGE))
            sent += 1
            client.wait_data(sent * len(MESSAGE))
        client.send(client.data(b"", ends=True), 0)
        client.wait_end()
    finally:
        client.close()
    return sent


@contextmanager
def connected(port: int, count: int) -> Iterator[list[RawClient]]:
    """Context manager that opens `count` connections; both sides have acknowledged the SETTINGS."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = RawClient(port)
            stack.callback(client.close)
            client.wait_known()
            clients.append(client)
        yield clients


def call_each(clients: list[RawClient]) -> None:
    """Make one unary call on each connection."""
    for client in clients:
        client.begin(echo.ECHO)
        client.send(client.data(MESSAGE, ends=True), len(MESSAGE))
        client.wait_end()


def check(port: int) -> None:
    """Make one call of each method and check the replies. Raises MeasureFailed: a reply is wrong.
    h2load would not detect this, because it only counts replies."""
    long = message(echo.LONG)
    for path, request, answer in (
        (echo.ECHO, MESSAGE, MESSAGE),
        (echo.IN, long, message(str(echo.LONG_BYTES).encode())),
        (echo.OUT, message(b""), long),
        (echo.STREAM, MESSAGE * 2, MESSAGE * 2),
        (echo.COUNT, MESSAGE * 2, message(b"2")),
    ):
        client = RawClient(port)
        try:
            client.begin(path)
            # A server may answer one request before its stream ends, and then reset the stream.
            for at in range(0, len(request), FRAME_BYTES_MAX):
                part = request[at : at + FRAME_BYTES_MAX]
                is_last = at + len(part) == len(request)
                client.send(client.data(part, ends=is_last), len(part))
            client.wait_end()
            if client.data_bytes != len(answer):
                raise MeasureFailed(f"{path}: the answer has {client.data_bytes} bytes")
        finally:
            client.close()
