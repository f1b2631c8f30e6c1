"""HTTP/2 frames and header blocks as bytes, for tests that act as a peer.

It is independent of the layer under test, except for the names of error codes. It builds all
frames that a peer may send, valid or not (RFC 9113, sections 4 and 6; RFC 7541 without tables and
without Huffman codes).
"""

import struct
from collections.abc import Iterable, Mapping

from rockoon_rpc.session import ErrorCode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

(
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION,
) = range(10)

# Flags; ACK and END_STREAM share a bit, in different frames.
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

# Settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6

WINDOW_DEFAULT = 65_535
WINDOW_MAX = STREAM_ID_MAX = (1 << 31) - 1
FRAME_BYTES_MIN, FRAME_BYTES_MAX = 1 << 14, (1 << 24) - 1

HEAD_BYTES = 9
# (length << 8 | kind, flags, stream id)
HEAD = struct.Struct(">IBI")
SETTING = struct.Struct(">HI")
NUMBER = struct.Struct(">I")
TWO_NUMBERS = struct.Struct(">II")
# Prefix of a gRPC message: whether it is compressed, and its length.
PREFIX = struct.Struct(">BI")


Pairs = Iterable[tuple[str | bytes, str | bytes]]


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the nine bytes before a frame's payload."""
    return HEAD.pack(length << 8 | kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream_id) + payload


def settings(values: Mapping[int, int] | Iterable[tuple[int, int]] = ()) -> bytes:
    pairs = values.items() if isinstance(values, Mapping) else values
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*each) for each in pairs))


def settings_ack() -> bytes:
    return frame(SETTINGS, ACK, 0)


def headers(stream_id: int, pairs: Pairs, *, end: bool = False) -> bytes:
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream_id, block(pairs))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream_id, payload)


def window_update(stream_id: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, NUMBER.pack(count))


def rst_stream(stream_id: int, code: int = ErrorCode.CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream_id, NUMBER.pack(code))


def ping(content: bytes = bytes(8), *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, content)


def priority(stream_id: int, parent: int, weight: int = 0) -> bytes:
    return frame(PRIORITY, 0, stream_id, NUMBER.pack(parent) + bytes((weight,)))


def goaway(last_stream_id: int, code: int = ErrorCode.NO_ERROR, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, TWO_NUMBERS.pack(last_stream_id, code) + text)


def framed(message: bytes, *, compressed: int = 0) -> bytes:
    """Return a gRPC message after its prefix."""
    return PREFIX.pack(compressed, len(message)) + message


def literal(name: str | bytes, value: str | bytes) -> bytes:
    """Return a header that no table keeps (RFC 7541, section 6.2.2)."""
    raw_name = name if isinstance(name, bytes) else name.encode()
    raw = value if isinstance(value, bytes) else value.encode()
    return b"\0" + _number(len(raw_name)) + raw_name + _number(len(raw)) + raw


def block(pairs: Pairs) -> bytes:
    """Return a header block."""
    return b"".join(literal(*pair) for pair in pairs)


def _number(value: int) -> bytes:
    """Return a length with a prefix of seven bits (RFC 7541, section 5.1)."""
    limit = 0x7F
    if value < limit:
        return bytes((value,))
    value -= limit
    out = bytearray((limit,))
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
