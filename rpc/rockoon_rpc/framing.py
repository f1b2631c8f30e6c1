"""Framing of gRPC messages: each has a prefix of five bytes (compression flag and length)."""

import struct

PREFIX = struct.Struct(">BI")


def framed(message: bytes) -> bytes:
    """Return a message with its gRPC prefix."""
    return PREFIX.pack(0, len(message)) + message
