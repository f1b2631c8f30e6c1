"""Who may reach what is on disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def generous_umask() -> Iterator[None]:
    """A process that leaves everything open that it does not close itself."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """What below a directory, itself included, somebody else than the owner may reach."""
    return [str(path) for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o077]
