"""A store that is set aside: after each power cut its files are complete, and its name is free."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

from rockoon_broker.broker import CONFIG_DIRECTORY
from rockoon_broker.server import STORE_ID_FILE
from rockoon_core.disk import LOCK_FILE, Disk
from rockoon_node.store_directory import read_or_make_store_id
from rockoon_replica.copy_process import LOST, set_aside
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from support.crashing_disk import CrashingDisk, PowerGone
from support.replicas import opened

LAST = ("commitlog", CONFIG_DIRECTORY)
FACTS = ReplicaFacts(promised=7, led=3)


def begun(root: Path) -> str:
    """Open the replica of a directory, or a new one; return its id."""
    config = root / CONFIG_DIRECTORY
    config.mkdir(parents=True, exist_ok=True)
    replica_id = read_or_make_store_id(config / STORE_ID_FILE, Disk().replace_file)
    file = ReplicaFile(config, Disk())
    if file.read() is None:
        file.write(FACTS)
    return replica_id


def test_a_power_cut_on_the_way_leaves_the_same_replica_or_none_and_all_of_its_log(
    tmp_path: Path,
) -> None:
    template = tmp_path / "template"
    replica_id = begun(template)
    with opened(template) as owner:
        for number in range(6):
            owner.append(bodies=[b"%d" % number + bytes(700)])
        owner.store.confirm(owner.store.appended_end)
        owner.write_point()
        end = owner.store.appended_end
    log = {path.read_bytes().rstrip(b"\0") for path in (template / "commitlog").iterdir()} - {b""}
    done = False
    operations = 0
    while not done:
        root, after = tmp_path / f"{operations}", tmp_path / f"{operations}-after"
        shutil.copytree(template, root)
        disk = CrashingDisk(root, operations)
        with suppress(PowerGone):
            set_aside(root, replica_id, LAST, disk)
            done = True
        disk.cut(after, random.Random(0))
        is_same = (after / CONFIG_DIRECTORY / STORE_ID_FILE).exists()
        next_id = begun(after)
        assert (next_id == replica_id) == is_same
        with opened(after) as owner:
            assert owner.store.appended_end in ({0, end} if is_same else {0})
            owner.append(bodies=[b"of the next life"])
            owner.sync()
        # It must be removed too.
        set_aside(after, next_id, LAST, Disk())
        assert {path.name for path in after.iterdir()} <= {LOST, LOCK_FILE}
        kept = [path.read_bytes() for path in (after / LOST).glob("*/commitlog/*")]
        assert all(any(each.startswith(file) for each in kept) for file in log)
        operations += 1
    assert operations > 15
