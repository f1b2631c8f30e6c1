"""Replicated log in memory: records with lengths, and records that begin an epoch.

A record is its length (4 bytes), a kind (1 byte) and its body. A record that begins an epoch or a
file names the epoch and the starts of at most `BOUNDARIES_MAX` earlier epochs. A power cut may
remove any part of the bytes that were not synced.
"""

import random
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rockoon_core.replication_rules import Boundary
from rockoon_replica.log import Generation

HEAD = struct.Struct(">IB")
EPOCH = struct.Struct(">IQ")
VALUE, MARK = 0, 1
BOUNDARIES_MAX = 50


class LogRecord(NamedTuple):
    """One record: its range, its kind, and its epoch."""

    first: int
    end: int
    kind: int
    body: bytes
    epoch: int


class ByteLog:
    """A log of whole records.

    Args:
        choose: random choices at a crash.
        file_bytes: size of a full file; the next record begins another file, after a mark.
    """

    def __init__(self, choose: random.Random | None = None, file_bytes: int = 1 << 30) -> None:
        self._choose = choose or random.Random(0)
        self._file_bytes = file_bytes
        self._data = bytearray()
        self.min_offset = 0
        self.durable_end = 0
        self.committed_end = 0
        # The removed bytes of each cut, as the store keeps them: a copy for each cut.
        self.cut: list[bytes] = []
        self.generation = Generation()
        # Values in the log.
        self.kept: frozenset[bytes] = frozenset()
        # Values that a start reports; otherwise empty.
        self.losses: list[str] = []
        # Positions of flipped bytes on the disk; `_data` has the written bytes.
        self.flips: set[int] = set()
        self._records: list[LogRecord] = []
        self._files: list[int] = []
        self._epochs: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return self.min_offset + len(self._data)

    @property
    def dropped(self) -> Mapping[str, int]:
        return {}

    def boundaries(self) -> list[Boundary]:
        ends = [first for _, first in self._epochs[1:]] + [self.end]
        return [
            Boundary(*each, end)
            for each, end in zip(self._epochs, ends, strict=False)
            if end > each[1]
        ]

    def records(self) -> list[LogRecord]:
        """Return all remaining records, in order."""
        return self._records

    def bytes_between(self, first: int, end: int) -> bytes:
        """Return bytes as they were written."""
        return bytes(self._data[first - self.min_offset : end - self.min_offset])

    def bytes_on_disk(self, first: int, end: int) -> bytes:
        """Return bytes as they are read from the disk."""
        data = bytearray(self.bytes_between(first, end))
        for position in self.flips:
            if first <= position < end:
                data[position - first] ^= 1
        return bytes(data)

    def tail_crc(self, end: int, size: int) -> int:
        assert end - size >= self.min_offset
        return zlib.crc32(self.bytes_on_disk(end - size, end))

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        """Return the offset of the first damaged record. Records have no checksums here, so the
        bytes are compared with the written bytes."""
        for record in self._records:
            if offset <= record.first and record.end <= offset + len(data):
                written = self.bytes_between(record.first, record.end)
                if data[record.first - offset : record.end - offset] != written:
                    return record.first
        return None

    def record_before(self, position: int) -> int:
        at = bisect_right(self._records, position, key=lambda record: record.first) - 1
        return self._records[at].first if at >= 0 else self.min_offset

    def is_damaged(self, position: int) -> bool:
        """Return whether the record at a position has a flipped bit."""
        return self.record_before(position) == position and any(
            self.record_before(each) == position for each in self.flips
        )

    def file_begin(self, position: int) -> int:
        return self.record_before(position)

    async def repair(self, offset: int, data: bytes) -> None:
        self.repair_nowait(offset, data)

    def repair_nowait(self, offset: int, data: bytes) -> None:
        """Repair as `repair` does, without waiting."""
        end = offset + len(data)
        if not self.min_offset <= offset <= end <= self.end:
            raise ValueError(f"the log does not have {offset} to {end}")
        assert data == self.bytes_between(offset, end)
        self.flips = {each for each in self.flips if not offset <= each < end}

    def blank_at(self, position: int) -> int | None:
        """Return None: this log has no blanks."""
        del position

    def read(self, offset: int, bytes_max: int) -> bytes:
        if offset == self.end:
            return b""
        at = bisect_right(self._records, offset, key=lambda record: record.first) - 1
        if at < 0 or self._records[at].first != offset:
            raise ValueError(f"no record begins at {offset}")
        end = self._records[at].end
        for record in self._records[at + 1 :]:
            if record.end - offset > bytes_max:
                break
            end = record.end
        return self.bytes_on_disk(offset, end)

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        return self.read(offset, bytes_max)

    def write(self, offset: int, data: bytes) -> None:
        if offset != self.end:
            raise ValueError(f"{offset} is not the end, {self.end} is")
        parsed = list(_records_in(data))
        if sum(HEAD.size + len(body) for _, body in parsed) != len(data):
            raise ValueError("no whole records")
        for kind, body in parsed:
            self._add(kind, body)

    def append(self, body: bytes) -> int:
        """Append a value as a leader does; return the offset of its record."""
        self._begin_file()
        first = self.end
        self._add(VALUE, body)
        return first

    def open_epoch(self, epoch: int) -> None:
        if self._epochs and self._epochs[-1][0] >= epoch:
            raise ValueError(f"epoch {self._epochs[-1][0]} has begun")
        self._add(MARK, _mark([*self._epochs, (epoch, self.end)]))

    def _begin_file(self) -> None:
        if self._files and self.end - self._files[-1] >= self._file_bytes:
            self._add(MARK, _mark(self._epochs))

    def _add(self, kind: int, body: bytes) -> None:
        first = self.end
        if not self._files or (kind == MARK and first - self._files[-1] >= self._file_bytes):
            self._files.append(first)
        if kind == MARK:
            epochs = _epochs_of(body)
            if not self._epochs or epochs[-1] != self._epochs[-1]:
                self._epochs = [*self._epochs, epochs[-1]] if self._records else epochs
        elif not self._epochs:
            self._epochs = [(0, 0)]
        self._data += HEAD.pack(HEAD.size + len(body), kind) + body
        epoch = self._epochs[-1][0]
        self._records.append(LogRecord(first, self.end, kind, body, epoch))

    async def sync(self) -> None:
        self.sync_nowait()

    def sync_nowait(self) -> None:
        """Sync as `sync` does, without waiting."""
        self.durable_end = self.end

    def drop(self, dropped: Mapping[str, int]) -> None:
        raise AssertionError(f"no leader has dropped {dropped}")

    def need_generation(self, end: int) -> None:
        assert not self._records
        self.generation = self.generation._replace(needed_end=end)

    def make_generation(self, identity: int) -> None:
        """Make a generation of all committed records that remain, and use it, as a leader does."""
        end = min(self.committed_end, self.durable_end)
        values = {each.body for each in self._records if each.kind == VALUE and each.end <= end}
        if end > self.generation.end:
            self.generation = self.generation._replace(identity=identity, end=end)
            self.kept |= values

    def take_generation(self, leader: "ByteLog") -> None:
        """Use the generation of a leader, as a follower does that has it on its disk."""
        end = min(self.committed_end, self.durable_end)
        if self.generation.end < leader.generation.end <= end:
            identity, made_to, _ = leader.generation
            self.generation = self.generation._replace(identity=identity, end=made_to)
            self.kept = leader.kept

    def commit(self, offset: int) -> None:
        assert self.committed_end <= offset <= self.end, (self.committed_end, offset, self.end)
        self.committed_end = offset

    def truncate(self, offset: int) -> None:
        if not self._records:
            if offset < self.end:
                raise ValueError(f"an empty log at {self.end} cannot begin at {offset}")
            self._data.clear()
            self.min_offset = self.durable_end = self.committed_end = offset
            self._files, self._epochs = [], []
            return
        if offset < max(self.min_offset, self.committed_end):
            raise ValueError(f"cannot cut at {offset}")
        self.cut.append(self.bytes_between(offset, self.end))
        self._keep(self.min_offset, offset)

    def _keep(self, first: int, end: int) -> None:
        """Keep only a range of the log, and read epochs and marks from its records again."""
        if end not in {self.min_offset, *(record.end for record in self._records)}:
            raise ValueError(f"no record ends at {end}")
        kept = self.bytes_between(first, end)
        durable, files = min(self.durable_end, end), self._files
        self._data, self._records, self._epochs, self._files = bytearray(), [], [], []
        self.min_offset = first
        self.flips = {each for each in self.flips if first <= each < end}
        for kind, body in _records_in(kept):
            if self.end in files and self.end not in self._files:
                self._files.append(self.end)
            self._add(kind, body)
        self.durable_end = durable

    def delete_below(self, offset: int) -> None:
        """Delete whole files before a position, as retention does; the last file remains."""
        kept = [first for first in self._files if first <= offset]
        if kept and kept[-1] > self.min_offset:
            self._keep(kept[-1], self.end)

    def reopened(self, choose: random.Random) -> None:
        """Return the log as a new process opens it: its bytes are synced first, and the recovery
        point is older than the newest state."""
        self.sync_nowait()
        if choose.random() < 0.5:
            self.committed_end = choose.randint(self.min_offset, self.committed_end)

    def crash(self, *, power: bool) -> None:
        """End the process, or cut the machine's power: bytes that were not synced may be lost."""
        if power:
            self._lose(self._choose.randint(self.durable_end, self.end))

    def lose_records(self, kept: int) -> None:
        """Simulate a damaged disk: whole records are lost, durable or not."""
        self.durable_end = self.min_offset
        self._lose(kept)

    def _lose(self, kept: int) -> None:
        """Keep the bytes before a position, and at least all durable ones; a torn record is
        removed."""
        ends = [record.end for record in self._records if record.end <= kept]
        end = max(self.durable_end, ends[-1] if ends else self.min_offset)
        self.committed_end = min(self.committed_end, end)
        self._keep(self.min_offset, end)


def _records_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + HEAD.size <= len(data):
        length, kind = HEAD.unpack_from(data, at)
        if length < HEAD.size or at + length > len(data):
            return
        yield kind, data[at + HEAD.size : at + length]
        at += length


def _mark(epochs: list[tuple[int, int]]) -> bytes:
    return b"".join(EPOCH.pack(*each) for each in epochs[-BOUNDARIES_MAX:])


def _epochs_of(body: bytes) -> list[tuple[int, int]]:
    return [(epoch, first) for epoch, first in EPOCH.iter_unpack(body)]
