"""Bodies compressed as RocketMQ's clients compress them, and back.

    zlib  a zlib stream (RFC 1950)       0x300 of the system flag, or 0 from old clients;
          or a gzip file (RFC 1952), which some clients send under the same flag
    lz4   one frame of LZ4's frame form  0x100
    zstd  one Zstandard frame            0x200

Bit 0x1 says that a body is compressed at all. Source: MessageSysFlag, CompressionType,
ZlibCompressor, Lz4Compressor, ZstdCompressor.
"""

import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

from rockoon.errors import InvalidArgument
from rockoon_format.record import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION,
)

UNPACKED_BYTES_MAX = 64 << 20
"""No body is unpacked to more: a few KiB that become a GiB would end whoever reads them."""
LEVEL_DEFAULT = 5
"""RocketMQ's, of zlib and zstd; LZ4 has none there."""
PACKED_BYTES_MIN = 4096
"""Bodies below are sent as they are, as in RocketMQ."""

_GZIP_MAGIC = b"\x1f\x8b"
# Added to zlib's window bits: zlib detects a zlib stream or a gzip file by its first bytes.
_DETECT_FORMAT = 32
# Fed in small pieces, so that what comes out of one is bounded as well.
_PIECE_BYTES = 4096


class Compression(StrEnum):
    """How a producer compresses bodies."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


CompressionName: TypeAlias = Literal["none", "zlib", "lz4", "zstd"]


class _TooLarge(ValueError):
    """It unpacks to more than UNPACKED_BYTES_MAX."""


def unpack(body: bytes, sys_flag: int) -> bytes:
    """Return a compressed body as it was sent.

    Args:
        body: as stored.
        sys_flag: its record's; says which compression it is.

    Raises:
        InvalidArgument: it is not what the flag says, or larger than UNPACKED_BYTES_MAX.
    """
    kind = sys_flag & SYS_FLAG_COMPRESSION
    name, unpacked = _UNPACKERS.get(kind, (None, None))
    if unpacked is None:
        raise InvalidArgument(reason=f"a body compressed with type {kind >> 8}, which is unknown")
    try:
        return unpacked(body)
    except _TooLarge:
        reason = f"a body of {len(body)} bytes unpacks to more than {UNPACKED_BYTES_MAX}"
        raise InvalidArgument(reason=reason) from None
    except (ValueError, RuntimeError, EOFError, zlib.error) as failure:
        raise InvalidArgument(reason=f"a body marked as {name} is not: {failure}") from failure


def pack(body: bytes, compression: Compression, level: int) -> tuple[bytes, int]:
    """Compress a body; returns it with the bits of its record's system flag.

    One that does not get smaller is returned as it is, with no bits.

    Args:
        body: what is to be sent.
        compression: any but NONE.
        level: 1 (quick) to 9 (small), as zlib counts.
    """
    packed, kind = _PACKERS[compression](body, level)
    return (packed, SYS_FLAG_COMPRESSED | kind) if len(packed) < len(body) else (body, 0)


def _unpack_zlib(body: bytes) -> bytes:
    unpacked = b""
    while True:
        # The first bytes decide between zlib and gzip.
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | _DETECT_FORMAT)
        unpacked += unpacker.decompress(body, UNPACKED_BYTES_MAX + 1 - len(unpacked))
        body = unpacker.unused_data
        # A gzip file may have several members.
        if not body.startswith(_GZIP_MAGIC) or len(unpacked) > UNPACKED_BYTES_MAX:
            return _whole(unpacked, unpacker.eof)


def _unpack_lz4(body: bytes) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    unpacker = LZ4FrameDecompressor()
    unpacked: bytes = unpacker.decompress(body, UNPACKED_BYTES_MAX + 1)
    return _whole(unpacked, bool(unpacker.eof))


def _unpack_zstd(body: bytes) -> bytes:
    from zstandard import ZstdDecompressor, ZstdError

    unpacker = ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    size = 0
    try:
        for at in range(0, len(body), _PIECE_BYTES):
            pieces.append(unpacker.decompress(body[at : at + _PIECE_BYTES]))
            size += len(pieces[-1])
            if size > UNPACKED_BYTES_MAX or unpacker.eof:
                break
    except ZstdError as failure:
        raise ValueError(str(failure)) from failure
    return _whole(b"".join(pieces), unpacker.eof)


def _whole(unpacked: bytes, at_end: bool) -> bytes:
    if len(unpacked) > UNPACKED_BYTES_MAX:
        raise _TooLarge
    if not at_end:
        raise ValueError("it is cut short")
    return unpacked


def _pack_zlib(body: bytes, level: int) -> tuple[bytes, int]:
    return zlib.compress(body, level), COMPRESSION_ZLIB


def _pack_lz4(body: bytes, _: int) -> tuple[bytes, int]:
    from lz4.frame import compress

    packed: bytes = compress(body)
    return packed, COMPRESSION_LZ4


def _pack_zstd(body: bytes, level: int) -> tuple[bytes, int]:
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=level).compress(body), COMPRESSION_ZSTD


_UNPACKERS: Mapping[int, tuple[str, Callable[[bytes], bytes]]] = {
    0: ("zlib", _unpack_zlib),
    COMPRESSION_ZLIB: ("zlib", _unpack_zlib),
    COMPRESSION_LZ4: ("lz4", _unpack_lz4),
    COMPRESSION_ZSTD: ("zstd", _unpack_zstd),
}
_PACKERS: Mapping[Compression, Callable[[bytes, int], tuple[bytes, int]]] = {
    Compression.ZLIB: _pack_zlib,
    Compression.LZ4: _pack_lz4,
    Compression.ZSTD: _pack_zstd,
}
