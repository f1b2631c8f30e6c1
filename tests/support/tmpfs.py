"""A small file system in memory, for tests of a full disk. Only root can mount it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tmpfs(path: Path, size_bytes: int) -> Iterator[None]:
    """Mount a file system of this size at a directory, which is created."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "tests", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def resize(path: Path, size_bytes: int) -> None:
    """Change the size of a mounted `tmpfs`."""
    options = f"remount,size={size_bytes}"
    subprocess.run(["mount", "-o", options, str(path)], check=True)
