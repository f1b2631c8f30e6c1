"""A minimal replicated log in one file: records with their lengths.

    kind (1 byte: R or M) | length of the rest (4 bytes, big-endian) | bytes

M begins an epoch; its bytes are JSON: the epoch, and the boundaries of the earlier ones.
"""

import asyncio
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.replication_rules import Boundary
from rockoon_replica.log import NO_GENERATION, Generation, LogFull, WriteCheck

HEADER = struct.Struct(">cI")
RECORD, MARK = b"R", b"M"


def record(payload: bytes) -> bytes:
    return HEADER.pack(RECORD, len(payload)) + payload


class FileLog:
    """A `ReplicatedLog`.

    Args:
        path: the file; created if it does not exist.
        disk: the file layer.
    """

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self._fd = self.disk.open_or_create(path)
        self._path = path
        self._failure = ""
        self._begin = 0
        self._end = 0
        self._epochs: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self._take(self.disk.pread(self._fd, 1 << 30, 0))
        self.durable_end = self._end
        self.committed_end = 0
        self.truncated: list[int] = []

    @property
    def end(self) -> int:
        return self._end

    @property
    def min_offset(self) -> int:
        return self._begin

    @property
    def dropped(self) -> Mapping[str, int]:
        return {}

    @property
    def generation(self) -> Generation:
        return NO_GENERATION

    def need_generation(self, end: int) -> None:
        raise AssertionError(f"no leader has a generation up to {end}")

    def boundaries(self) -> Sequence[Boundary]:
        firsts = list(self._epochs)
        if self._end and (not firsts or firsts[0][1] > 0):
            firsts.insert(0, (0, 0))
        ends = [*(first for _, first in firsts[1:]), self._end]
        return [Boundary(*each, end) for each, end in zip(firsts, ends, strict=False)]

    def tail_crc(self, end: int, bytes_max: int) -> int:
        first = max(end - bytes_max, self._begin)
        return zlib.crc32(self.disk.pread(self._fd, end - first, first))

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        """Return None: records have no checksums here."""
        del offset, data

    def record_before(self, position: int) -> int:
        return max(each for each in self._starts if each <= position)

    file_begin = record_before

    async def repair(self, offset: int, data: bytes) -> None:
        self.disk.write_all(self._fd, data, offset)

    def blank_at(self, position: int) -> int | None:
        """Return None: this log has no blanks."""
        del position

    def read(self, offset: int, bytes_max: int) -> bytes:
        if offset == self._end:
            return b""
        at = self._index(offset)
        last = at + 1
        while last < len(self._starts) and self._starts[last] - offset <= bytes_max:
            last += 1
        end = self._starts[last] if last < len(self._starts) else self._end
        if end - offset > bytes_max and last > at + 1:
            end = self._starts[last - 1]
        return self.disk.pread(self._fd, end - offset, offset)

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        return self.read(offset, bytes_max)

    def write(self, offset: int, data: bytes) -> None:
        if offset != self._end:
            raise ValueError(f"{offset} is not the end, {self._end}")
        if sum(len(each) for _, each in _records(data)) != len(data):
            raise ValueError("not whole records")
        try:
            self.disk.write_all(self._fd, data, offset)
        except OSError as failure:
            self._failure = str(failure)
            raise LogFull(str(failure)) from failure
        self._failure = ""
        self._take(data)

    def check_writes(self, *, probe: bool = False) -> WriteCheck:
        if probe or self._failure:
            try:
                # After the end, where no read reaches.
                self.disk.write_all(self._fd, bytes(8), self._end)
                self._failure = ""
            except OSError as failure:
                self._failure = str(failure)
        return WriteCheck(self._failure)

    def append(self, payload: bytes) -> int:
        """Append as a leader does for a producer; return the end of the record."""
        self.write(self._end, record(payload))
        return self._end

    async def sync(self) -> None:
        end = self._end
        await asyncio.to_thread(self.disk.fdatasync, self._fd)
        self.durable_end = max(self.durable_end, min(end, self._end))

    def truncate(self, offset: int) -> None:
        if offset == self._end:
            return
        if not self._starts:
            self._begin = self._end = self.durable_end = self.committed_end = offset
            return
        if offset < self.committed_end:
            raise ValueError(f"{offset} is below the committed end, {self.committed_end}")
        del self._starts[self._index(offset) :]
        self._epochs = [each for each in self._epochs if each[1] < offset]
        self.disk.set_size(self._fd, offset)
        self.disk.fdatasync(self._fd)
        self._end = self.durable_end = offset
        self.truncated.append(offset)

    def drop(self, dropped: Mapping[str, int]) -> None:
        raise AssertionError(f"no leader has dropped {dropped}")

    def commit(self, offset: int) -> None:
        assert offset <= self._end
        self.committed_end = max(self.committed_end, offset)

    def open_epoch(self, epoch: int) -> None:
        known = [tuple(each) for each in self.boundaries()]
        if known and known[-1][0] >= epoch:
            raise ValueError(f"epoch {epoch} was opened")
        told = json.dumps({"epoch": epoch, "before": known}).encode()
        self.write(self._end, HEADER.pack(MARK, len(told)) + told)

    def payloads(self, end: int | None = None) -> list[bytes]:
        """Return the payloads of producers up to a position."""
        data = self.disk.pread(self._fd, (self._end if end is None else end), 0)
        return [each[HEADER.size :] for kind, each in _records(data) if kind == RECORD]

    def content(self) -> bytes:
        return self.disk.pread(self._fd, self._end, 0)

    def close(self) -> None:
        self.disk.close(self._fd)

    def _index(self, offset: int) -> int:
        try:
            return self._starts.index(offset)
        except ValueError:
            raise ValueError(f"nothing begins at {offset}") from None

    def _take(self, data: bytes) -> None:
        for kind, each in _records(data):
            if kind == MARK:
                self._epochs.append((json.loads(each[HEADER.size :])["epoch"], self._end))
            self._starts.append(self._end)
            self._end += len(each)


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + HEADER.size <= len(data):
        kind, length = HEADER.unpack_from(data, at)
        if at + HEADER.size + length > len(data) or kind not in (RECORD, MARK):
            return
        yield kind, data[at : at + HEADER.size + length]
        at += HEADER.size + length
