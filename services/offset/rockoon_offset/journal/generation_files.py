"""Files of a single-copy journal: names, reading, and writing of snapshots.

Reading never changes the directory.
"""

import errno
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import former_frames as frames

log = logging.getLogger(__name__)

FILE_NAME = re.compile(r"(\d{12})\.(journal|snapshot)")
SNAPSHOT_FRAME_RECORDS = 1000
SNAPSHOT_END = b'["end"]'


class SyncFailed(OSError):
    """A sync failed. Unlike a failed write, it cannot be retried."""


class Contents(NamedTuple):
    """Records of a journal directory, read at a start."""

    generation: int
    # Records of the snapshot, then of the journals after it.
    records: list[bytes]
    next_sequence: int
    # End of the newest journal. Bytes after it are a mark, or an unfinished write.
    end: int
    torn_bytes: int
    # A mark proves that no bytes after `end` were acknowledged.
    marked: bool


def journal_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.journal"


def snapshot_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.snapshot"


def generations(directory: Path, kind: str) -> list[int]:
    """Return the numbers of generations with a file of this kind, oldest first."""
    matches = (FILE_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match and match[2] == kind)


def read_snapshot(directory: Path, generation: int) -> tuple[list[bytes], int]:
    """Return the records of a snapshot, and the first sequence of its journal.

    Raises:
        StoreCorrupt: the snapshot is damaged.
    """
    path = snapshot_path(directory, generation)
    data = path.read_bytes()
    header = frames.read_file_header(data, frames.SNAPSHOT_MAGIC)
    if header is None or header.generation != generation:
        raise StoreCorrupt(path=path, reason="its header is not valid")
    records: list[bytes] = []
    for item in frames.read_frames(data, 0):
        if isinstance(item, frames.FrameDamage):
            raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
        records += item.records
    if not records or records.pop() != SNAPSHOT_END:
        raise StoreCorrupt(path=path, reason="its end is missing")
    return records, header.first_sequence


def read_contents(directory: Path) -> Contents:
    """Read all records of a journal directory.

    Raises:
        StoreCorrupt: acknowledged records cannot be read; the text has file and position.
    """
    journals, snapshots = generations(directory, "journal"), generations(directory, "snapshot")
    if is_of_copies(directory):
        path = journal_path(directory, journals[-1])
        raise StoreCorrupt(path=path, reason="it belongs to a replicated journal")
    records: list[bytes] = []
    sequence, generation, damaged = 0, 1, None
    # The former generation is kept until the next snapshot is complete. So a damaged snapshot only
    # costs time: more journals are read.
    for candidate in reversed(snapshots):
        try:
            records, sequence = read_snapshot(directory, candidate)
        except StoreCorrupt as failure:
            damaged = failure
            log.error("%s; reading the former generation instead", failure)  # noqa: TRY400
            continue
        generation = candidate
        break
    else:
        # Without a snapshot, only the first journal starts with an empty state.
        if damaged is not None and 1 not in journals:
            raise damaged
    if not journals and not snapshots:
        return Contents(1, [], 0, 0, 0, marked=True)
    # A snapshot, even a damaged one, proves that the journal of its generation existed.
    wanted = range(generation, max([*journals, *snapshots]) + 1)
    for number in wanted:
        contents = read_journal(directory, number, sequence, newest=number == wanted[-1])
        records += contents.records
        sequence = contents.next_sequence
    return contents._replace(records=records)


def is_copied(path: Path) -> bool:
    """True if a file belongs to a replicated journal."""
    with path.open("rb") as file:
        return file.read(len(frames.COPIED_MAGIC)) == frames.COPIED_MAGIC


def is_of_copies(directory: Path) -> bool:
    """True if the newest journal of a directory is a replicated one."""
    journals = generations(directory, "journal")
    return bool(journals) and is_copied(journal_path(directory, journals[-1]))


def read_journal(directory: Path, generation: int, sequence: int, *, newest: bool) -> Contents:
    """Read one journal.

    Args:
        sequence: expected sequence of its first record.
        newest: no later journal exists, so that the file may end with an unfinished write.

    Raises:
        StoreCorrupt: acknowledged records cannot be read.
    """
    path = journal_path(directory, generation)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        # A snapshot gets its name only after its journal exists.
        raise StoreCorrupt(path=path, reason="the file is missing") from None
    header = frames.read_file_header(data, frames.JOURNAL_MAGIC)
    if header is None:
        # The first write of the newest journal did not finish: it has no records.
        if newest and len(data) <= frames.FILE_HEADER_BYTES:
            return Contents(generation, [], sequence, 0, len(data), marked=True)
        raise StoreCorrupt(path=path, reason="its header is not valid")
    if header != (generation, sequence):
        raise StoreCorrupt(
            path=path,
            reason=f"it begins at record {header.first_sequence} of generation "
            f"{header.generation}, expected {sequence} of {generation}",
        )
    records: list[bytes] = []
    end = behind = frames.FILE_HEADER_BYTES
    marked = False
    for item in frames.read_frames(data, sequence):
        if isinstance(item, frames.FrameDamage):
            if item.followed or not newest:
                raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
            break
        marked, behind = not item.records, item.end
        if not marked:
            records += item.records
            sequence, end = item.sequence + len(item.records), item.end
    return Contents(generation, records, sequence, end, len(data) - behind, marked)


def drop_clean(directory: Path, disk: Disk) -> None:
    """Drop the newest journal's pages from the page cache: it is then read from the disk."""
    for generation in generations(directory, "journal")[-1:]:
        fd = disk.open_or_create(journal_path(directory, generation))
        try:
            disk.drop_clean(fd)
        finally:
            disk.close(fd)


def sync_directory(directory: Path, disk: Disk) -> None:
    """Sync the entries of a directory to disk.

    Raises:
        SyncFailed: it is unknown whether the names are durable.
        OSError: no free file descriptor; nothing was synced.
    """
    try:
        disk.sync_directory(directory)
    except OSError as failure:
        if failure.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise SyncFailed(*failure.args) from failure


def unfinished(path: Path) -> Path:
    """Temporary path of a snapshot that is being written."""
    return path.with_name(path.name + ".new")


def write_snapshot(
    disk: Disk, path: Path, generation: int, sequence: int, records: Iterable[bytes]
) -> None:
    """Write a snapshot file that appears completely or not at all."""
    new = unfinished(path)
    # A new file for each attempt: after a failed sync, the old file may have unwritten pages.
    disk.unlink(new)
    fd = disk.open_or_create(new)
    try:
        header = frames.file_header(frames.SNAPSHOT_MAGIC, frames.FileHeader(generation, sequence))
        disk.write_all(fd, header, 0)
        position, written = len(header), 0
        part: list[bytes] = []

        def write_part() -> None:
            nonlocal position, written
            data = frames.frame(written, part)
            disk.write_all(fd, data, position)
            position, written = position + len(data), written + len(part)
            part.clear()

        for record in records:
            part.append(record)
            if len(part) == SNAPSHOT_FRAME_RECORDS:
                write_part()
        part.append(SNAPSHOT_END)
        write_part()
        try:
            disk.fdatasync(fd)
        except OSError as failure:
            raise SyncFailed(*failure.args) from failure
    finally:
        disk.close(fd)
    disk.rename(new, path)
    sync_directory(path.parent, disk)
