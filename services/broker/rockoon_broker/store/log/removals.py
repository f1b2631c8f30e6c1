"""Removals: files and directories that a store's owner gave up, and how they are deleted."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.disk import Disk, Shortage


@dataclass(frozen=True)
class DoomedFile:
    """A file that the owner no longer uses."""

    path: Path
    fd: int | None
    """Its descriptor, to be closed with it."""


@dataclass(frozen=True)
class DoomedDirectory:
    """A directory that was moved to where nobody looks for it, to be deleted with all in it."""

    path: Path


class RemovalRefused(OSError):
    """The disk does not delete something, for now. Unlike after a failed sync, nothing is unknown:
    it is still there, and a start would find it."""


def removal(doomed: DoomedFile | DoomedDirectory, disk: Disk) -> Iterator[None]:
    """Delete what the owner gave up, cut where something else may be done in between.

    Once it is through, the end of a CommitLog file is durable: marks of deleted topics are
    forgotten on the strength of it, and ConsumeQueue files that belong to it go after it.

    Raises:
        RemovalRefused: not all is deleted; may be begun again.
        OSError: a sync failed.
    """
    try:
        yield from _removal(doomed, disk)
    except Shortage as shortage:
        raise RemovalRefused(*shortage.args) from shortage


def _removal(doomed: DoomedFile | DoomedDirectory, disk: Disk) -> Iterator[None]:
    if isinstance(doomed, DoomedDirectory):
        # Durably moved before anything in it goes: a power cut then brings back all or nothing.
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
        # Last: what is begun again after it would close the number that another file has by then.
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
