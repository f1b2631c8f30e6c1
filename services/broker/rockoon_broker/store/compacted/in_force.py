"""Manifest of the generation in force, as a start finds it.

A start with a generation that is damaged, or not of this log, is refused: the log may no longer
have what it held, and nobody would hear that messages are missing.
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


def manifest_in_force(root: Path, disk: Disk, *, copies: bool = False) -> Manifest | None:
    """The manifest of the generation that `current` names; StoreDamaged if it cannot be read.

    Args:
        copies: generations of other copies are brought here. One that none was put in force by
            may replace another that never was here.
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
            raise GenerationError(f"it says that it is generation {manifest.generation}")
    except GenerationError as error:
        raise refused_start(directory / MANIFEST_FILE, str(error)) from error
    log_directory = root / LOG_DIRECTORY
    if manifest.log_end and not (log_directory.is_dir() and any(log_directory.iterdir())):
        raise refused_start(log_directory, f"there is no log; generation {number} was made of one")
    return manifest


def identity_of(manifest: Manifest | None) -> int:
    """What tells a generation from others of its number, on all copies of a log; 0: none."""
    if manifest is None:
        return 0
    return int.from_bytes(hashlib.sha256(manifest.to_json()).digest()[:8]) or 1


def read_needed(home: Path) -> int | None:
    """Up to where in the log a generation has to be made that this copy needs: it began behind
    records that only such a one has, or had one and may have deleted what that held. 0: it needs
    none. None: nobody has brought one here. StoreDamaged if that cannot be read."""
    path = home / NEEDED_FILE
    try:
        return int(json.loads(path.read_bytes())["log_end"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StoreDamaged(path, 0, f"{path.name}: {error}") from error


def write_needed(home: Path, log_end: int, disk: Disk) -> None:
    """Have it read so from now on, durably; OSError for the disk."""
    for changed in disk.make_directory(home):
        disk.sync_directory(changed)
    disk.replace_file(home / NEEDED_FILE, json.dumps({"log_end": log_end}).encode())


def _check_none_was(home: Path, disk: Disk) -> None:
    """Refuse to take the loss of `current` for a beginning."""
    for number in takeover.numbered(home):
        try:
            replaces = takeover.read_manifest(home / generation_name(number), disk).replaces
        except GenerationError:
            continue
        if replaces:
            raise refused_start(
                home / CURRENT_FILE, f"it is missing; generation {number} replaced {replaces}"
            )


def refused_start(path: Path, reason: str) -> StoreDamaged:
    """What a start ends with that cannot serve what was compacted."""
    return StoreDamaged(
        path,
        0,
        f"{reason}. What was compacted may be nowhere else. Restore it from a copy. Or give it up: "
        f"move {GENERATIONS_DIRECTORY} away, and what the log still has is served",
    )
