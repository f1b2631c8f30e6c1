"""Stores that a real RocketMQ broker left; `rocketmq/golden.py` says what is in them."""

import tarfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "format" / "data"
LAYOUT: dict[str, Any] = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_entries": 1000}
"""Of a broker that opens them."""


def unpack(name: str, root: Path) -> None:
    """Make `root` the store of a name: "left" or "batches"."""
    with tarfile.open(DATA / f"rocketmq-{name}.tar.xz") as archive:
        # Python has filters from 3.11.4 on; before, this says nothing to it.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)


def content(root: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
