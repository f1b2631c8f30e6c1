"""Lines from a file or from standard input, in pieces, without ever blocking the event loop long.

A pipe or a terminal delivers when it likes: it is watched by the loop, and a line is passed on as
soon as it is complete. A file is read in pieces that the disk cache holds.
"""

import asyncio
import gzip
import os
import stat
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from rockoon.cli.failures import CommandError

PIECE_BYTES = 256 << 10
# Larger bodies are refused anyway.
LINE_BYTES_MAX = 4 << 20


async def read_lines(file: Path | None) -> AsyncIterator[tuple[list[bytes], int]]:
    """Complete lines without their line ends.

    Args:
        file: None means standard input; a name that ends in .gz is unpacked.

    Yields:
        Some lines, and how many bytes of the file (as it lies on disk) have been read so far.

    Raises:
        CommandError: a line is longer than a message may be, standard input is closed, or what
            should be packed is not, or ends early.
    """
    rest, position = b"", 0
    async for piece, position in read_pieces(file):
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if len(rest) > LINE_BYTES_MAX:
            raise CommandError(f"a line of more than {LINE_BYTES_MAX} bytes, without an end")
        yield [line.removesuffix(b"\r") for line in lines], position
    if rest:
        yield [rest.removesuffix(b"\r")], position


async def read_pieces(file: Path | None) -> AsyncIterator[tuple[bytes, int]]:
    if file is None and sys.stdin is None:
        raise CommandError("standard input is closed")
    if file is None and arrives_over_time(sys.stdin.fileno()):
        async for piece in read_pipe(sys.stdin.buffer):
            yield piece, 0
        return
    raw = sys.stdin.buffer if file is None else await asyncio.to_thread(file.open, "rb")
    try:
        packed = file is not None and file.suffix == ".gz"
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        while piece := read_piece(stream, file):
            yield piece, raw.tell() if file is not None else 0
            await asyncio.sleep(0)
    finally:
        if file is not None:
            raw.close()


def read_piece(stream: BinaryIO | gzip.GzipFile, file: Path | None) -> bytes:
    try:
        return stream.read(PIECE_BYTES)
    except (gzip.BadGzipFile, zlib.error, EOFError) as failure:
        raise CommandError(f"{file} cannot be unpacked: {failure}") from None


def arrives_over_time(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def read_pipe(stream: BinaryIO) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4 * PIECE_BYTES)
    # Other processes may use the same terminal: its mode is restored at the end.
    blocking = os.get_blocking(stream.fileno())
    # The transport closes its descriptor; standard input stays open for the interpreter's exit.
    own = os.fdopen(os.dup(stream.fileno()), "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), own)
    try:
        while piece := await reader.read(PIECE_BYTES):
            yield piece
    finally:
        os.set_blocking(stream.fileno(), blocking)
        transport.close()
