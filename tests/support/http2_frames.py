"""HTTP/2 frames and header blocks as bytes, for peers that a test plays itself.

It is independent of the layer under test. It builds anything that a peer may send, valid or not
(RFC 9113, sections 4, 6 and 7; RFC 7541 without tables and without Huffman codes).
"""

import base64
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum

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

# Flags; ACK and END_STREAM share a bit, of different frames.
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
# Of a gRPC message: whether it is compressed, and its length.
PREFIX = struct.Struct(">BI")


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes before a frame's payload."""
    return HEAD.pack(length << 8 | kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream_id) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*each) for each in values.items()))


def window_update(stream_id: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, NUMBER.pack(count))


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, NUMBER.pack(code))


def priority(stream_id: int, parent: int, weight: int = 0) -> bytes:
    return frame(PRIORITY, 0, stream_id, NUMBER.pack(parent) + bytes((weight,)))


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, TWO_NUMBERS.pack(last_stream_id, code) + reason.encode())


def framed(message: bytes) -> bytes:
    """A gRPC message behind its prefix."""
    return PREFIX.pack(0, len(message)) + message


def literal(name: str, value: str | bytes) -> bytes:
    """A header that no table keeps (RFC 7541, section 6.2.2)."""
    raw_name = name.encode("ascii")
    raw = value if isinstance(value, bytes) else value.encode("ascii")
    return b"\0" + _number(len(raw_name)) + raw_name + _number(len(raw)) + raw


def block(headers: Iterable[tuple[str, str | bytes]]) -> bytes:
    """A header block; values of names that end with "-bin" are base64."""
    return b"".join(literal(name, _to_wire(name, value)) for name, value in headers)


def _number(value: int) -> bytes:
    """A length with a prefix of seven bits (RFC 7541, section 5.1)."""
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


def _to_wire(name: str, value: str | bytes) -> str | bytes:
    if name.endswith("-bin"):
        raw = value if isinstance(value, bytes) else value.encode()
        return base64.b64encode(raw).rstrip(b"=")
    return value
