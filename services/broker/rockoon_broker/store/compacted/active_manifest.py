"""Manifest of the active generation, as read at start.

A start with a damaged generation, or one of another log, is refused: the log may no longer
have its messages, and their loss would not be noticed.
"""

import hashlib
import json
from pathlib import Path

from rockoon_broker.store.compacted import takeover
from rockoon_broker.store.errors import StoreDamaged
from rockoon_core.disk import Disk
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    GenerationError,
    Manifest,
    decode_current,
    generation_name,
)

LOG_DIRECTORY = "commitlog"
NEEDED_FILE = "needed"


def active_manifest(root: Path, disk: Disk, *, copies: bool = False) -> Manifest | None:
    """Return the manifest of the generation that `current` names; StoreDamaged if it is unreadable.

    Args:
        copies: generations are copied from the leader. Without an active one, a generation may be
            present that replaces another which was never here.
    """
    home = root / GENERATIONS_DIRECTORY
    path = home / CURRENT_FILE
    try:
        number = decode_current(path.read_bytes())
    except FileNotFoundError:
        if not copies:
            _check_none_was(home, disk)
        return None
    except GenerationError as error:
        raise refused_start(path, str(error)) from error
    directory = home / generation_name(number)
    try:
        manifest = takeover.read_manifest(directory, disk)
        if manifest.generation != number:
            raise GenerationError(f"it states number {manifest.generation}")
    except GenerationError as error:
        raise refused_start(directory / MANIFEST_FILE, str(error)) from error
    log_directory = root / LOG_DIRECTORY
    if manifest.log_end and not (log_directory.is_dir() and any(log_directory.iterdir())):
        raise refused_start(log_directory, f"the log of generation {number} is missing")
    return manifest


def identity_of(manifest: Manifest | None) -> int:
    """Return an identity of a generation that is the same on all copies of a log; 0: none."""
    if manifest is None:
        return 0
    return int.from_bytes(hashlib.sha256(manifest.to_json()).digest()[:8]) or 1


def read_needed(home: Path) -> int | None:
    """Return the log position up to which a generation must be made that this copy needs.

    The copy needs one if its log begins after records that only a generation has, or if it had a
    generation and may have deleted those records. 0: it needs none. None: no copy was ever made
    here. Raises StoreDamaged if the file cannot be read.
    """
    path = home / NEEDED_FILE
    try:
        return int(json.loads(path.read_bytes())["log_end"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StoreDamaged(path, 0, f"{path.name}: {error}") from error


def write_needed(home: Path, log_end: int, disk: Disk) -> None:
    """Write the value of `read_needed` durably; OSError for the disk."""
    for changed in disk.make_directory(home):
        disk.sync_directory(changed)
    disk.replace_file(home / NEEDED_FILE, json.dumps({"log_end": log_end}).encode())


def _check_none_was(home: Path, disk: Disk) -> None:
    """Raise StoreDamaged if `current` is missing but a generation was active before."""
    for number in takeover.numbered(home):
        try:
            replaces = takeover.read_manifest(home / generation_name(number), disk).replaces
        except GenerationError:
            continue
        if replaces:
            raise refused_start(
                home / CURRENT_FILE, f"the file is missing; generation {number} replaced {replaces}"
            )


def refused_start(path: Path, reason: str) -> StoreDamaged:
    """Return the error of a start that cannot serve the compacted messages."""
    return StoreDamaged(
        path,
        0,
        f"{reason}. The compacted messages may exist nowhere else. Restore the file from a copy, "
        f"or abandon them: move {GENERATIONS_DIRECTORY} away; "
        "then only messages in the log are served",
    )
