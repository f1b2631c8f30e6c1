"""Restores that are killed and repeated, and two restores into one directory."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rockoon.backup import restoring
from rockoon.backup.destination import PARTIAL_SUFFIX, BackupError
from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import BackupManifest, encode
from rockoon.backup.restoring import UNFINISHED, Restore, RestoreSources
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
    with pytest.raises(BackupError, match=f"unfinished restore of backup {manifest.backup}"):
        Restore(place, sources_of(other), target).run(["broker-a", "routes"])
    with pytest.raises(BackupError, match="offset exists: restore into a new directory"):
        Restore(place, sources_of(manifest), target).run()
    # It continues in two steps.
    for name in ("routes", "broker-a"):
        Restore(place, sources_of(manifest), target).run([name])
    assert names_in(target) == COMPLETE


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
    command = [sys.executable, "-m", "rockoon.cli", "backup", "restore"]
    command += [str(tmp_path / "backups"), str(target)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with routes.open("wb"):
            second = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=DEADLINE_SECONDS
            )
            first.send_signal(signal.SIGKILL)
            assert first.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 1
    assert f"{target} is in use: another restore writes there" in second.stderr
    routes.unlink()
    routes.write_bytes(content)
    third = subprocess.run(command, check=False, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    assert "group billing: no gap" in third.stdout
    assert names_in(target) == COMPLETE
