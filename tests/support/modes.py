"""Access rights of files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def generous_umask() -> Iterator[None]:
    """Set a umask that leaves all new files open to other users."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """Return paths below a directory, and the directory itself, that other users can access."""
    return [str(path) for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o077]
