"""Assembles gRPC messages from DATA frames, for the session on the h2 library."""

import struct
from collections.abc import Iterator

PREFIX = struct.Struct(">BI")

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
