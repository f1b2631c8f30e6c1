"""Stores that a real RocketMQ broker has written; `rocketmq/golden.py` lists their content."""

import tarfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "format" / "data"
LAYOUT: dict[str, Any] = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_entries": 1000}
"""Settings of a broker that opens them."""


def unpack(name: str, root: Path) -> None:
    """Unpack the store of a name, "left" or "batches", to `root`."""
    with tarfile.open(DATA / f"rocketmq-{name}.tar.xz") as archive:
        # Python has filters from 3.11.4 on; earlier versions ignore this attribute.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)


def content(root: Path) -> dict[str, bytes]:
    """Return all files below a directory, by path."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
