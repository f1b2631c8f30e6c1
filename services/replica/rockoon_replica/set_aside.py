"""A store that is set aside: its replica is over, and another one begins in its place, empty.

lost/replica-{its id}/    all that was in the store's directory, but the lock and `lost` itself

Where a crash came on the way and the same replica has gone on, what it has then goes to
`replica-{its id}.1`, and so on: what was moved before is never replaced.
"""

from collections.abc import Sequence
from pathlib import Path

from rockoon_core.directory_lock import LOCK_FILE
from rockoon_core.disk import Disk

LOST = "lost"


def set_aside(store_path: Path, replica_id: str, last: Sequence[str], disk: Disk) -> Path:
    """Empty the directory of a closed store; returns where its content is. Raises OSError.

    Args:
        store_path: the directory.
        replica_id: whose it was.
        last: names in it that go last, in this order: the log, without which nothing could be made
            of the rest, then what says that this was a replica, and which. So a crash before that
            leaves the same replica, which does not vote, with less of a log than it had.
        disk: the file layer.
    """
    names = {path.name for path in store_path.iterdir()} - {LOST, LOCK_FILE}
    target = _place(store_path / LOST, f"replica-{replica_id}", names)
    for changed in disk.make_directory(target):
        disk.sync_directory(changed)
    for name in [*sorted(names - set(last)), *(each for each in last if each in names)]:
        disk.rename(store_path / name, target / name)
        disk.sync_directory(target)
        disk.sync_directory(store_path)
    return target


def _place(lost: Path, name: str, names: set[str]) -> Path:
    """A directory that has nothing of these names."""
    target = lost / name
    number = 0
    while any((target / each).exists() for each in names):
        number += 1
        target = lost / f"{name}.{number}"
    return target
