"""Headers and messages of gRPC calls, for the session on the h2 library."""

import base64
import binascii
import logging
import math
import re
from collections.abc import Container, Iterable, Iterator
from urllib.parse import quote, unquote

from hpack import Decoder, HPACKDecodingError

from rockoon_rpc.session import PREFIX, Metadata

Headers = list[tuple[bytes, bytes]]

# At DEBUG hpack logs each header that it decodes, for example signatures of requests.
_hpack_log = logging.getLogger("hpack")
if _hpack_log.level == logging.NOTSET:
    _hpack_log.setLevel(logging.INFO)

HEADER_BYTES = 32
"""Size that RFC 9113 (section 10.5.1) adds for each header to its name and value."""

# RFC 7541, section 4.2: a block begins with the smallest and the last size at most.
_TABLE_SIZES_MAX = 2
_NOT_METADATA = frozenset((b"te", b"content-type", b"accept-encoding", b"content-length"))
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_SENT_UNITS = ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0))
_TIMEOUT_MAX = 99_999_999
_NAME = re.compile(r"[0-9a-z_.\-]+")
_FORBIDDEN = re.compile(rb"[\0\r\n]")


class BlockDecoder(Decoder):
    """HPACK decoder that refuses header blocks with repeated resizes of the dynamic table.

    Attributes:
        list_bytes: size of the last decoded header list.
    """

    list_bytes = 0

    def decode(self, data: bytes, raw: bool = False) -> Headers:  # type: ignore[override]
        at = sizes = 0
        while at < len(data) and data[at] & 0xE0 == 0x20:
            sizes += 1
            if sizes > _TABLE_SIZES_MAX:
                raise HPACKDecodingError("a header block resizes the table more than twice")
            if data[at] & 0x1F == 0x1F:
                at += 1
                while at < len(data) and data[at] & 0x80:
                    at += 1
            at += 1
        headers: Headers = list(super().decode(data, raw))
        self.list_bytes = sum(len(name) + len(value) + HEADER_BYTES for name, value in headers)
        return headers


def text(raw: bytes) -> str:
    """Decode a header value. Invalid UTF-8 becomes escape sequences, so that the text fits into
    messages and logs."""
    return raw.decode("utf-8", "backslashreplace")


def metadata(headers: Headers, kept: Container[str] | None = None) -> Metadata:
    """Return the gRPC metadata in a list of headers.

    Args:
        kept: names of the headers that become metadata; None keeps all except the headers of
            HTTP/2 and gRPC.

    Raises:
        ValueError: a value of a name with "-bin" is not base64.
    """
    found: list[tuple[str, str | bytes]] = []
    for raw_name, value in headers:
        if kept is None:
            if raw_name.startswith((b":", b"grpc-")) or raw_name in _NOT_METADATA:
                continue
        elif text(raw_name) not in kept:
            continue
        name = text(raw_name)
        if name.endswith("-bin"):
            # A proxy may join values of one name by commas.
            found += [(name, _from_base64(name, part)) for part in value.split(b",")]
        else:
            found.append((name, text(value)))
    return tuple(found)


def _from_base64(name: str, value: bytes) -> bytes:
    stripped = value.strip()
    try:
        return base64.b64decode(stripped + b"=" * (-len(stripped) % 4), validate=True)
    except binascii.Error as failure:
        raise ValueError(f"the value of {name} is not base64") from failure


def list_bytes(metadata: Metadata) -> int:
    """Return the size of metadata, computed like the size of a header list."""
    return sum(len(name) + len(value) + HEADER_BYTES for name, value in metadata)


def to_headers(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    """Convert metadata to HTTP/2 headers.

    Raises:
        ValueError: HTTP/2 does not permit a name or a value.
    """
    found: Headers = []
    for name, value in metadata:
        lower = name.lower()
        if not _NAME.fullmatch(lower):
            raise ValueError(f"metadata has the name {name!r}: HTTP/2 does not permit it")
        raw = value if isinstance(value, bytes) else value.encode()
        if lower.endswith("-bin"):
            raw = base64.b64encode(raw).rstrip(b"=")
        elif _FORBIDDEN.search(raw):
            raise ValueError(f"the value of {name} has a line end or a NUL: HTTP/2 forbids them")
        found.append((lower.encode(), raw.strip(b" \t")))
    return found


def timeout_seconds(value: bytes) -> float | None:
    """Parse a grpc-timeout header; return seconds, None if it is malformed."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]


def timeout_value(seconds: float) -> bytes:
    """Return the shortest grpc-timeout header that is at least `seconds`."""
    for unit, factor in _SENT_UNITS:
        count = math.ceil(min(max(seconds, 0.0) * factor, 1e15))
        if count <= _TIMEOUT_MAX:
            return b"%d%s" % (count, unit)
    return b"%dS" % _TIMEOUT_MAX


def percent_encoded(details: str) -> bytes:
    """Encode a grpc-message: printable ASCII; % and other characters as %XX of their UTF-8."""
    return quote(details, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="replace").encode()


def percent_decoded(value: bytes) -> str:
    return unquote(text(value))


# Status codes of gRPC that sessions send or report themselves.
OK = 0
UNKNOWN = 2
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14


class MessageRefused(Exception):
    """Raised if a message is refused, which ends its call.

    Attributes:
        status: gRPC status code of the call.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class MessageReader:
    """Assembles gRPC messages from the DATA frames of one stream; frames may split messages.

    Args:
        bytes_max: limit of a message; a longer one is refused.
    """

    __slots__ = ("_bytes_max", "_length", "_partial")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # A message, or its five bytes as long as `_length` is negative.
        self._partial = bytearray()
        self._length = -1

    @property
    def is_within_message(self) -> bool:
        return self._length >= 0 or bool(self._partial)

    @property
    def held_bytes(self) -> int:
        """Number of received bytes of the message that is not complete yet."""
        return len(self._partial) if self._length >= 0 else 0

    def read(self, data: bytes) -> Iterator[bytes]:
        """Add the bytes of a DATA frame; yield the messages that they complete.

        Raises:
            MessageRefused: a message is compressed or too long.
        """
        at, end = 0, len(data)
        while True:
            if self._length < 0:
                count = min(PREFIX.size - len(self._partial), end - at)
                self._partial += data[at : at + count]
                at += count
                if len(self._partial) < PREFIX.size:
                    return
                self._length = self._checked_length()
                self._partial.clear()
            left = self._length - len(self._partial)
            if end - at < left:
                self._partial += data[at:]
                return
            message = data[at : at + left]
            at += left
            if self._partial:
                self._partial += message
                message = bytes(self._partial)
                self._partial = bytearray()
            self._length = -1
            yield message

    def _checked_length(self) -> int:
        compressed, length = PREFIX.unpack(self._partial)
        if compressed:
            raise MessageRefused(UNIMPLEMENTED, "the message is compressed: send it uncompressed")
        if length > self._bytes_max:
            raise MessageRefused(
                RESOURCE_EXHAUSTED,
                f"a message of {length} bytes is longer than {self._bytes_max} bytes",
            )
        return int(length)
