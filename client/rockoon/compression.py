"""Compression of bodies in the formats of RocketMQ's clients.

    zlib  a zlib stream (RFC 1950)       system flag 0x300, or 0 from old clients;
          or a gzip file (RFC 1952), which some clients send with the same flag
    lz4   one frame of LZ4's frame form  system flag 0x100
    zstd  one Zstandard frame            system flag 0x200

Bit 0x1 of the system flag marks a compressed body. Source: MessageSysFlag, CompressionType,
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
"""Maximum size of a decompressed body: a few KiB can decompress to a GiB and exhaust memory."""
LEVEL_DEFAULT = 5
"""Default level of RocketMQ for zlib and zstd; LZ4 has no levels there."""
PACKED_BYTES_MIN = 4096
"""Smaller bodies are not compressed, as in RocketMQ."""

_GZIP_MAGIC = b"\x1f\x8b"
# Added to zlib's window bits: zlib detects a zlib stream or a gzip file by its first bytes.
_DETECT_FORMAT = 32
# Input is fed in small chunks, so that the output of each chunk is bounded too.
_PIECE_BYTES = 4096


class Compression(StrEnum):
    """Compression of a producer's bodies."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


CompressionName: TypeAlias = Literal["none", "zlib", "lz4", "zstd"]


class _TooLarge(ValueError):
    """The decompressed body is larger than UNPACKED_BYTES_MAX."""


def unpack(body: bytes, sys_flag: int) -> bytes:
    """Decompress a body.

    Args:
        body: the stored body.
        sys_flag: system flag of its record, which has the type of compression.

    Raises:
        InvalidArgument: the body does not have this format, or is larger than UNPACKED_BYTES_MAX.
    """
    kind = sys_flag & SYS_FLAG_COMPRESSION
    name, unpacked = _UNPACKERS.get(kind, (None, None))
    if unpacked is None:
        raise InvalidArgument(reason=f"the body has the unknown compression type {kind >> 8}")
    try:
        return unpacked(body)
    except _TooLarge:
        reason = f"a body of {len(body)} bytes decompresses to more than {UNPACKED_BYTES_MAX}"
        raise InvalidArgument(reason=reason) from None
    except (ValueError, RuntimeError, EOFError, zlib.error) as failure:
        raise InvalidArgument(reason=f"the body is not valid {name}: {failure}") from failure


def pack(body: bytes, compression: Compression, level: int) -> tuple[bytes, int]:
    """Compress a body; return it with the bits for its record's system flag.

    A body that does not get smaller is returned unchanged, with 0.

    Args:
        body: the body.
        compression: any except NONE.
        level: 1 (fast) to 9 (small), in zlib's scale.
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
        raise ValueError("it is truncated")
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
