"""Removals: deletion of files and directories that the store no longer uses."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.disk import Disk, Shortage


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
