"""Frames of HTTP/2 as a raw peer sends and reads them, made with hyperframe and hpack."""

from collections.abc import Iterable, Sequence
from typing import Any

from hpack import Decoder, Encoder
from hyperframe.frame import Frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32

HEADER_TABLE_SIZE, ENABLE_PUSH, STREAMS_MAX, INITIAL_WINDOW, FRAME_MAX, LIST_MAX = range(1, 7)

Pairs = Sequence[tuple[str | bytes, str | bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Any frame, right or wrong."""
    head = len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4)
    return head + payload


def settings(values: Iterable[tuple[int, int]] = ()) -> bytes:
    payload = b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in values)
    return frame(SETTINGS, 0, 0, payload)


def settings_ack() -> bytes:
    return frame(SETTINGS, ACK, 0)


def block(pairs: Pairs) -> bytes:
    """A header block that uses no table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.header_table.resized = False
    return encoder.encode([(name, value, True) for name, value in pairs], huffman=False)


def headers(stream: int, pairs: Pairs, *, end: bool = False) -> bytes:
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, block(pairs))


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, payload)


def message(content: bytes, *, compressed: int = 0) -> bytes:
    """A message of gRPC behind its five bytes."""
    return bytes((compressed,)) + len(content).to_bytes(4) + content


def rst_stream(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4))


def window_update(stream: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, count.to_bytes(4))


def ping(content: bytes = bytes(8), *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, content)


def goaway(last_stream: int, code: int = 0, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4) + code.to_bytes(4) + text)


class FrameReader:
    """Reads the frames that a session puts out, and decodes their header blocks.

    Args:
        awaits_preface: the session is a client's.
    """

    def __init__(self, *, awaits_preface: bool = False) -> None:
        self._rest = b""
        self._preface = PREFACE if awaits_preface else b""
        self._decoder = Decoder(1 << 20)
        self._blocks: list[bytes] = []

    def read(self, raw: bytes) -> list[Any]:
        """Return frames of hyperframe; those with a header block have `pairs`, its headers."""
        self._rest += raw
        if self._preface:
            assert self._rest.startswith(self._preface)
            self._rest, self._preface = self._rest[len(self._preface) :], b""
        found: list[Any] = []
        while len(self._rest) >= 9:
            length = int.from_bytes(self._rest[:3])
            if len(self._rest) < 9 + length:
                break
            parsed: Any = Frame.parse_frame_header(memoryview(self._rest[:9]))[0]
            parsed.parse_body(memoryview(self._rest[9 : 9 + length]))
            self._rest = self._rest[9 + length :]
            if parsed.type in (HEADERS, CONTINUATION):
                self._blocks.append(parsed.data)
                parsed.pairs = ()
                if "END_HEADERS" in parsed.flags:
                    parsed.pairs = tuple(self._decoder.decode(b"".join(self._blocks)))
                    self._blocks = []
            found.append(parsed)
        return found
