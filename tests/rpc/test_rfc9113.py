"""Rules of RFC 9113 and RFC 7541 as a table: bytes that a peer sends, and permitted reactions.

The cases are those of h2spec, a judge of HTTP/2 servers, and some that RFC 9113 has added. An
endpoint may treat a stream error as a connection error (section 5.4.1), so each reset that is
required may be a GOAWAY. Where a rule asks for a more specific code, PROTOCOL_ERROR is permitted in
a GOAWAY: the h2 crate uses it, and the connection ends all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode
from support import http2_frames as wire
from support.session_pairs import (
    IMPLEMENTATIONS,
    MANY,
    RawClient,
    RawPeer,
    RawServer,
    of_kind,
    request,
    request_pairs,
    whole_request,
)

PROTOCOL, FLOW, CLOSED, SIZE, REFUSED, COMPRESSION, CALM = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
    ErrorCode.STREAM_CLOSED,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.REFUSED_STREAM,
    ErrorCode.COMPRESSION_ERROR,
    ErrorCode.ENHANCE_YOUR_CALM,
)
WINDOW_MAX = (1 << 31) - 1
FRAME_BYTES_MAX = 16 << 10
LIMITS = Limits(frame_bytes_max=FRAME_BYTES_MAX, streams_max=3)

Step = bytes | Callable[[RawPeer], object]


@dataclass(frozen=True)
class Permitted:
    """Reactions that a rule permits.

    Attributes:
        goaway: codes of a GOAWAY.
        reset: codes of a RST_STREAM for the stream.
        works: the connection may work on, without a reset of the stream.
        message: must arrive.
    """

    goaway: frozenset[ErrorCode] = frozenset()
    reset: frozenset[ErrorCode] = frozenset()
    works: bool = False
    message: bytes | None = None


def broken(*codes: ErrorCode) -> Permitted:
    """A connection error."""
    return Permitted(goaway=frozenset(codes))


def stream_error(*codes: ErrorCode, works: bool = False) -> Permitted:
    return Permitted(goaway=frozenset(codes), reset=frozenset(codes), works=works)


WORKS = Permitted(works=True)
# A server may close a connection whose client has sent GOAWAY and has no open call.
LEAVES = Permitted(works=True, goaway=frozenset((ErrorCode.NO_ERROR,)))
ARRIVES = Permitted(works=True, message=b"request")


@dataclass(frozen=True)
class Case:
    section: str
    name: str
    steps: tuple[Step, ...]
    permitted: Permitted
    stream: int = 1


def case(section: str, name: str, *steps: Step, to: Permitted, stream: int = 1) -> Case:
    return Case(section, name, steps, to, stream)


def answer(peer: RawPeer) -> None:
    """End the stream 1 on the server's side."""
    peer.session.respond(1, b"answer")
    peer.read()


def cancel(peer: RawPeer) -> None:
    peer.session.reset(1, ErrorCode.CANCEL)
    peer.read()


def block_of(**fields: Any) -> bytes:
    return wire.block(request_pairs(**fields))


def malformed(pairs: wire.Pairs) -> bytes:
    return wire.headers(1, pairs) + BODY


def with_last(name: str | bytes, value: str | bytes) -> bytes:
    """A request with one header more."""
    return malformed([*request_pairs(), (name, value)])


def with_first(name: str, value: str) -> bytes:
    return malformed([(name, value), *request_pairs()])


def without(*names: str) -> wire.Pairs:
    return [pair for pair in request_pairs() if pair[0] not in names]


def replaced(name: str, value: str | bytes) -> wire.Pairs:
    return [(each, value if each == name else old) for each, old in request_pairs()]


def with_block(block: bytes) -> bytes:
    """A request whose header block ends with bytes."""
    return wire.frame(wire.HEADERS, wire.END_HEADERS, 1, block_of() + block) + BODY


def announced(length: str) -> bytes:
    """HEADERS with a content-length."""
    return request(1, extra=[("content-length", length)])


def body(stream: int = 1) -> bytes:
    return wire.data(stream, wire.framed(b"request"), end=True)


BODY = body()
OPEN = request(1, path=MANY)
WHOLE = whole_request(1)
BLOCK = block_of()
PRIORITIES = (0).to_bytes(4) + b"\x0f"
ON_ITSELF = (1).to_bytes(4) + b"\x0f"


def begun(*, end: bool = False, block: bytes = BLOCK, flags: int = 0) -> bytes:
    """HEADERS without END_HEADERS."""
    return wire.frame(wire.HEADERS, flags | (wire.END_STREAM if end else 0), 1, block)


def continued(block: bytes = b"", *, end: bool = True, stream: int = 1) -> bytes:
    return wire.frame(wire.CONTINUATION, wire.END_HEADERS if end else 0, stream, block)


def priority(stream: int, payload: bytes = PRIORITIES) -> bytes:
    return wire.frame(wire.PRIORITY, 0, stream, payload)


def sized(sizes: bytes) -> bytes:
    """A request whose header block begins with table sizes."""
    return wire.frame(wire.HEADERS, wire.END_HEADERS, 1, sizes + BLOCK) + BODY


def integer(value: int, prefix: int, flags: int) -> bytes:
    """An integer of HPACK (RFC 7541, section 5.1)."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes((flags | value,))
    out = bytearray((flags | most,))
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


FRAMES = [
    case("3.4", "a preface and SETTINGS", WHOLE, to=ARRIVES),
    case("4.1", "a frame of an unknown type", wire.frame(0x16, 0, 0, b"x"), WHOLE, to=ARRIVES),
    case("4.1", "undefined flags", wire.frame(wire.PING, 0xFE, 0, bytes(8)), to=WORKS),
    case(
        "4.1",
        "the reserved bit is set",
        wire.frame(wire.PING, 0, 1 << 31, bytes(8)),
        OPEN + wire.frame(wire.DATA, 1, 1 << 31 | 1, wire.framed(b"request")),
        to=ARRIVES,
    ),
    case("4.2", "DATA of 2^14 bytes", OPEN, wire.data(1, bytes(FRAME_BYTES_MAX)), to=WORKS),
    case(
        "4.2",
        "DATA that is too long",
        OPEN,
        wire.data(1, bytes(FRAME_BYTES_MAX + 1)),
        to=stream_error(SIZE),
    ),
    case(
        "4.2",
        "HEADERS that are too long",
        wire.frame(wire.HEADERS, wire.END_HEADERS, 1, BLOCK + bytes(FRAME_BYTES_MAX)),
        to=broken(SIZE),
    ),
    case(
        "4.3",
        "a header block that cannot be decoded",
        with_block(b"\x40\x7f\xff\xff\xff\xff\xff"),
        to=broken(COMPRESSION),
    ),
    case(
        "4.3",
        "PRIORITY within a header block",
        begun() + priority(1) + continued(),
        to=broken(PROTOCOL),
    ),
    case("4.3", "PING within a header block", begun() + wire.ping(), to=broken(PROTOCOL)),
    case("4.3", "GOAWAY within a header block", begun() + wire.goaway(0), to=broken(PROTOCOL)),
    case("4.3", "RST_STREAM within a block", begun() + wire.rst_stream(1), to=broken(PROTOCOL)),
    case("4.3", "HEADERS within a header block", begun() + request(3), to=broken(PROTOCOL)),
    case(
        "4.3",
        "an unknown frame within a block",
        begun() + wire.frame(0x16, 0, 1),
        to=broken(PROTOCOL),
    ),
]

STREAMS = [
    case("5.1", "DATA on an idle stream", wire.data(1, b"x"), to=broken(PROTOCOL, CLOSED)),
    case("5.1", "RST_STREAM on an idle stream", wire.rst_stream(1), to=broken(PROTOCOL)),
    case("5.1", "RST_STREAM on an idle even stream", wire.rst_stream(2), to=broken(PROTOCOL)),
    case("5.1", "WINDOW_UPDATE on an idle stream", wire.window_update(1, 9), to=broken(PROTOCOL)),
    case("5.1", "CONTINUATION on an idle stream", continued(BLOCK), to=broken(PROTOCOL)),
    case("5.1", "PRIORITY on an idle stream", priority(5), WHOLE, to=ARRIVES),
    case("5.1", "DATA behind the end", WHOLE, wire.data(1, b"x"), to=stream_error(CLOSED)),
    case("5.1", "HEADERS behind the end", WHOLE, request(1), to=stream_error(CLOSED, PROTOCOL)),
    case(
        "5.1", "CONTINUATION behind the end", WHOLE, continued(BLOCK), to=broken(CLOSED, PROTOCOL)
    ),
    case("5.1", "WINDOW_UPDATE behind the end", WHOLE, wire.window_update(1, 1), to=WORKS),
    case("5.1", "PRIORITY behind the end", WHOLE, priority(1), to=WORKS),
    case("5.1", "RST_STREAM behind the end", WHOLE, wire.rst_stream(1), to=WORKS),
    case(
        "5.1",
        "DATA behind a reset",
        OPEN + wire.rst_stream(1),
        wire.data(1, b"x"),
        to=stream_error(CLOSED, works=True),
    ),
    case(
        "5.1",
        "HEADERS behind a reset",
        OPEN + wire.rst_stream(1),
        request(1, end=True),
        to=stream_error(CLOSED, PROTOCOL),
    ),
    case(
        "5.1",
        "CONTINUATION behind a reset",
        OPEN + wire.rst_stream(1),
        continued(BLOCK),
        to=broken(CLOSED, PROTOCOL),
    ),
    case("5.1", "a second RST_STREAM", OPEN, wire.rst_stream(1), wire.rst_stream(1), to=WORKS),
    case(
        "5.1",
        "DATA on a closed stream",
        WHOLE,
        answer,
        wire.data(1, b"x"),
        to=stream_error(CLOSED),
    ),
    case(
        "5.1",
        "HEADERS on a closed stream",
        WHOLE,
        answer,
        request(1),
        to=stream_error(CLOSED, PROTOCOL),
    ),
    case(
        "5.1",
        "CONTINUATION on a closed stream",
        WHOLE,
        answer,
        continued(BLOCK),
        to=broken(CLOSED, PROTOCOL),
    ),
    case(
        "5.1", "WINDOW_UPDATE on a closed stream", WHOLE, answer, wire.window_update(1, 1), to=WORKS
    ),
    case("5.1", "PRIORITY on a closed stream", WHOLE, answer, priority(1), to=WORKS),
    case("5.1", "RST_STREAM on a closed stream", WHOLE, answer, wire.rst_stream(1), to=WORKS),
    case(
        "5.1",
        "frames that were on their way when the server reset",
        OPEN,
        cancel,
        wire.data(1, b"x"),
        wire.window_update(1, 1),
        wire.headers(1, [("x", "y")], end=True),
        to=Permitted(reset=frozenset((ErrorCode.CANCEL, CLOSED)), works=True),
    ),
    case("5.1.1", "an even stream", request(2), to=broken(PROTOCOL)),
    case("5.1.1", "the stream 0", wire.frame(1, 5, 0, BLOCK), to=broken(PROTOCOL)),
    case(
        "5.1.1",
        "a stream below an earlier one",
        request(5),
        request(3),
        to=broken(PROTOCOL, CLOSED),
    ),
    case("5.1.1", "numbers that are left out", whole_request(9), to=ARRIVES, stream=9),
    case("5.1.1", "the highest number", whole_request(WINDOW_MAX), to=ARRIVES, stream=WINDOW_MAX),
    case(
        "5.1.2",
        "more streams than permitted",
        *(request(number) for number in (1, 3, 5, 7)),
        to=stream_error(REFUSED, PROTOCOL),
        stream=7,
    ),
    case(
        "5.3.1",
        "HEADERS that depend on themselves",
        wire.frame(wire.HEADERS, 0x24, 1, ON_ITSELF + BLOCK) + BODY,
        to=stream_error(PROTOCOL, works=True),
    ),
    case(
        "5.3.1",
        "PRIORITY that depends on itself",
        wire.frame(wire.PRIORITY, 0, 1, ON_ITSELF),
        to=stream_error(PROTOCOL, works=True),
    ),
    case("5.4.1", "PING that is too short", wire.frame(wire.PING, 0, 0, bytes(6)), to=broken(SIZE)),
    case(
        "5.5",
        "an unknown frame on a stream",
        OPEN,
        wire.frame(0xFF, 0xFF, 1, b"x"),
        BODY,
        to=ARRIVES,
    ),
    case(
        "5.5",
        "a long unknown frame",
        wire.frame(0x16, 0, 0, bytes(FRAME_BYTES_MAX)),
        WHOLE,
        to=ARRIVES,
    ),
]

DATA_AND_HEADERS = [
    case("6.1", "one DATA frame", request(1), BODY, to=ARRIVES),
    case(
        "6.1",
        "several DATA frames",
        request(1),
        *(wire.data(1, bytes((byte,))) for byte in wire.framed(b"request")),
        wire.data(1, b"", end=True),
        to=ARRIVES,
    ),
    case(
        "6.1",
        "DATA with padding",
        request(1),
        wire.frame(wire.DATA, 9, 1, b"\x06" + wire.framed(b"request") + bytes(6)),
        to=ARRIVES,
    ),
    case(
        "6.1",
        "DATA of padding alone",
        OPEN,
        wire.frame(0, 8, 1, b"\x06" + bytes(6)),
        BODY,
        to=ARRIVES,
    ),
    case("6.1", "DATA of a padding of nothing", OPEN, wire.frame(0, 8, 1, b"\0"), BODY, to=ARRIVES),
    case("6.1", "DATA on the stream 0", wire.data(0, b"x"), to=broken(PROTOCOL)),
    case(
        "6.1",
        "padding as long as its frame",
        OPEN,
        wire.frame(0, 8, 1, b"\x06" + bytes(5)),
        to=broken(PROTOCOL),
    ),
    case("6.1", "padding without its length", OPEN, wire.frame(0, 8, 1), to=broken(SIZE, PROTOCOL)),
    case("6.2", "HEADERS", WHOLE, to=ARRIVES),
    case(
        "6.2",
        "HEADERS with padding",
        wire.frame(1, 0xC, 1, b"\x08" + BLOCK + bytes(8)) + BODY,
        to=ARRIVES,
    ),
    case(
        "6.2",
        "HEADERS with a priority",
        wire.frame(1, 0x24, 1, PRIORITIES + BLOCK) + BODY,
        to=ARRIVES,
    ),
    case(
        "6.2",
        "HEADERS with padding and a priority",
        wire.frame(1, 0x2C, 1, b"\x08" + PRIORITIES + BLOCK + bytes(8)) + BODY,
        to=ARRIVES,
    ),
    case(
        "6.2",
        "HEADERS whose padding is too long",
        wire.frame(1, 0xC, 1, b"\x08" + bytes(7)),
        to=broken(PROTOCOL),
    ),
    case(
        "6.2",
        "HEADERS too short for a priority",
        wire.frame(1, 0x24, 1, b"\0\0"),
        to=broken(SIZE, PROTOCOL),
    ),
    case(
        "6.3",
        "PRIORITY of each weight",
        wire.frame(2, 0, 1, bytes(5)),
        wire.frame(2, 0, 1, bytes(4) + b"\xff"),
        to=WORKS,
    ),
    case(
        "6.3", "an exclusive PRIORITY", wire.frame(2, 0, 1, b"\x80\0\0\x03\x0f"), WHOLE, to=ARRIVES
    ),
    case("6.3", "PRIORITY on the stream 0", priority(0), to=broken(PROTOCOL)),
    case(
        "6.3",
        "PRIORITY that is too short",
        OPEN,
        wire.frame(2, 0, 1, b"\x80\0\0\0"),
        to=stream_error(SIZE),
    ),
    case("6.4", "RST_STREAM", OPEN, wire.rst_stream(1), to=WORKS),
    case("6.4", "RST_STREAM on the stream 0", wire.rst_stream(0), to=broken(PROTOCOL)),
    case(
        "6.4", "RST_STREAM that is too short", OPEN, wire.frame(3, 0, 1, bytes(3)), to=broken(SIZE)
    ),
    case(
        "6.4", "RST_STREAM that is too long", OPEN, wire.frame(3, 0, 1, bytes(5)), to=broken(SIZE)
    ),
    case("7", "RST_STREAM with an unknown code", OPEN, wire.rst_stream(1, 0xFF), to=WORKS),
    case(
        "6.6",
        "PUSH_PROMISE of a client",
        OPEN,
        wire.frame(5, 4, 1, (2).to_bytes(4) + BLOCK),
        to=broken(PROTOCOL),
    ),
]

SETTINGS = [
    case("6.5", "SETTINGS", wire.settings([(3, 100)]), WHOLE, to=ARRIVES),
    case("6.5", "SETTINGS without a value", wire.settings(), to=WORKS),
    case("6.5", "an acknowledgement with values", wire.frame(4, 1, 0, bytes(6)), to=broken(SIZE)),
    case("6.5", "SETTINGS on a stream", wire.frame(4, 0, 1), to=broken(PROTOCOL)),
    case("6.5", "SETTINGS with half a value", wire.frame(4, 0, 0, bytes(3)), to=broken(SIZE)),
    case("6.5.2", "ENABLE_PUSH of 2", wire.settings([(2, 2)]), to=broken(PROTOCOL)),
    case("6.5.2", "a window that is too long", wire.settings([(4, 1 << 31)]), to=broken(FLOW)),
    case("6.5.2", "frames that are too short", wire.settings([(5, 16_383)]), to=broken(PROTOCOL)),
    case("6.5.2", "frames that are too long", wire.settings([(5, 1 << 24)]), to=broken(PROTOCOL)),
    case("6.5.2", "the longest frames", wire.settings([(5, (1 << 24) - 1)]), to=WORKS),
    case("6.5.2", "an unknown setting", wire.settings([(0xFF, 1)]), WHOLE, to=ARRIVES),
    case("6.5.2", "a table of nothing", wire.settings([(1, 0)]), WHOLE, answer, to=ARRIVES),
    case(
        "6.5.3",
        "the last of several values counts",
        wire.settings([(4, 100), (4, 1)]),
        WHOLE,
        answer,
        to=ARRIVES,
    ),
    case("6.7", "PING", wire.ping(b"12345678"), to=WORKS),
    case("6.7", "an acknowledgement nobody asked for", wire.ping(ack=True), to=WORKS),
    case("6.7", "PING on a stream", wire.frame(6, 0, 1, bytes(8)), to=broken(PROTOCOL)),
    case("6.7", "PING that is too long", wire.frame(6, 0, 0, bytes(9)), to=broken(SIZE)),
    case("6.8", "GOAWAY", wire.goaway(0), to=LEAVES),
    case("6.8", "GOAWAY with text", wire.goaway(0, 0, b"\xff text"), to=LEAVES),
    case("6.8", "GOAWAY on a stream", wire.frame(7, 0, 1, bytes(8)), to=broken(PROTOCOL)),
    case("6.8", "GOAWAY that is too short", wire.frame(7, 0, 0, bytes(7)), to=broken(SIZE)),
    case("7", "GOAWAY with an unknown code", wire.goaway(0, 0xFF), to=LEAVES),
]

WINDOWS = [
    case("6.9", "WINDOW_UPDATE of the connection", wire.window_update(0, 1), WHOLE, to=ARRIVES),
    case("6.9", "WINDOW_UPDATE of a stream", OPEN, wire.window_update(1, 1), BODY, to=ARRIVES),
    case("6.9", "an increment of 0", wire.window_update(0, 0), to=broken(PROTOCOL)),
    case(
        "6.9",
        "an increment of 0 of a stream",
        OPEN,
        wire.window_update(1, 0),
        to=stream_error(PROTOCOL),
    ),
    case("6.9", "WINDOW_UPDATE that is too short", wire.frame(8, 0, 0, bytes(3)), to=broken(SIZE)),
    case("6.9", "WINDOW_UPDATE that is too long", wire.frame(8, 0, 0, bytes(5)), to=broken(SIZE)),
    case(
        "6.9.1", "a window that overflows", wire.window_update(0, WINDOW_MAX) * 2, to=broken(FLOW)
    ),
    case(
        "6.9.1",
        "a stream's window that overflows",
        OPEN,
        wire.window_update(1, WINDOW_MAX) * 2,
        to=stream_error(FLOW),
    ),
    case(
        "6.9.1",
        "a window that is full",
        wire.window_update(0, WINDOW_MAX - 65_535),
        WHOLE,
        to=ARRIVES,
    ),
    case(
        "6.9.2",
        "SETTINGS that make a window overflow",
        OPEN,
        wire.window_update(1, WINDOW_MAX - 65_535),
        wire.settings([(4, 65_536)]),
        to=stream_error(FLOW),
    ),
    case(
        "6.9.2",
        "SETTINGS that make a window negative",
        OPEN,
        wire.settings([(4, 0)]),
        wire.window_update(1, 1),
        BODY,
        to=ARRIVES,
    ),
]

CONTINUATIONS = [
    case(
        "6.10", "one CONTINUATION", begun(block=BLOCK[:9]) + continued(BLOCK[9:]) + BODY, to=ARRIVES
    ),
    case(
        "6.10",
        "several",
        begun(block=BLOCK[:9]) + continued(BLOCK[9:20], end=False) + continued(BLOCK[20:]) + BODY,
        to=ARRIVES,
    ),
    case(
        "6.10",
        "one byte each",
        begun(block=b"")
        + b"".join(continued(bytes((byte,)), end=False) for byte in BLOCK[:60])
        + continued(BLOCK[60:])
        + BODY,
        to=Permitted(goaway=frozenset((PROTOCOL, CALM)), works=True),
    ),
    case("6.10", "END_STREAM on HEADERS counts", begun(end=True) + continued(), to=WORKS),
    case("6.10", "behind END_HEADERS", OPEN + continued(), to=broken(PROTOCOL)),
    case("6.10", "on the stream 0", begun() + continued(stream=0), to=broken(PROTOCOL)),
    case("6.10", "on another stream", begun() + continued(stream=3), to=broken(PROTOCOL)),
    case(
        "6.10",
        "behind a CONTINUATION with END_HEADERS",
        begun() + continued() + continued(),
        to=broken(PROTOCOL),
    ),
    case("6.10", "behind DATA", begun() + wire.data(1, b"x") + continued(), to=broken(PROTOCOL)),
    case(
        "6.10",
        "without an end",
        begun() + continued(bytes(9_000), end=False) * 1_000,
        to=broken(CALM, PROTOCOL, COMPRESSION),
    ),
    case(
        "6.10",
        "empty ones without an end",
        begun() + continued(end=False) * 20_000,
        to=broken(CALM, PROTOCOL),
    ),
]

MALFORMED = stream_error(PROTOCOL)
MESSAGES = [
    case(
        "8.1",
        "trailers",
        request(1)
        + wire.data(1, wire.framed(b"request"))
        + wire.headers(1, [("x", "y")], end=True),
        to=ARRIVES,
    ),
    case(
        "8.1",
        "a second header block without END_STREAM",
        OPEN,
        wire.headers(1, [("x", "y")]),
        to=MALFORMED,
    ),
    case(
        "8.1",
        "pseudo-headers in trailers",
        OPEN,
        wire.headers(1, [(":method", "POST"), ("x", "y")], end=True),
        # Sessions do not use the trailers of a request, and the h2 crate does not check them.
        to=stream_error(PROTOCOL, works=True),
    ),
    case("8.2", "an upper-case name", with_last("X-Test", "ok"), to=MALFORMED),
    case("8.2.1", "a space in a name", with_last("x test", "ok"), to=MALFORMED),
    case("8.2.1", "a colon in a name", with_last("x:test", "ok"), to=MALFORMED),
    case("8.2.1", "bytes beyond ASCII in a name", with_last(b"x\xff", "ok"), to=MALFORMED),
    case("8.2.1", "an empty name", with_last("", "ok"), to=MALFORMED),
    case("8.2.1", "NUL in a value", with_last("x", b"a\0b"), to=MALFORMED),
    case("8.2.1", "LF in a value", with_last("x", b"a\nb"), to=MALFORMED),
    case("8.2.1", "CR in a value", with_last("x", b"a\rb"), to=MALFORMED),
    case("8.2.1", "NUL in a path", malformed(replaced(":path", b"/a\0b")), to=MALFORMED),
    case(
        "8.2.1",
        "space at the start of a value",
        with_last("x", b" a"),
        to=stream_error(PROTOCOL, works=True),
    ),
    case(
        "8.2.1",
        "space at the end of a value",
        with_last("x", b"a "),
        to=stream_error(PROTOCOL, works=True),
    ),
    case("8.2.2", "connection", with_last("connection", "keep-alive"), to=MALFORMED),
    case("8.2.2", "transfer-encoding", with_last("transfer-encoding", "chunked"), to=MALFORMED),
    case("8.2.2", "upgrade", with_last("upgrade", "h2c"), to=MALFORMED),
    case("8.2.2", "keep-alive", with_last("keep-alive", "1"), to=MALFORMED),
    case("8.2.2", "proxy-connection", with_last("proxy-connection", "close"), to=MALFORMED),
    case(
        "8.2.2",
        "te other than trailers",
        malformed([*without("te"), ("te", "trailers, deflate")]),
        to=MALFORMED,
    ),
    case("8.3", "an unknown pseudo-header", with_first(":test", "ok"), to=MALFORMED),
    case("8.3", "a pseudo-header of answers", with_first(":status", "200"), to=MALFORMED),
    case(
        "8.3",
        "a pseudo-header behind others",
        malformed([*without(":path"), (":path", "/")]),
        to=MALFORMED,
    ),
    case("8.3.1", "an empty path", malformed(replaced(":path", "")), to=MALFORMED),
    case("8.3.1", "no method", malformed(without(":method")), to=MALFORMED),
    case("8.3.1", "no scheme", malformed(without(":scheme")), to=MALFORMED),
    case("8.3.1", "no path", malformed(without(":path")), to=MALFORMED),
    case(
        "8.3.1",
        "no authority",
        malformed(without(":authority")),
        to=stream_error(PROTOCOL, works=True),
    ),
    case("8.3.1", "two methods", with_first(":method", "POST"), to=MALFORMED),
    case("8.3.1", "two schemes", with_first(":scheme", "http"), to=MALFORMED),
    case("8.3.1", "two paths", with_first(":path", "/"), to=MALFORMED),
    case("8.3.1", "two authorities", with_first(":authority", "a"), to=MALFORMED),
    case(
        "8.3.1",
        "a host that is not the authority",
        with_last("host", "other"),
        to=stream_error(PROTOCOL, works=True),
    ),
    case("8.1.1", "a content-length that is right", announced("12") + BODY, to=ARRIVES),
    case("8.1.1", "a content-length that is too long", announced("13") + BODY, to=MALFORMED),
    case("8.1.1", "a content-length that is too short", announced("11") + BODY, to=MALFORMED),
    case(
        "8.1.1",
        "one that is short of several frames",
        announced("3"),
        wire.data(1, b"\0\0"),
        wire.data(1, b"\0\0\x07"),
        to=MALFORMED,
    ),
    case("8.1.1", "a content-length that is no number", announced("x") + BODY, to=MALFORMED),
    case(
        "8.4",
        "PUSH_PROMISE of a client",
        OPEN,
        wire.frame(5, 4, 1, (2).to_bytes(4) + BLOCK),
        to=broken(PROTOCOL),
    ),
    case(
        "8.5",
        "CONNECT",
        wire.headers(1, [(":method", "CONNECT"), (":authority", "a:1")]),
        to=stream_error(PROTOCOL, works=True),
    ),
]

NEW_NAME, VALUE = b"\x06custom", b"\x05value"
HUFFMAN_VALUE = b"\x86\xa8\xeb\x10\x64\x9c\xbf"  # no-cache
BAD_CODE = broken(COMPRESSION)
HPACK = [
    case("7541 6.1", "an indexed header", with_block(b"\x90"), to=ARRIVES),
    case("7541 6.2.1", "added, indexed name", with_block(b"\x58" + VALUE), to=ARRIVES),
    case(
        "7541 6.2.1",
        "added, indexed name, Huffman",
        with_block(b"\x58" + HUFFMAN_VALUE),
        to=ARRIVES,
    ),
    case("7541 6.2.1", "added, new name", with_block(b"\x40" + NEW_NAME + VALUE), to=ARRIVES),
    case(
        "7541 6.2.1",
        "added, and used",
        with_block(b"\x40" + NEW_NAME + VALUE + b"\xbe"),
        to=ARRIVES,
    ),
    case("7541 6.2.2", "not added, indexed name", with_block(b"\x0f\x09" + VALUE), to=ARRIVES),
    case("7541 6.2.2", "not added, new name", with_block(b"\0" + NEW_NAME + VALUE), to=ARRIVES),
    case(
        "7541 6.2.2", "not added, Huffman", with_block(b"\0" + NEW_NAME + HUFFMAN_VALUE), to=ARRIVES
    ),
    case("7541 6.2.3", "never indexed, indexed name", with_block(b"\x1f\x09" + VALUE), to=ARRIVES),
    case(
        "7541 6.2.3", "never indexed, new name", with_block(b"\x10" + NEW_NAME + VALUE), to=ARRIVES
    ),
    case("7541 6.3", "a table size", sized(b"\x20"), to=ARRIVES),
    case("7541 6.3", "two table sizes", sized(b"\x20\x3f\xe1\x1f"), to=ARRIVES),
    case(
        "7541 4.2",
        "many table sizes",
        sized(b"\x20" * 3_000),
        to=Permitted(goaway=frozenset((COMPRESSION,)), works=True),
    ),
    case("7541 2.3.3", "an index beyond the tables", with_block(integer(70, 7, 0x80)), to=BAD_CODE),
    case(
        "7541 2.3.3",
        "a name beyond the tables",
        with_block(integer(70, 6, 0x40) + VALUE),
        to=BAD_CODE,
    ),
    case("7541 4.2", "a table size at the end of a block", with_block(b"\x20"), to=BAD_CODE),
    case("7541 5.1", "an integer without an end", with_block(b"\xff" + b"\xff" * 20), to=BAD_CODE),
    case(
        "7541 5.2", "a string longer than its block", with_block(b"\0\x7f\x20custom"), to=BAD_CODE
    ),
    case(
        "7541 5.2",
        "padding of more than 7 bits",
        with_block(b"\0\x84\xfc\xff\xff\xff" + VALUE),
        to=BAD_CODE,
    ),
    case("7541 5.2", "padding of zeros", with_block(b"\0" + NEW_NAME + b"\x81\x18"), to=BAD_CODE),
    case(
        "7541 5.2",
        "EOS in a string",
        with_block(b"\0" + NEW_NAME + b"\x84\xff\xff\xff\xff"),
        to=BAD_CODE,
    ),
    case("7541 6.1", "the index 0", with_block(b"\x80"), to=BAD_CODE),
    case("7541 6.3", "a table size beyond SETTINGS", sized(integer(4097, 5, 0x20)), to=BAD_CODE),
]

CASES = [
    *FRAMES,
    *STREAMS,
    *DATA_AND_HEADERS,
    *SETTINGS,
    *WINDOWS,
    *CONTINUATIONS,
    *MESSAGES,
    *HPACK,
]


def check(peer: RawPeer, tried: Case) -> None:
    """Send a case's bytes, and compare the session's reaction with those that are permitted."""
    found: list[Any] = []
    for step in tried.steps:
        if isinstance(step, bytes):
            found += peer.send(step)
        else:
            step(peer)
    pongs = len(peer.of_stream(0, wire.PING))
    peer.send(wire.ping())
    goaway, reset = peer.goaway_code(), peer.reset_code(tried.stream)
    permitted = tried.permitted
    if goaway is not None:
        generic = {ErrorCode.PROTOCOL_ERROR} if permitted.goaway else set()
        assert goaway in permitted.goaway | generic
        assert goaway == ErrorCode.NO_ERROR or of_kind(peer.events, events.BROKEN)
        return
    assert len(peer.of_stream(0, wire.PING)) == pongs + 1, "the connection does not work"
    if reset is not None and reset != ErrorCode.NO_ERROR:
        assert reset in permitted.reset
        if permitted is MALFORMED:
            assert of_kind(found, events.CALL) == []
        return
    assert permitted.works, "the fault has no effect"
    if permitted.message is not None:
        messages = [event[-1] for event in of_kind(found, events.CALL, events.MESSAGE)]
        assert messages == [permitted.message]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tried", CASES, ids=lambda case: f"{case.section} {case.name}")
def test_a_server_reacts_as_the_rules_say(implementation: Any, tried: Case) -> None:
    check(RawClient(implementation, LIMITS), tried)


def first_bytes(*raw: bytes) -> bytes:
    return b"".join(raw)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "preface",
    [
        b"INVALID CONNECTION PREFACE\r\n\r\n",
        wire.PREFACE[:-1] + b"x",
        first_bytes(wire.PREFACE, wire.ping()),
        first_bytes(wire.PREFACE, WHOLE, wire.settings()),
        first_bytes(wire.PREFACE, wire.settings_ack()),
    ],
    ids=["not HTTP/2", "its last byte", "PING first", "HEADERS first", "ACK first"],
)
def test_a_connection_begins_with_the_preface_and_settings(
    implementation: Any, preface: bytes
) -> None:
    client = RawClient(implementation, preface=preface)
    assert of_kind(client.events, events.CALL) == []
    assert of_kind(client.events, events.BROKEN)
    assert client.goaway_code() in (PROTOCOL, None)


def answered(stream: int, *extra: tuple[str | bytes, str | bytes], end: bool = False) -> bytes:
    """HEADERS of a server."""
    return wire.headers(stream, [*RawServer.answer_pairs, *extra], end=end)


# The call ends with an error; a session may reset its stream as for other calls that it ends.
UNREADABLE = Permitted(
    goaway=frozenset((PROTOCOL,)), reset=frozenset((PROTOCOL, ErrorCode.CANCEL)), works=True
)
# A push is refused in any case.
PUSHES = Permitted(goaway=frozenset((PROTOCOL,)), works=True)
OF_SERVERS = [
    case("6.5.2", "ENABLE_PUSH of a server", wire.settings([(2, 1)]), to=PUSHES),
    case("6.6", "PUSH_PROMISE", wire.frame(5, 4, 1, (2).to_bytes(4) + BLOCK), to=broken(PROTOCOL)),
    case("5.1.1", "HEADERS on an even stream", answered(2), to=broken(PROTOCOL)),
    case("5.1", "HEADERS on an idle stream", answered(3), to=broken(PROTOCOL)),
    case("5.1", "RST_STREAM on an idle stream", wire.rst_stream(3), to=broken(PROTOCOL)),
    case("8.1", "DATA before HEADERS", wire.data(1, b"x"), to=UNREADABLE),
    case(
        "8.1",
        "an informational answer that ends",
        wire.headers(1, [(":status", "103")], end=True),
        to=UNREADABLE,
    ),
    case(
        "8.1",
        "trailers without END_STREAM",
        answered(1),
        wire.headers(1, [("x", "y")]),
        to=UNREADABLE,
    ),
    case("8.2.1", "LF in a value", answered(1, ("x", b"a\nb")), to=UNREADABLE),
    case(
        "8.3.2", "no status", wire.headers(1, [("content-type", "application/grpc")]), to=UNREADABLE
    ),
    case(
        "8.3.2",
        "a path",
        wire.headers(1, [*RawServer.answer_pairs[:1], (":path", "/")]),
        to=UNREADABLE,
    ),
    case(
        "8.3.2",
        "pseudo-headers in trailers",
        answered(1),
        wire.headers(1, [(":status", "200")], end=True),
        to=UNREADABLE,
    ),
    case("6.9.1", "a window that overflows", wire.window_update(0, WINDOW_MAX), to=broken(FLOW)),
    case(
        "4.3",
        "a header block that cannot be decoded",
        wire.frame(1, 4, 1, b"\x80"),
        to=broken(COMPRESSION),
    ),
    case("6.8", "GOAWAY that is too short", wire.frame(7, 0, 0, bytes(7)), to=broken(SIZE)),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tried", OF_SERVERS, ids=lambda case: f"{case.section} {case.name}")
def test_a_client_reacts_as_the_rules_say(implementation: Any, tried: Case) -> None:
    server = RawServer(implementation, LIMITS)
    assert server.call(None, one_answer=False) == 1
    check(server, tried)
    if tried.permitted is UNREADABLE:
        assert server.session.open_streams == 0
        assert 0 not in [event[2] for event in of_kind(server.events, events.FINISHED)]
