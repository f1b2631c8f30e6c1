"""One open generation and the position of each of its messages.

Entries are memory-mapped and searched without a copy: they were read in full and compared with
their checksums just before. Records are read with pread, like those of the log.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.file_reads import gather, pages_resident, pread
from rockoon_broker.store.queues.consume_queue import QueueKey, matching_count
from rockoon_core.disk import Disk
from rockoon_format.generation import (
    GenerationError,
    GenerationPart,
    Manifest,
    PartEntries,
    check_order,
    part_names,
)
from rockoon_format.record import RecordError, decode_record

_READ_BYTES = 4 << 20
_ROWS_PER_STEP = 4096


@dataclass(frozen=True, slots=True)
class RowRange:
    """Neighbouring rows of one part, all of one queue, with ascending store times; the first and
    the last one are not superseded.
    """

    part: int
    first_row: int
    end_row: int
    last_offset: int
    """Queue offset of the last row."""


@dataclass(frozen=True, slots=True)
class GenerationRow:
    part: int
    row: int


@dataclass(frozen=True, slots=True)
class QueueCoverage:
    """The range of one queue that a generation covers."""

    covered_from: int
    """The queue's first offset."""
    covered_to: int
    """The first offset that only the log has."""
    records: int
    slices: tuple[RowRange, ...] = ()
    """In ascending order of queue offsets."""
    last_offsets: tuple[int, ...] = ()
    """Last queue offset of each slice."""


class OpenGeneration:
    """A generation with open files; owned by one thread at a time.

    Args:
        parts: entries of each part, already checked against the manifest.
        fds: descriptors of the parts' records, closed by `close`.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        parts: list[PartEntries],
        fds: list[int],
        disk: Disk,
    ) -> None:
        self.directory = directory
        self.manifest = manifest
        self.parts = parts
        self._fds = fds
        self._disk = disk
        self.coverages: dict[QueueKey, QueueCoverage] = _coverages(manifest, parts)

    def close(self) -> None:
        """Close the files. No reads are allowed after it."""
        for fd in self._fds:
            self._disk.close(fd)
        self._fds.clear()
        # The last reference to a mapping unmaps it.
        self.parts = []
        self.coverages = {}

    def find(self, coverage: QueueCoverage, offset: int) -> GenerationRow | None:
        """Return the first record of a queue at or after an offset."""
        number = bisect_left(coverage.last_offsets, offset)
        if number == len(coverage.slices):
            return None
        piece = coverage.slices[number]
        return GenerationRow(piece.part, self._row_of(piece, offset))

    def rows(
        self, coverage: QueueCoverage, offset: int
    ) -> Iterator[tuple[PartEntries, int, NDArray[np.int64]]]:
        """Yield (entries, part, rows) from an offset on, with at least one row each."""
        for number in range(bisect_left(coverage.last_offsets, offset), len(coverage.slices)):
            piece = coverage.slices[number]
            entries = self.parts[piece.part]
            for start in range(self._row_of(piece, offset), piece.end_row, _ROWS_PER_STEP):
                stop = min(start + _ROWS_PER_STEP, piece.end_row)
                rows = entries.kept_rows(slice(start, stop))
                if len(rows):
                    yield entries, piece.part, rows

    def first(self, coverage: QueueCoverage) -> GenerationRow | None:
        """The oldest record of a queue."""
        return (
            GenerationRow(coverage.slices[0].part, coverage.slices[0].first_row)
            if coverage.slices
            else None
        )

    def last(self, coverage: QueueCoverage) -> GenerationRow | None:
        """Return the newest record of a queue in the generation."""
        return (
            GenerationRow(coverage.slices[-1].part, coverage.slices[-1].end_row - 1)
            if coverage.slices
            else None
        )

    def first_since(
        self, coverage: QueueCoverage, timestamp_ms: int, *, behind: bool
    ) -> GenerationRow | None:
        """Return the first record of a queue from which on all were stored at a time or later.

        Args:
            behind: strictly later.
        """
        first: GenerationRow | None = None
        for piece in reversed(coverage.slices):
            times = self.parts[piece.part].store_timestamps_ms[piece.first_row : piece.end_row]
            early = int(np.searchsorted(times, timestamp_ms, "right" if behind else "left"))
            if early < len(times):
                row = self.parts[piece.part].next_kept(piece.first_row + early)
                first = GenerationRow(piece.part, row)
            if early:
                break
        return first

    def before(self, coverage: QueueCoverage, row: GenerationRow | None) -> GenerationRow | None:
        """Return the record of a queue before another one; for None, the last record."""
        if row is None:
            return self.last(coverage)
        former: RowRange | None = None
        for piece in coverage.slices:
            if piece.part == row.part:
                if row.row > piece.first_row:
                    return GenerationRow(row.part, self.parts[row.part].last_kept(row.row - 1))
                break
            former = piece
        return GenerationRow(former.part, former.end_row - 1) if former else None

    def queue_offset(self, row: GenerationRow) -> int:
        return int(self.parts[row.part].queue_offsets[row.row])

    def store_timestamp_ms(self, row: GenerationRow) -> int:
        return int(self.parts[row.part].store_timestamps_ms[row.row])

    def physical_offset(self, row: GenerationRow) -> int:
        return int(self.parts[row.part].physical_offsets[row.row])

    def read(
        self, key: QueueKey, part: int, rows: NDArray[np.int64]
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Read records of one queue from one part; return their bytes and sizes.

        Returns fewer records if a later one is damaged.

        Raises:
            StoreDamaged: the first record does not match its entry, or the file was truncated.
            OSError: the disk.
        """
        entries = self.parts[part]
        positions, sizes = entries.positions[rows], entries.sizes[rows].astype(np.int64)

        def read(at: int, count: int) -> bytes:
            data = pread(self._disk, self._fds[part], count, at)
            if len(data) < count:
                raise self._damaged(part, at)
            return data

        frames = gather(positions, sizes, read)
        good = matching_count(frames, sizes, *key, entries.queue_offsets[rows])
        if good == 0:
            raise self._damaged(part, int(positions[0]))
        if good < len(rows):
            sizes = sizes[:good]
            frames = frames[: int(sizes.sum())]
        return frames, sizes

    def read_at(self, physical_offset: int) -> bytes | None:
        """Return the record with a physical offset of the log, CRC checked; None if not present.

        Raises:
            StoreDamaged: the record does not match its entry.
            OSError: the disk.
        """
        for number, part in enumerate(self.manifest.parts):
            if part.log_start <= physical_offset < part.log_end:
                row = self.parts[number].row_at(physical_offset)
                if row is not None:
                    return self._checked(number, row)
        return None

    def offsets_with_key(
        self, topic: str, key_hash: int, begin_ms: int, end_ms: int
    ) -> NDArray[np.int64]:
        """Return physical offsets of a topic's records with a key of this hash, ascending.

        Args:
            key_hash: see `PartEntries`.
            begin_ms, end_ms: store times, inclusive.
        """
        found = [np.zeros(0, np.int64)]
        for entries in self.parts:
            rows = entries.rows_with_key(key_hash)
            if len(rows) == 0 or topic not in entries.topics:
                continue
            number = entries.topics.index(topic)
            slices = np.searchsorted(entries.slice_starts, rows, "right") - 1
            times = entries.store_timestamps_ms[rows]
            wanted = (
                (entries.slice_topics[slices] == number) & (times >= begin_ms) & (times <= end_ms)
            )
            found.append(entries.physical_offsets[rows[wanted]])
        return np.unique(np.concatenate(found))

    def pages_resident(self, row: GenerationRow) -> bool | None:
        """Return whether a record's pages are in memory; None if the system cannot determine it."""
        entries = self.parts[row.part]
        return pages_resident(
            self._fds[row.part], int(entries.positions[row.row]), int(entries.sizes[row.row])
        )

    def _checked(self, part: int, row: int) -> bytes:
        entries = self.parts[part]
        position, size = int(entries.positions[row]), int(entries.sizes[row])
        frame = pread(self._disk, self._fds[part], size, position)
        try:
            record = decode_record(frame)
        except RecordError as error:
            raise self._damaged(part, position) from error
        if record.physical_offset != int(entries.physical_offsets[row]):
            raise self._damaged(part, position)
        return frame

    def _row_of(self, piece: RowRange, offset: int) -> int:
        entries = self.parts[piece.part]
        offsets = entries.queue_offsets[piece.first_row : piece.end_row]
        return entries.next_kept(piece.first_row + int(np.searchsorted(offsets, offset)))

    def _damaged(self, part: int, position: int) -> StoreDamaged:
        path = self.directory / part_names(part)[0]
        return StoreDamaged(
            path, position, "the record is not the one that was verified; restore the file"
        )


def _no_pause() -> None:
    """Default `pause`: does nothing."""


def open_generation(
    directory: Path, manifest: Manifest, disk: Disk, pause: Callable[[], None] = _no_pause
) -> OpenGeneration:
    """Open a generation: reads entries in full; of record files, only the size is checked.

    Args:
        pause: called between steps; an exception from it ends the call.

    Raises:
        GenerationError: a file is missing or does not match the manifest.
        OSError: the disk.
    """
    parts: list[PartEntries] = []
    fds: list[int] = []
    try:
        for part in manifest.parts:
            records, entries = (directory / name for name in part_names(part.number))
            fds.append(_open_records(records, part, disk))
            check_file(entries, part.entries_bytes, part.entries_sha256, disk, pause)
            parts.append(_decoded(entries, disk))
            if part.superseded:
                name, size, sha256 = part.files[-1]
                check_file(directory / name, size, sha256, disk, pause)
                parts[-1] = parts[-1].with_superseded(disk.map_reading(directory / name))
        check_order(manifest, parts)
    except BaseException:
        for fd in fds:
            disk.close(fd)
        raise
    return OpenGeneration(directory, manifest, parts, fds, disk)


def check_file(
    path: Path, file_bytes: int, sha256: str, disk: Disk, pause: Callable[[], None]
) -> None:
    """Read a file in full; GenerationError if it does not match, OSError for the disk."""
    digest = hashlib.sha256()
    fd = _open(path, disk)
    try:
        at = 0
        while data := disk.pread(fd, _READ_BYTES, at):
            digest.update(data)
            at += len(data)
            pause()
    finally:
        disk.close(fd)
    if at != file_bytes:
        raise GenerationError(f"{path.name} has {at} bytes, but {file_bytes} by the manifest")
    if digest.hexdigest() != sha256:
        raise GenerationError(f"{path.name} does not have the manifest's checksum")


def _open_records(path: Path, part: GenerationPart, disk: Disk) -> int:
    fd = _open(path, disk)
    found = disk.facts(path).bytes
    if found != part.records_bytes:
        disk.close(fd)
        raise GenerationError(
            f"{path.name} has {found} bytes, but {part.records_bytes} by the manifest"
        )
    return fd


def _open(path: Path, disk: Disk) -> int:
    try:
        return disk.open_reading(path)
    except FileNotFoundError as error:
        raise GenerationError(f"{path.name} is missing") from error


def _decoded(path: Path, disk: Disk) -> PartEntries:
    try:
        return PartEntries.decode(disk.map_reading(path))
    except GenerationError as error:
        raise GenerationError(f"{path.name}: {error}") from error


def _coverages(manifest: Manifest, parts: list[PartEntries]) -> dict[QueueKey, QueueCoverage]:
    slices: dict[QueueKey, list[RowRange]] = {}
    for number, entries in enumerate(parts):
        # Store times decrease where a time run of the log began.
        begins = np.flatnonzero(np.diff(entries.store_timestamps_ms) < 0) + 1
        for topic, queue, rows in entries.slices():
            low, high = np.searchsorted(begins, [rows.start + 1, rows.stop])
            for start, stop in pairwise([rows.start, *begins[low:high].tolist(), rows.stop]):
                kept = entries.kept_rows(slice(start, stop))
                if len(kept):
                    first, last = int(kept[0]), int(kept[-1])
                    piece = RowRange(number, first, last + 1, int(entries.queue_offsets[last]))
                    slices.setdefault((topic, queue), []).append(piece)
    found = {}
    for topic_covered in manifest.topics:
        for covered in topic_covered.queues:
            key = (topic_covered.topic, covered.queue)
            pieces = slices.get(key, [])
            found[key] = QueueCoverage(
                covered_from=covered.covered_from,
                covered_to=covered.covered_to,
                records=covered.records,
                slices=tuple(pieces),
                last_offsets=tuple(piece.last_offset for piece in pieces),
            )
    return found
