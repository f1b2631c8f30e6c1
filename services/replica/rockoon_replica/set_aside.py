"""Moves the content of a store to `lost/`, so that another replica can start with an empty one.

lost/replica-{its id}/    all files of the store's directory, except the lock and `lost` itself

If a crash interrupts the move and the same replica continues, its later content is moved to
`replica-{its id}.1`, and so on: files that were moved before are never replaced.
"""

from collections.abc import Sequence
from pathlib import Path

from rockoon_core.directory_lock import LOCK_FILE
from rockoon_core.disk import Disk

LOST = "lost"


def set_aside(store_path: Path, replica_id: str, last: Sequence[str], disk: Disk) -> Path:
    """Empty the directory of a closed store; returns the new directory. Raises OSError.

    Args:
        store_path: the directory.
        replica_id: of the replica that had it.
        last: names in it that are moved last, in this order: the log, because derived files need
            it, then the replica's facts and id. So after a crash in between it is still the same
            replica, which does not vote, with a part of its log.
        disk: the file layer.
    """
    names = {path.name for path in store_path.iterdir()} - {LOST, LOCK_FILE}
    target = _free_directory(store_path / LOST, f"replica-{replica_id}", names)
    for changed in disk.make_directory(target):
        disk.sync_directory(changed)
    for name in [*sorted(names - set(last)), *(each for each in last if each in names)]:
        disk.rename(store_path / name, target / name)
        disk.sync_directory(target)
        disk.sync_directory(store_path)
    return target


def _free_directory(lost: Path, name: str, names: set[str]) -> Path:
    """Choose a directory without these names."""
    target = lost / name
    number = 0
    while any((target / each).exists() for each in names):
        number += 1
        target = lost / f"{name}.{number}"
    return target
