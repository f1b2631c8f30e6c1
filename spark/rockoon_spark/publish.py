"""Atomic publishing of a result: written to a staging directory, synced, then renamed."""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Replace = Callable[[Path, Path], None]
"""Function that renames a file or directory, as `os.replace` does."""


class TargetExists(Exception):
    """The target directory exists already."""


@contextmanager
def published(target: Path, *, rename: Replace = os.replace) -> Iterator[Path]:
    """Yield a staging directory that becomes `target` unless the block raises.

    A process that dies leaves a staging directory next to the target, with a name that begins with
    a dot, and no target. The next process that publishes this target removes it.

    Args:
        rename: renames the staging directory to the target.

    Raises:
        TargetExists: the target existed before, or another process created it during the block.
    """
    if target.exists():
        raise TargetExists(f"{target} exists already")
    remove_stale(target)
    staging = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    staging.parent.mkdir(parents=True, exist_ok=True)
    staging.mkdir(0o700)
    with held(staging):
        try:
            yield staging
            sync_tree(staging)
            try:
                # A rename to an empty directory would succeed and replace another process's work.
                if target.exists():
                    raise TargetExists(f"{target} was created by another process during the run")
                rename(staging, target)
            except OSError as error:
                raise TargetExists(f"{staging} cannot be renamed to {target}: {error}") from error
            sync(target.parent)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def remove_stale(target: Path) -> list[Path]:
    """Remove a target's staging directories whose processes died; return them."""
    stale = []
    for staging in sorted(target.parent.glob(f".{target.name}.{'[0-9a-f]' * 32}")):
        try:
            with held(staging):
                shutil.rmtree(staging)
                stale.append(staging)
        except (BlockingIOError, FileNotFoundError):
            # Another process holds it, or has just renamed it.
            continue
    return stale


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a directory or file; it is released if this process dies.

    Raises:
        BlockingIOError: another process holds it.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def sync_tree(root: Path) -> None:
    """Sync a directory and everything below it to disk."""
    for directory, _, files in os.walk(root):
        for name in files:
            sync(Path(directory) / name)
        sync(Path(directory))


def sync(path: Path) -> None:
    """Sync a file's content, or a directory's entries, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
