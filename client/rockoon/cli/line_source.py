"""Reads lines from a file or from standard input without blocking the event loop for long.

A pipe or a terminal may deliver at any time: the event loop watches it, and each line is passed on
as soon as it is complete. A file is read in blocks, which usually come from the page cache.
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

CHUNK_BYTES = 256 << 10
# Longer bodies are refused by the broker.
LINE_BYTES_MAX = 4 << 20


async def read_lines(file: Path | None) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield complete lines without their line ends.

    Args:
        file: None for standard input; a file that ends in .gz is decompressed.

    Yields:
        Some lines, and the number of bytes of the file (compressed, if it is .gz) read so far.

    Raises:
        CommandError: a line is longer than a message may be, standard input is closed, or a .gz
            file is invalid or ends early.
    """
    rest, position = b"", 0
    async for chunk, position in read_chunks(file):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > LINE_BYTES_MAX:
            raise CommandError(f"a line of more than {LINE_BYTES_MAX} bytes, without an end")
        yield [line.removesuffix(b"\r") for line in lines], position
    if rest:
        yield [rest.removesuffix(b"\r")], position


async def read_chunks(file: Path | None) -> AsyncIterator[tuple[bytes, int]]:
    if file is None and sys.stdin is None:
        raise CommandError("standard input is closed")
    if file is None and arrives_over_time(sys.stdin.fileno()):
        async for chunk in read_pipe(sys.stdin.buffer):
            yield chunk, 0
        return
    raw = sys.stdin.buffer if file is None else await asyncio.to_thread(file.open, "rb")
    try:
        packed = file is not None and file.suffix == ".gz"
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        while chunk := read_chunk(stream, file):
            yield chunk, raw.tell() if file is not None else 0
            await asyncio.sleep(0)
    finally:
        if file is not None:
            raw.close()


def read_chunk(stream: BinaryIO | gzip.GzipFile, file: Path | None) -> bytes:
    try:
        return stream.read(CHUNK_BYTES)
    except (gzip.BadGzipFile, zlib.error, EOFError) as failure:
        raise CommandError(f"cannot decompress {file}: {failure}") from None


def arrives_over_time(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def read_pipe(stream: BinaryIO) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4 * CHUNK_BYTES)
    # Other processes may use the same terminal, so its blocking mode is restored at the end.
    blocking = os.get_blocking(stream.fileno())
    # The transport closes its descriptor; standard input must stay open until interpreter exit.
    own = os.fdopen(os.dup(stream.fileno()), "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), own)
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        os.set_blocking(stream.fileno(), blocking)
        transport.close()
