"""Framing of gRPC messages in a stream: one byte (compressed or not) and the length before each."""

import struct

PREFIX = struct.Struct(">BI")


def framed(message: bytes) -> bytes:
    """A message as it is on the wire."""
    return PREFIX.pack(0, len(message)) + message
