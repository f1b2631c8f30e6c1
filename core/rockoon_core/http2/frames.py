"""HTTP/2's frames as bytes (RFC 9113, sections 4, 6 and 7)."""

import struct
from collections.abc import Mapping
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
WINDOW_MAX = (1 << 31) - 1
FRAME_BYTES_MIN, FRAME_BYTES_MAX = 1 << 14, (1 << 24) - 1
STREAM_ID_MAX = (1 << 31) - 1

HEAD_BYTES = 9
# (length << 8 | kind, flags, stream id): one field less to unpack than the three bytes of a length.
HEAD = struct.Struct(">IBI")
SETTING = struct.Struct(">HI")
NUMBER = struct.Struct(">I")
TWO_NUMBERS = struct.Struct(">II")


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


class ConnectionBroken(Exception):
    """The peer breaks the protocol so that the connection has to end."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamBroken(Exception):
    """The peer breaks the protocol on one stream, which ends."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Nine bytes that stand before a frame's payload."""
    return HEAD.pack(length << 8 | kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*each) for each in values.items()))


def window_update(stream_id: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, NUMBER.pack(count))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, NUMBER.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    return frame(
        GOAWAY, 0, 0, TWO_NUMBERS.pack(last_stream_id, code) + reason.encode(errors="replace")[:256]
    )


def unpadded(flags: int, payload: bytes) -> bytes:
    """A payload without its padding. Raises ConnectionBroken."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "padding is as long as its frame")
    return payload[1 : len(payload) - payload[0]]
