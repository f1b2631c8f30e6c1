"""Putting a result in its place at once: it is made aside, synced, and renamed."""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Replace = Callable[[Path, Path], None]
"""Renames a file or directory, as `os.replace` does."""


class TargetExists(Exception):
    """The place is taken."""


@contextmanager
def published(target: Path, *, rename: Replace = os.replace) -> Iterator[Path]:
    """A directory to write into, which becomes `target` when nothing was raised.

    A process that dies leaves a directory beside the target whose name begins with a dot, and
    nothing in the target's place; the next one for that target removes it.

    Args:
        rename: puts the directory into its place.

    Raises:
        TargetExists: there is something already, before or after the work.
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
                # Renaming onto an empty directory would succeed, and hide who made it.
                if target.exists():
                    raise TargetExists(f"{target} was made meanwhile")
                rename(staging, target)
            except OSError as error:
                raise TargetExists(f"{target} cannot be put in place: {error}") from error
            sync(target.parent)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def remove_stale(target: Path) -> list[Path]:
    """Remove what processes that died have left of making a target, and not what lives."""
    stale = []
    for staging in sorted(target.parent.glob(f".{target.name}.{'[0-9a-f]' * 32}")):
        try:
            with held(staging):
                shutil.rmtree(staging)
                stale.append(staging)
        except (BlockingIOError, FileNotFoundError):
            # Somebody is at it, or has just finished.
            continue
    return stale


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Show others that somebody is at a directory or file, for as long as this process lives.

    Raises:
        BlockingIOError: somebody is.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def sync_tree(root: Path) -> None:
    """Make a directory durable, with everything below it."""
    for directory, _, files in os.walk(root):
        for name in files:
            sync(Path(directory) / name)
        sync(Path(directory))


def sync(path: Path) -> None:
    """Make a file durable, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
