"""Old backups are removed; a remaining one keeps each of its files, also one that is being made."""

import errno
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import rockoon
from rockoon.backup.copying import Pace
from rockoon.backup.creation import Creation
from rockoon.backup.destination import (
    ArrowDestination,
    BackupError,
    Destination,
    disk_failures,
)
from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import (
    FORMAT,
    INTERRUPTED,
    MANIFEST,
    BackupFile,
    BackupManifest,
    Backups,
    LogBackup,
    LogPart,
    sealed,
    unsealed,
)
from rockoon.backup.pruning import DAY_MS, begun_ms, chosen, prune
from rockoon.backup.restoring import faults
from support.seeds import seeds

LOG = "broker-a"


class Making(Creation):
    """Makes backups without a cluster, in steps.

    Args:
        place: directory of the backups.
        warn: see `create`.
    """

    def __init__(self, place: Destination, warn: Callable[[str], object] = lambda _: None) -> None:
        super().__init__(cast(rockoon.Cluster, None), place, Pace(0), lambda _: None, warn)
        self._parts[LOG] = []
        self.place = place

    def add_parts(self, count: int, chance: random.Random) -> None:
        """Use parts of former backups, and copy more."""
        former = chance.choice(self._known.get(LOG, [[]]))
        parts = [each for each in former if chance.random() < 0.8 and each.file.name in self._files]
        for _ in range(count):
            name = f"logs/{LOG}/{chance.randbytes(4).hex()}"
            parts.append(LogPart(stored(self.place, name, chance.randbytes(99)), 0, 1, 1, ""))
            self._on_parts(LOG, parts)
        self._on_parts(LOG, parts)

    def finish(self) -> None:
        self._destination = self.place
        files = {each: stored(self.place, f"{self.name}/{each}", b"x") for each in ("p", "r")}
        log = LogBackup(LOG, 1, 0, 1, 0, self._parts[LOG], {}, {}, {}, 0, {})
        manifest = BackupManifest(
            self.name, "c", 1, "1", 0, 0, files["p"], 0, "offset", files["r"], 0, 1, [log]
        )
        self._store_manifest(manifest)


def stored(place: Destination, name: str, content: bytes) -> BackupFile:
    place.write(name, content)
    return BackupFile(name, len(content), hashlib.sha256(content).hexdigest())


def backups_in(place: Destination) -> Backups:
    return Backups(place, place.names())


def make(place: Destination, chance: random.Random, *, finish: bool = True) -> str:
    making = Making(place)
    making.begin()
    making.add_parts(chance.randrange(1, 4), chance)
    if finish:
        making.finish()
    return making.name


def with_backups(root: Path, chance: random.Random) -> tuple[ArrowDestination, Making]:
    """Return an object store with three backups, and a fourth one that has not begun."""
    place = ArrowDestination(root.as_uri())
    for _ in range(3):
        make(place, chance)
    return place, Making(place)


def check(place: Destination) -> set[str]:
    """Check that each complete backup has all its files; return the files that it needs."""
    backups, needed = backups_in(place), set()
    for each in backups.complete:
        manifest = backups.manifest(each)
        assert not list(faults(place, manifest))
        needed |= {file.name for file in manifest.files()} | {f"{each}/{MANIFEST}"}
    return needed


def places(root: Path) -> list[Destination]:
    return [Directory(root / "directory"), ArrowDestination((root / "store").as_uri())]


@pytest.mark.parametrize("seed", seeds(2))
def test_a_kept_backup_keeps_its_files_and_no_other_file_remains(tmp_path: Path, seed: int) -> None:
    for place in places(tmp_path):
        chance = random.Random(seed)
        for _ in range(4):
            made = [make(place, chance) for _ in range(chance.randrange(1, 5))]
            interrupted = [make(place, chance, finish=False) for _ in range(chance.randrange(3))]
            # A file of a part that is in no list.
            place.write(f"logs/{LOG}/unlisted", b"x")
            place.write("other/file", b"of another program")
            complete = backups_in(place).complete
            keep = chance.randrange(1, len(complete) + 2)
            before = place.names()
            planned = prune(place, keep=keep, with_interrupted=True, plan=True)
            assert place.names() == before
            assert prune(place, keep=keep, with_interrupted=True) == planned
            assert planned.kept == complete[-keep:]
            assert planned.interrupted == interrupted
            assert made[-1] in planned.kept
            after = place.names()
            assert after.keys() == check(place) | {"other/file"}
            gone = before.keys() - after.keys()
            assert (planned.files, planned.bytes) == (len(gone), sum(before[each] for each in gone))
    assert not (tmp_path / "directory" / planned.interrupted[0]).exists() if interrupted else True


def test_parts_of_an_interrupted_backup_are_kept_for_the_next_one(tmp_path: Path) -> None:
    place, chance = Directory(tmp_path), random.Random(1)
    for _ in range(2):
        make(place, chance)
    interrupted = make(place, chance, finish=False)
    parts = backups_in(place).interrupted_parts(interrupted)[LOG]
    assert prune(place, keep=1).interrupted == []
    assert {each.file.name for each in parts} <= place.names().keys()
    # A removal that was interrupted is continued.
    removed, *_ = backups_in(place).complete
    make(place, chance)
    place.remove(f"{removed}/{MANIFEST}")
    assert prune(place, keep=9).interrupted == [removed]
    check(place)


def test_the_newest_backups_and_those_of_the_last_days_are_kept() -> None:
    now = 1_800_000_000_000
    names = [
        time.strftime("%Y%m%dT%H%M%S", time.gmtime((now - age * DAY_MS) / 1000)) + "123Z-0000"
        for age in (9, 5, 3, 2, 1)
    ]
    assert begun_ms(names[0]) == now - 9 * DAY_MS + 123
    assert chosen(names, 2, 0, now) == names[3:]
    assert chosen(names, 1, 4, now) == names[2:]
    assert chosen(names, 4, 4, now) == names[1:]
    assert chosen(names, 0, 0.5, now) == names[4:], "the last one is kept"
    assert chosen([], 3, 3, now) == []


def test_a_damaged_manifest_is_no_reason_to_remove_its_files(tmp_path: Path) -> None:
    place, chance = Directory(tmp_path), random.Random(1)
    old, new = make(place, chance), make(place, chance)
    place.write(f"{new}/{MANIFEST}", b"{}")
    before = place.names()
    with pytest.raises(BackupError, match=f"{new}/{MANIFEST} is damaged"):
        prune(place, keep=1)
    assert place.names() == before
    # One that is removed need not be readable.
    newest = make(Directory(tmp_path / "2"), chance)
    other = Directory(tmp_path / "2")
    make(other, chance)
    other.write(f"{newest}/{MANIFEST}", b"{}")
    assert prune(other, keep=1).removed == [newest]
    assert old in backups_in(place).complete


@pytest.mark.parametrize("kind", [MANIFEST, INTERRUPTED])
def test_a_backup_that_cannot_be_read_is_not_used_and_its_files_stay(
    tmp_path: Path, kind: str
) -> None:
    place, chance = Directory(tmp_path), random.Random(1)
    intact = make(place, chance)
    damaged = make(place, chance, finish=kind == MANIFEST)
    before = {name for name in place.names() if name.startswith("logs/")}
    place.write(f"{damaged}/{kind}", b"")
    warnings: list[str] = []
    making = Making(place, warnings.append)
    making.begin()
    making.remove_unused()
    making.add_parts(1, chance)
    making.finish()
    (warning,) = warnings
    assert warning.startswith(f"{tmp_path}/{damaged}/{kind} is damaged")
    assert "delete it" in warning
    assert warning.endswith(f"The new backup does not use the files of backup {damaged}")
    after = place.names()
    assert before <= after.keys()
    new = backups_in(place).manifest(making.name)
    assert not list(faults(place, new))
    assert intact in backups_in(place).complete


class Refusing(Directory):
    """A directory whose disk cannot read the manifests at present."""

    def read(self, name: str) -> Iterator[bytes]:
        with disk_failures(f"{self.shown}/{name}", "read"):
            if name.endswith(MANIFEST):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(name)


def test_a_backup_needs_a_former_manifest_to_compare_the_clusters(tmp_path: Path) -> None:
    place, chance = Directory(tmp_path), random.Random(1)
    former = make(place, chance)
    warnings: list[str] = []
    # An error of the disk may pass: the manifest is not skipped.
    with pytest.raises(BackupError, match=f"{former}/{MANIFEST} cannot be read: Input/output"):
        Making(Refusing(tmp_path), warnings.append).begin()
    assert not warnings
    place.write(f"{former}/{MANIFEST}", b"{}")
    with pytest.raises(BackupError, match="may have backups of another cluster: none of its"):
        Making(place, warnings.append).begin()
    assert len(warnings) == 1
    place.remove(f"{former}/{MANIFEST}")
    Making(place).begin()


@pytest.mark.parametrize("damaged", [False, True])
def test_no_intact_backup_of_a_newer_version_is_to_be_deleted(
    tmp_path: Path, damaged: bool
) -> None:
    place, chance = Directory(tmp_path), random.Random(1)
    first, newer = make(place, chance), make(place, chance)
    for name in (first, newer):
        manifest = f"{name}/{MANIFEST}"
        content = unsealed(place.content(manifest), "") | {"format": FORMAT + 1}
        place.write(manifest, b"{}" if damaged and name == first else sealed(content))
    with pytest.raises(BackupError, match="none of its manifests can be read") as refused:
        Making(place).begin()
    advice = "Use the version that wrote them, or another destination"
    assert str(refused.value).endswith(advice)


class Meeting(ArrowDestination):
    """An object store; before some of its calls, another program does something.

    Args:
        root: a directory.
        programs: number of a call → the program that runs before it.
    """

    def __init__(self, root: Path, programs: dict[int, Callable[[], object]]) -> None:
        super().__init__(root.as_uri())
        self._programs = programs
        self._calls = 0

    def _meet(self) -> None:
        self._calls += 1
        self._programs.pop(self._calls, lambda: None)()

    def names(self) -> dict[str, int]:
        self._meet()
        return super().names()

    def content(self, name: str) -> bytes:
        self._meet()
        return super().content(name)

    def write(self, name: str, content: bytes) -> None:
        self._meet()
        super().write(name, content)

    def remove(self, name: str) -> None:
        self._meet()
        super().remove(name)


@pytest.mark.parametrize("seed", seeds(20, known=(51,)))
def test_a_backup_to_an_object_store_is_whole_whenever_old_ones_are_removed(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    place, making = with_backups(tmp_path, chance)
    harsh = chance.random() < 0.2
    others: dict[int, Callable[[], object]]

    def works() -> None:
        making.begin()
        making.add_parts(1, chance)

    try:
        if chance.random() < 0.5:
            # The backup begins, and may end, during the removal.
            first = chance.randrange(1, 12)
            others = {first: works, first + chance.randrange(1, 12): making.finish}
            prune(Meeting(tmp_path, others), keep=1)
        else:
            others = {chance.randrange(1, 14): lambda: prune(place, keep=1, with_interrupted=harsh)}
            making._destination = making.place = Meeting(tmp_path, others)
            works()
            making.finish()
    except BackupError as failure:
        # The removal is refused, or the backup fails: it needs a manifest that is removed, or the
        # operator has removed it while it was running.
        expected = ("is running or", "manifest.json is missing", "was removed")
        assert any(each in str(failure) for each in expected[: 3 if harsh else 2])
    check(place)
    if making.name in backups_in(place).interrupted:
        prune(place, keep=1, with_interrupted=True)
    prune(place, keep=1)
    assert place.names().keys() == check(place)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_running_backup_that_is_removed_as_interrupted_is_whole_or_fails(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    place, making = with_backups(tmp_path, chance)
    making.begin()
    making.add_parts(1, chance)
    first = chance.randrange(1, 9)
    others: dict[int, Callable[[], object]] = {
        first: lambda: making.add_parts(1, chance),
        first + chance.randrange(1, 4): making.finish,
    }
    with suppress(BackupError):
        prune(Meeting(tmp_path, others), keep=1, with_interrupted=True)
    check(place)
    prune(place, keep=1, with_interrupted=True)
    assert place.names().keys() == check(place)


def test_a_backup_that_began_meanwhile_leaves_the_files_to_the_next_removal(tmp_path: Path) -> None:
    chance = random.Random(1)
    place = ArrowDestination(tmp_path.as_uri())
    for _ in range(3):
        make(place, chance)
    making = Making(place)
    # Before the first manifest is removed: names, a manifest.
    found = prune(Meeting(tmp_path, {3: making.begin}), keep=1)
    assert (list(found.left), found.files) == ([making.name], 0)
    with pytest.raises(BackupError, match=f"{making.name} in .* is running or was interrupted"):
        prune(place, keep=1)
    making.add_parts(1, chance)
    making.finish()
    check(place)
    assert replace(prune(place, keep=1), kept=()).files
    assert place.names().keys() == check(place)
    assert not any(name.endswith(INTERRUPTED) for name in place.names())
