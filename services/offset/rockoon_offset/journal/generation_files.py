"""Files of the journal's generations: their names, what they hold, and how a snapshot is written.

Reading changes nothing: what a directory holds may be looked at by anybody.
"""

import errno
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import frames

log = logging.getLogger(__name__)

FILE_NAME = re.compile(r"(\d{12})\.(journal|snapshot)")
SNAPSHOT_FRAME_RECORDS = 1000
SNAPSHOT_END = b'["end"]'


class SyncFailed(OSError):
    """A sync failed, for whatever reason: unlike after a failed write, nothing can be retried."""


class Contents(NamedTuple):
    """What opening a directory found."""

    generation: int
    # Snapshot first, then what came after it.
    records: list[bytes]
    next_sequence: int
    # Where the newest journal goes on; what lies behind, but for a mark, was never finished.
    end: int
    torn_bytes: int
    # Whether that is sure: a mark says that nothing behind `end` was promised.
    marked: bool


def journal_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.journal"


def snapshot_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.snapshot"


def generations(directory: Path, kind: str) -> list[int]:
    """Generations of which a file of this kind exists, oldest first."""
    matches = (FILE_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match and match[2] == kind)


def read_snapshot(directory: Path, generation: int) -> tuple[list[bytes], int]:
    """Records of a snapshot and the sequence at which its journal begins.

    Raises:
        StoreCorrupt: it is damaged.
    """
    path = snapshot_path(directory, generation)
    data = path.read_bytes()
    header = frames.read_file_header(data, frames.SNAPSHOT_MAGIC)
    if header is None or header.generation != generation:
        raise StoreCorrupt(path=path, reason="its header is not valid")
    records: list[bytes] = []
    for item in frames.read_frames(data, 0):
        if isinstance(item, frames.Damage):
            raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
        records += item.records
    if not records or records.pop() != SNAPSHOT_END:
        raise StoreCorrupt(path=path, reason="its end is missing")
    return records, header.first_sequence


def read_contents(directory: Path) -> Contents:
    """Read a directory without changing it.

    Raises:
        StoreCorrupt: something that was promised cannot be read; names the file and the position.
    """
    journals, snapshots = generations(directory, "journal"), generations(directory, "snapshot")
    if is_of_copies(directory):
        path = journal_path(directory, journals[-1])
        raise StoreCorrupt(path=path, reason="it is of a journal with copies")
    records: list[bytes] = []
    sequence, generation, damaged = 0, 1, None
    # The generation before is kept until the next snapshot is whole: a damaged one costs time,
    # since more journals are read, and nothing else.
    for candidate in reversed(snapshots):
        try:
            records, sequence = read_snapshot(directory, candidate)
        except StoreCorrupt as failure:
            damaged = failure
            log.error("%s; going back to the generation before", failure)  # noqa: TRY400
            continue
        generation = candidate
        break
    else:
        # Without a snapshot only the very first journal starts from nothing.
        if damaged is not None and 1 not in journals:
            raise damaged
    if not journals and not snapshots:
        return Contents(1, [], 0, 0, 0, marked=True)
    # A snapshot, also a damaged one, tells that the journal of its generation existed.
    wanted = range(generation, max([*journals, *snapshots]) + 1)
    for number in wanted:
        contents = read_journal(directory, number, sequence, newest=number == wanted[-1])
        records += contents.records
        sequence = contents.next_sequence
    return contents._replace(records=records)


def is_copied(path: Path) -> bool:
    """Whether a file is of a journal that has copies."""
    with path.open("rb") as file:
        return file.read(len(frames.COPIED_MAGIC)) == frames.COPIED_MAGIC


def is_of_copies(directory: Path) -> bool:
    """Whether the newest journal of a directory has copies."""
    journals = generations(directory, "journal")
    return bool(journals) and is_copied(journal_path(directory, journals[-1]))


def read_journal(directory: Path, generation: int, sequence: int, *, newest: bool) -> Contents:
    """What one journal holds; `sequence` is that of its first record. Raises StoreCorrupt."""
    path = journal_path(directory, generation)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        # A snapshot is renamed into place only after its journal exists.
        raise StoreCorrupt(path=path, reason="the file is missing") from None
    header = frames.read_file_header(data, frames.JOURNAL_MAGIC)
    if header is None:
        # A journal whose very first write did not finish holds nothing.
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
        if isinstance(item, frames.Damage):
            if item.followed or not newest:
                raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
            break
        marked, behind = not item.records, item.end
        if not marked:
            records += item.records
            sequence, end = item.sequence + len(item.records), item.end
    return Contents(generation, records, sequence, end, len(data) - behind, marked)


def drop_clean(directory: Path, disk: Disk) -> None:
    """Have the newest journal read from the disk, where the system does so."""
    for generation in generations(directory, "journal")[-1:]:
        fd = disk.open_or_create(journal_path(directory, generation))
        try:
            disk.drop_clean(fd)
        finally:
            disk.close(fd)


def sync_directory(directory: Path, disk: Disk) -> None:
    """Make the names in a directory durable.

    Raises:
        SyncFailed: they may be or not.
        OSError: there was no descriptor for it: nothing was tried.
    """
    try:
        disk.sync_directory(directory)
    except OSError as failure:
        if failure.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise SyncFailed(*failure.args) from failure


def unfinished(path: Path) -> Path:
    """Where a snapshot is written before it gets its name."""
    return path.with_name(path.name + ".new")


def write_snapshot(
    disk: Disk, path: Path, generation: int, sequence: int, records: Iterable[bytes]
) -> None:
    """Write a snapshot file so that it is there whole or not at all."""
    new = unfinished(path)
    # A file of its own at every try: one whose sync failed holds what only seems written.
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
