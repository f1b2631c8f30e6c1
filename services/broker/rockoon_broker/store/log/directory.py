"""A directory of fixed-size files named by the byte offset of their first byte.

The rules are those of RocketMQ's MappedFileQueue: every regular file has exactly the configured
size and a twenty-digit name; sub-directories are ignored; only the last file may be empty.
Any other file is refused before a byte is changed, because with a wrong size every
offset would be read from the wrong position.

A removal deletes files or directories that the store no longer uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.errors import UnexpectedFile
from rockoon_core.disk import Disk, Shortage
from rockoon_format.file_names import file_name_to_offset


@dataclass(frozen=True)
class DoomedFile:
    """A file that the store no longer uses."""

    path: Path
    fd: int | None
    """Open descriptor of the file, closed after the deletion."""


@dataclass(frozen=True)
class DoomedDirectory:
    """A directory to delete, already renamed so that the store no longer finds it."""

    path: Path


class RemovalRefused(OSError):
    """Raised if the disk currently refuses a deletion. Unlike after a failed sync, the state is
    known: the file still exists and the next start finds it."""


def removal(doomed: DoomedFile | DoomedDirectory, disk: Disk) -> Iterator[None]:
    """Delete a file or directory in steps; yields between them, so that other work can run.

    At the end, the deletion of a CommitLog file is durable. Marks of deleted topics are then
    discarded, and ConsumeQueue files of that range are deleted next.

    Raises:
        RemovalRefused: the deletion is incomplete; the caller may retry it.
        OSError: a sync failed.
    """
    try:
        yield from _removal(doomed, disk)
    except Shortage as shortage:
        raise RemovalRefused(*shortage.args) from shortage


def _removal(doomed: DoomedFile | DoomedDirectory, disk: Disk) -> Iterator[None]:
    if isinstance(doomed, DoomedDirectory):
        # Make the rename durable first: after a power failure, all or nothing is back.
        for directory in (doomed.path.parent, doomed.path.parent.parent):
            disk.sync_directory(directory)
            yield
        yield from _tree_removal(doomed.path, disk)
        return
    try:
        disk.unlink(doomed.path)
    except OSError as error:
        raise RemovalRefused(*error.args) from error
    if doomed.fd is not None:
        disk.sync_directory(doomed.path.parent)
        # Last: a retry would close the same number again, which may belong to another file by then.
        disk.close(doomed.fd)


def _tree_removal(directory: Path, disk: Disk) -> Iterator[None]:
    try:
        for child in directory.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from _tree_removal(child, disk)
            else:
                disk.unlink(child)
            yield
        disk.remove_directory(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RemovalRefused(*error.args) from error


def list_files(
    directory: Path, file_bytes: int, disk: Disk, *, unfinished_last: bool = False
) -> list[int]:
    """Return the start offsets of the directory's files, ascending; [] if there is none.

    Removes an empty last file. With `unfinished_last`, also removes a last file that is too short
    and all zeros: a crash interrupted its reservation before the first write.

    Raises:
        UnexpectedFile: a file has a foreign name or another size.
    """
    if not directory.is_dir():
        return []
    paths = sorted(path for path in directory.iterdir() if not path.is_dir())
    doomed: Path | None = None
    starts: list[int] = []
    for path in paths:
        found = disk.facts(path).bytes
        try:
            start = file_name_to_offset(path.name)
        except ValueError:
            raise UnexpectedFile(path, "no file of this log", None, None) from None
        if found != file_bytes:
            last = path == paths[-1]
            short = unfinished_last and found < file_bytes
            if last and (found == 0 or (short and _all_zero(path, found, disk))):
                doomed = path
                continue
            raise UnexpectedFile(path, "wrong size", found, file_bytes)
        if start % file_bytes != 0:
            raise UnexpectedFile(path, f"name is no multiple of {file_bytes}", found, file_bytes)
        starts.append(start)
    if doomed is not None:
        disk.unlink(doomed)
        disk.sync_directory(directory)
    return starts


def contiguous(starts: list[int], file_bytes: int) -> int:
    """Return how many files, from the first on, follow one another without a gap."""
    for index, start in enumerate(starts):
        if start != starts[0] + index * file_bytes:
            return index
    return len(starts)


def move_to_lost(path: Path, lost: Path, disk: Disk) -> Path:
    """Move a file or directory to an unused name in `lost`; return its path. Raises OSError."""
    for changed in disk.make_directory(lost):
        disk.sync_directory(changed)
    name = "-".join(path.parts[len(lost.parent.parts) :])
    target, number = lost / name, 0
    while target.exists():
        number += 1
        target = lost / f"{name}.{number}"
    disk.move_directory(path, target)
    disk.sync_directory(lost)
    return target


def _all_zero(path: Path, size: int, disk: Disk) -> bool:
    fd = disk.open_reading(path)
    try:
        return disk.is_zero(fd, 0, size)
    finally:
        disk.close(fd)
