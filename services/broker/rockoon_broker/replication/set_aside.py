"""A store that is set aside: its replica is over, and another one begins in its place, empty.

    lost/replica-{its id}/    all that was in the store's directory, but the lock and `lost` itself

What says that it was a replica, and which, goes last: a crash before that leaves the same replica,
which does not vote, with less of a log than it had.
"""

from pathlib import Path

from rockoon_broker.broker import CONFIG_DIRECTORY
from rockoon_core.directory_lock import LOCK_FILE
from rockoon_core.disk import Disk

LOST = "lost"
# Without the log nothing could be made of the rest; without the rest it is read as a whole.
LAST = ("commitlog", CONFIG_DIRECTORY)


def set_aside(store_path: Path, replica_id: str, disk: Disk) -> Path:
    """Empty the directory of a closed store; returns where its content is. Raises OSError."""
    target = store_path / LOST / f"replica-{replica_id}"
    for changed in disk.make_directory(target):
        disk.sync_directory(changed)
    names = {path.name for path in store_path.iterdir()} - {LOST, LOCK_FILE}
    for name in [*sorted(names - set(LAST)), *(each for each in LAST if each in names)]:
        disk.rename(store_path / name, target / name)
        disk.sync_directory(target)
        disk.sync_directory(store_path)
    return target
