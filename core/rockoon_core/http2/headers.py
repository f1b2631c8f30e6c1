"""Header blocks (HPACK, RFC 7541): read by the hpack library, written without any table.

Blocks that name nothing but table entries, or leave the table as it was, mean the same again as
long as the table is the same: such a block is decoded once. gRPC's clients send one for nearly
every call. Few and short blocks are remembered: a block of some hundred bytes may name entries of
thousands, on each of thousands of connections.
"""

import base64
import binascii
import logging
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from rockoon_core.http2.frames import ConnectionBroken, ErrorCode

Header = tuple[str, str]
Metadata = tuple[tuple[str, str | bytes], ...]

# At DEBUG it logs each header that it decodes, the signatures of calls among them.
_hpack_log = logging.getLogger("hpack")
if _hpack_log.level == logging.NOTSET:
    _hpack_log.setLevel(logging.INFO)

# Of a decoded list, as RFC 9113 counts it (section 10.5.1): names, values, 32 for each header.
LIST_BYTES_MAX = 16 << 10
HEADERS_TOO_LONG = f"headers are longer than {LIST_BYTES_MAX} bytes"
_HEADER_BYTES = 32
# RFC 7541, section 4.2: the least and the last size, when the table's size changes.
_TABLE_SIZES_MAX = 2
_CACHED_BLOCKS_MAX = 16
_CACHED_LIST_BYTES_MAX = 2 << 10


class _CountedTable(HeaderTable):
    """HPACK's dynamic table that says how often it has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    def _shrink(self) -> None:
        self.changes += 1
        super()._shrink()


class HeaderReader:
    """Decodes the header blocks of one connection, in their order.

    Attributes:
        decoded_bytes: length of the list that was decoded last; 0 for a block that was known.
        is_known: whether the block that was read last is remembered.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(LIST_BYTES_MAX)
        self._table = self._decoder.header_table = _CountedTable()
        self._known: dict[bytes, tuple[Header, ...]] = {}
        self.decoded_bytes = 0
        self.is_known = False

    def read(self, block: bytes) -> tuple[Header, ...]:
        """The headers of a block; the same object for a block that is known.

        Raises:
            ConnectionBroken: it cannot be decoded, or is too long.
        """
        known = self._known.get(block)
        if known is not None:
            self.decoded_bytes, self.is_known = 0, True
            return known
        _check_table_sizes(block)
        before = self._table.changes
        try:
            headers = tuple(
                (_text(name), _text(value)) for name, value in self._decoder.decode(block, raw=True)
            )
        except OversizedHeaderListError as failure:
            # The rest of the block is not decoded, so the table is lost, and the connection.
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, HEADERS_TOO_LONG) from failure
        except HPACKError as failure:
            raise ConnectionBroken(ErrorCode.COMPRESSION_ERROR, str(failure)) from failure
        if before != self._table.changes or len(self._known) >= _CACHED_BLOCKS_MAX:
            self._known.clear()
        listed = sum(len(name) + len(value) + _HEADER_BYTES for name, value in headers)
        self.decoded_bytes = listed
        self.is_known = before == self._table.changes and listed <= _CACHED_LIST_BYTES_MAX
        if self.is_known:
            self._known[block] = headers
        return headers


def _check_table_sizes(block: bytes) -> None:
    """Raises ConnectionBroken for a block that begins with more table sizes than it may."""
    at = count = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        count += 1
        if count > _TABLE_SIZES_MAX:
            raise ConnectionBroken(ErrorCode.COMPRESSION_ERROR, "too many table sizes in a block")
        if block[at] & 0x1F == 0x1F:
            at += 1
            while at < len(block) and block[at] & 0x80:
                at += 1
        at += 1


def _text(raw: bytes | str) -> str:
    """Decode a header. Bytes that are not UTF-8 become escape sequences: the header may go into
    messages and logs, and the connection's other calls must not fail because of it."""
    return raw if isinstance(raw, str) else bytes(raw).decode("utf-8", "backslashreplace")


def _number(value: int, bits: int) -> bytes:
    """An integer with a prefix of so many bits that are otherwise zero (RFC 7541, section 5.1)."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((value,))
    value -= limit
    out = bytearray((limit,))
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(name: str, value: str | bytes) -> bytes:
    """A header that no table remembers (RFC 7541, section 6.2.2)."""
    raw_name = name.encode("ascii")
    raw = value if isinstance(value, bytes) else value.encode("ascii")
    return b"\0" + _number(len(raw_name), 7) + raw_name + _number(len(raw), 7) + raw


def block(headers: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Headers as they stand in a frame; those whose name ends with "-bin" as base64."""
    return b"".join(literal(name, to_wire(name, value)) for name, value in headers)


def to_wire(name: str, value: str | bytes) -> str | bytes:
    """A value of gRPC's metadata, as a header's."""
    if name.endswith("-bin"):
        raw = value if isinstance(value, bytes) else value.encode()
        return base64.b64encode(raw).rstrip(b"=")
    return value


def metadata(headers: Sequence[Header]) -> Metadata:
    """gRPC's metadata in a list of headers: neither HTTP/2's nor gRPC's own.

    Raises:
        ValueError: a value that should be base64 is none.
    """
    return tuple(
        (name, _from_wire(name, value))
        for name, value in headers
        if not name.startswith((":", "grpc-")) and name not in _OF_THE_TRANSPORT
    )


def _from_wire(name: str, value: str) -> str | bytes:
    if not name.endswith("-bin"):
        return value
    try:
        # What came twice is joined by commas; gRPC's clients send each for itself.
        return base64.b64decode(value + "=" * (-len(value) % 4))
    except binascii.Error as failure:
        raise ValueError(f"{name} is not base64") from failure


def percent_encoded(text: str) -> str:
    """A grpc-message: printable ASCII, anything else and % as %XX of its UTF-8."""
    return quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="replace")


def percent_decoded(text: str) -> str:
    return unquote(text)


_OF_THE_TRANSPORT = frozenset(("te", "content-type", "accept-encoding", "content-length"))
