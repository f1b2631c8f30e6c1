"""Restores that are killed and repeated, and two restores into one directory."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from backup.workload import TOPIC

import rockoon
from rockoon.backup import restoring
from rockoon.backup.creation import create
from rockoon.backup.destination import PARTIAL_SUFFIX, BackupError
from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import BackupManifest, encode
from rockoon.backup.restoring import UNFINISHED, Restore, RestoreSources
from rockoon.local import LocalCluster
from support.waiting import DEADLINE_SECONDS

COMPLETE = {"broker-a", "offset", "routes", "etcd.snapshot", "report.json", "lock"}


class Killed(BaseException):
    """The end of the program: no code handles it."""


class Moments:
    """Raises Killed at one of the steps of a restore.

    Args:
        left: steps before that; None: never.
    """

    def __init__(self, left: int | None) -> None:
        self.left = left

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left = None if self.left is None else self.left - 1


class Dying(Directory):
    """A destination; each read of a file is a step."""

    def __init__(self, root: Path, moments: Moments) -> None:
        super().__init__(root)
        self._moments = moments

    def read(self, name: str) -> Iterator[bytes]:
        self._moments.step()
        return super().read(name)


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def sources_of(manifest: BackupManifest) -> RestoreSources:
    return RestoreSources(manifest, manifest, manifest)


def test_a_restore_that_is_killed_at_any_step_can_be_repeated(
    copied: tuple[Directory, BackupManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, manifest = copied
    expected = asdict(Restore(place, sources_of(manifest), tmp_path / "undisturbed").run())
    moments = Moments(None)
    sync = restoring.sync_directory

    def synced(directory: Path) -> None:
        # A file or store has its name now.
        moments.step()
        sync(directory)

    monkeypatch.setattr(restoring, "sync_directory", synced)
    kept = 0
    for number in range(100):
        target = tmp_path / f"target-{number}"
        moments.left = number
        try:
            Restore(Dying(tmp_path / "backups", moments), sources_of(manifest), target).run()
        except Killed:
            moments.left = None
        if UNFINISHED not in names_in(target):
            break
        complete = [target / name / "store_id" for name in ("offset",)]
        before = [path.stat().st_ino for path in complete if path.exists()]
        kept += len(before)
        assert asdict(Restore(place, sources_of(manifest), target).run()) == expected
        assert names_in(target) == COMPLETE
        assert not list(target.rglob(f"*{PARTIAL_SUFFIX}"))
        # A complete store is not written again.
        assert before in ([], [path.stat().st_ino for path in complete])
        with pytest.raises(BackupError, match="routes exists: restore into a new directory"):
            Restore(place, sources_of(manifest), target).run()
    # Killed after the last step.
    assert names_in(target) == COMPLETE
    assert number > 8
    assert kept


def test_an_unfinished_restore_is_not_mixed_with_another_backup(
    copied: tuple[Directory, BackupManifest], tmp_path: Path
) -> None:
    place, manifest = copied
    other = replace(manifest, backup="20200101T000000000Z-0000")
    dying, target = Dying(tmp_path / "backups", Moments(0)), tmp_path / "target"
    # Restored by another command before, perhaps of another backup.
    Restore(place, sources_of(other), target).run(["offset"])
    with pytest.raises(Killed):
        Restore(dying, sources_of(manifest), target).run(["broker-a", "routes"])
    with pytest.raises(BackupError, match=f"continue it with --backup {manifest.backup}, or"):
        Restore(place, sources_of(other), target).run(["broker-a", "routes"])
    with pytest.raises(BackupError, match="offset exists: restore into a new directory"):
        Restore(place, sources_of(manifest), target).run()
    # It continues in two steps.
    for name in ("routes", "broker-a"):
        Restore(place, sources_of(manifest), target).run([name])
    assert names_in(target) == COMPLETE


def test_a_repeated_command_continues_although_a_newer_backup_is_complete(
    copied: tuple[Directory, BackupManifest], tmp_path: Path
) -> None:
    place, manifest = copied
    newer = replace(manifest, backup="29990101T000000000Z-0000")
    dying, target = Dying(tmp_path / "backups", Moments(0)), tmp_path / "target"
    with pytest.raises(Killed):
        Restore(dying, RestoreSources(manifest, newer, manifest), target).run()
    for each in (manifest, newer):
        place.write(f"{each.backup}/manifest.json", encode(each))
    command = ["backup", "restore", str(tmp_path / "backups"), str(target)]
    of_progress = ["--progress-of", newer.backup]
    for options in ([], ["--backup", newer.backup]):
        other = run_command(*command, *options)
        assert f"continue it with --backup {manifest.backup} {' '.join(of_progress)}, or" in (
            " ".join(other.stderr.split())
        )
    same = run_command(*command, *of_progress)
    assert same.returncode == 0, same.stderr
    assert names_in(target) == COMPLETE
    assert json.loads((target / "report.json").read_bytes())["backup"] == manifest.backup


def test_an_unfinished_restore_of_a_removed_backup_needs_a_new_directory(
    copied: tuple[Directory, BackupManifest], tmp_path: Path
) -> None:
    place, manifest = copied
    newer = replace(manifest, backup="29990101T000000000Z-0000")
    for each in (manifest, newer):
        place.write(f"{each.backup}/manifest.json", encode(each))
    backups, targets = str(tmp_path / "backups"), [tmp_path / "target", tmp_path / "mixed"]
    for target, logs in zip(targets, (manifest, newer), strict=True):
        dying = Dying(tmp_path / "backups", Moments(0))
        with pytest.raises(Killed):
            Restore(dying, RestoreSources(logs, manifest, manifest), target).run()
    pruned = run_command("backup", "prune", backups, "--keep", "1", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    for target in targets:
        for options in ([], ["--backup", newer.backup]):
            refused = run_command("backup", "restore", backups, str(target), *options)
            assert refused.returncode == 1
            assert (
                f"{target} has an unfinished restore of backup {manifest.backup}, which was "
                "removed: restore into a new directory"
            ) in " ".join(refused.stderr.split())


async def test_a_repeated_restore_reports_messages_that_retention_had_deleted(
    tmp_path: Path,
) -> None:
    place = Directory(tmp_path / "backups")
    files = {"broker": {"commit_log_file_bytes": "16KiB"}}
    async with (
        LocalCluster(settings=files, single=True) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.producer() as producer,
        cluster.pull_consumer("late", consume_from="first") as consumer,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        for _ in range(5):
            result = await producer.send(TOPIC, bytes(8 << 10))
        await consumer.assign([result.queue])
        await consumer.commit(result.queue, 1)
        made = await create(cluster, place)
    log = made.log("broker-a")
    # As if retention had deleted the first files before the backup.
    log = replace(log, begin=log.parts[2].start, parts=log.parts[2:])
    manifest = replace(made, logs=[log])
    undisturbed = Restore(place, sources_of(manifest), tmp_path / "undisturbed")
    expected = await asyncio.to_thread(undisturbed.run)
    assert [(each.offset, each.deleted > 0) for each in expected.groups] == [(1, True)]
    # Killed after the log, before the progress.
    dying, target = Dying(tmp_path / "backups", Moments(len(log.parts))), tmp_path / "target"
    with pytest.raises(Killed):
        await asyncio.to_thread(Restore(dying, sources_of(manifest), target).run)
    assert {"broker-a", UNFINISHED} == names_in(target) - {"lock"}
    repeated = Restore(place, sources_of(manifest), target)
    assert await asyncio.to_thread(repeated.run) == expected


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rockoon.cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def test_a_second_restore_into_a_directory_is_refused(
    copied: tuple[Directory, BackupManifest], tmp_path: Path
) -> None:
    place, manifest = copied
    place.write(f"{manifest.backup}/manifest.json", encode(manifest))
    routes, target = tmp_path / "backups" / manifest.routes.name, tmp_path / "target"
    content = routes.read_bytes()
    routes.unlink()
    # The restore waits here, after the stores.
    os.mkfifo(routes)
    command = ["backup", "restore", str(tmp_path / "backups"), str(target)]
    first = subprocess.Popen(
        [sys.executable, "-m", "rockoon.cli", *command], stdout=subprocess.DEVNULL
    )
    try:
        with routes.open("wb"):
            second = run_command(*command)
            first.send_signal(signal.SIGKILL)
            assert first.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 1
    assert f"{target} is in use: another restore writes there" in second.stderr
    routes.unlink()
    routes.write_bytes(content)
    third = run_command(*command)
    assert third.returncode == 0, third.stderr
    assert "group billing: no gap" in third.stdout
    assert names_in(target) == COMPLETE
