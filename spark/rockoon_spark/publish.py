"""Putting a result in its place at once: it is made aside, synced, and renamed."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TargetExists(Exception):
    """The place is taken."""


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A directory to write into, which becomes `target` when nothing was raised.

    A process that dies leaves a directory beside the target whose name begins with a dot, and
    nothing in the target's place; `remove_stale` takes such directories away.

    Raises:
        TargetExists: there is something already, before or after the work.
    """
    if target.exists():
        raise TargetExists(f"{target} exists already")
    staging = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    staging.mkdir(parents=True)
    try:
        yield staging
        sync_tree(staging)
        try:
            # Renaming onto an empty directory would succeed, and hide who made it.
            if target.exists():
                raise TargetExists(f"{target} was made meanwhile")
            staging.rename(target)
        except OSError as error:
            raise TargetExists(f"{target} cannot be put in place: {error}") from error
        sync(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def remove_stale(target: Path) -> list[Path]:
    """Remove what processes that died have left of making a target; nobody may be at it."""
    stale = sorted(target.parent.glob(f".{target.name}.*"))
    for staging in stale:
        shutil.rmtree(staging)
    return stale


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
