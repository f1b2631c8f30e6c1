"""Sequential scan of the CommitLog's records from a physical offset up to the last whole record."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_format.batch import Scan, ScanEnd, scan
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

WINDOW_BYTES = 8 << 20
# One read is scanned in one call, because the rest would be read again; it fits into a CPU cache.
_WALKED_BYTES = 1 << 20
_WALKED_RECORDS_MAX = _WALKED_BYTES // RECORD_BYTES_MIN + 1
_SIZE_AND_MAGIC = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class ScannedChunk:
    base: int
    """Physical offset of the scanned buffer; `records.offsets` are relative to it."""
    records: Scan

    def offsets_of(self, topic: bytes) -> list[int]:
        """Return the physical offsets of the chunk's records of one topic."""
        records = self.records
        if topic not in records.topics:
            return []
        is_of_it = records.topic_numbers == records.topics.index(topic)
        offsets: list[int] = (records.offsets[is_of_it] + self.base).tolist()
        return offsets


class LogScan:
    """One pass over the log; its fields hold the result.

    Args:
        starts: start offsets of the files, ascending.
        checksums, checksums_from: see `scan`; `checksums_from` is a physical offset.
        delay_levels_ms: delays of levels 1, 2, ... for the deliver times of delayed records.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        starts: list[int],
        disk: Disk,
        *,
        checksums: bool = True,
        checksums_from: int | None = None,
        delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    ) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._starts = starts
        self._disk = disk
        self._checksums = checksums
        self._checksums_from = checksums_from
        self._delay_levels_ms = delay_levels_ms
        self.records_scanned = 0
        self.bytes_scanned = 0
        self.end = 0
        """Physical offset after the last whole record."""
        self.stopped_by: ScanEnd = ScanEnd.END
        """Reason why the scan stopped at `end`."""
        self.closed_end = 0
        """End of the last file that is closed by a blank; 0 if there is none."""

    def chunks(self, position: int) -> Iterator[ScannedChunk]:
        """Scan from `position`, where a record must start or the log end."""
        self.end = position
        for start in self._starts:
            if position >= start + self._file_bytes:
                continue
            position = max(position, start)
            yield from self._file_chunks(start, position - start)
            # Only after a blank or a completely full file does the log continue in the next one.
            if self.stopped_by not in (ScanEnd.BLANK, ScanEnd.END):
                return

    def _file_chunks(self, start: int, position: int) -> Iterator[ScannedChunk]:
        fd = self._disk.open_reading(self._directory / offset_to_file_name(start))
        window = _WALKED_BYTES
        try:
            while True:
                count = min(window, self._file_bytes - position)
                # A file truncated while in use reads as zeros at its end, as for all other readers.
                data = self._disk.pread(fd, count, position).ljust(count, b"\0")
                base = start + position
                since = self._checksums_from
                records = scan(
                    data,
                    0,
                    len(data),
                    records_max=_WALKED_RECORDS_MAX,
                    checksums=self._checksums,
                    checksums_from=None if since is None else since - base,
                    delay_levels_ms=self._delay_levels_ms,
                )
                self.stopped_by = records.end
                if records.count:
                    self._count(records, base)
                    yield ScannedChunk(base, records)
                position += records.position
                if records.end is ScanEnd.BLANK:
                    size, _ = _SIZE_AND_MAGIC.unpack_from(data, records.position)
                    if size == self._file_bytes - position:
                        self.closed_end = start + self._file_bytes
                at_file_end = base - start + len(data) == self._file_bytes
                if records.end is ScanEnd.LIMIT:
                    continue
                # A truncated record may only be cut by the window.
                if records.end not in (ScanEnd.END, ScanEnd.TRUNCATED) or at_file_end:
                    return
                if records.position == 0:
                    wanted = self._whole_bytes(data, self._file_bytes - position)
                    if wanted == 0:
                        return
                    window = wanted
        finally:
            self._disk.close(fd)

    def _whole_bytes(self, head: bytes, remaining: int) -> int:
        """Return the size of the record at `head` in bytes; 0 if there is no record."""
        size, magic = _SIZE_AND_MAGIC.unpack_from(head)
        if magic == MAGIC_BLANK and size <= remaining:
            self.stopped_by = ScanEnd.BLANK
            return 0
        whole = magic in (MAGIC_V1, MAGIC_V2) and len(head) < size <= remaining
        return int(size) if whole else 0

    def _count(self, records: Scan, base: int) -> None:
        self.records_scanned += records.count
        self.bytes_scanned += records.position
        self.end = base + records.position
