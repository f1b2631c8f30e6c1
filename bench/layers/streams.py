"""Load of message streams and idle connections by a raw client that sends precomputed bytes."""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.compare.programs import MeasureFailed
from bench.layers import echo
from bench.layers.frames import FRAME_BYTES_MAX, RawClient, message

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
    """Make one call of each method and check the replies.

    Raises:
        MeasureFailed: a reply is wrong. h2load would not detect this, because it only counts
            replies.
    """
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
