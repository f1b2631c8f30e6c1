"""Halt of a replica: a file beside its log that keeps its process from participating.

    halted    one line of text: the reason

A replica halts when its leader asks it to cut committed records: one of the two has lost data, and
the replica may be the only one with acknowledged records. The file outlasts restarts. An operator
rescues the records, then empties the store, or removes the file.
"""

from pathlib import Path

from rockoon_core.disk import Disk

FILE = "halted"


def read_halt(directory: Path) -> str:
    """Reason why a replica is halted; empty: it is not.

    Args:
        directory: the store's `config`.

    Raises:
        OSError: the disk.
    """
    try:
        text = (directory / FILE).read_bytes().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    return text or "no reason was written"


def write_halt(directory: Path, disk: Disk, reason: str) -> None:
    """Halt the replica of a store, durably. Raises OSError."""
    disk.replace_file(directory / FILE, " ".join(reason.split()).encode() + b"\n")
