"""Files under `config/` that RocketMQ may have been writing when it was killed."""

from pathlib import Path


def read_config(path: Path) -> bytes | None:
    """The content of a file that RocketMQ replaces; None if there is none.

    RocketMQ moves the file to `.bak` and then makes it anew. Killed in between, it leaves none, or
    an empty one, and reads the other at its next start. Source: ConfigManager#persist, #load.

    Args:
        path: of the file itself.

    Raises:
        OSError: the disk.
    """
    content = path.read_bytes() if path.exists() else None
    former = path.with_name(f"{path.name}.bak")
    if not content and former.exists():
        content = former.read_bytes() or content
    return content
