"""Files of a directory with backups: complete, durable, and written by one program at a time."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rockoon.backup.destination import PARTIAL_SUFFIX, BackupError, open_destination


def place_of(root: Path, kind: str) -> str:
    return root.as_uri() if kind == "URI" else str(root)


@pytest.mark.parametrize("kind", ["path", "URI"])
def test_a_file_of_a_directory_appears_complete_and_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    root = tmp_path / "with blank" / "backups"
    path = root / "backup" / "manifest.json"
    # What is synced, and whether the file has its name then.
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", recorded)
    place = open_destination(place_of(root, kind))
    with place.writer("backup/manifest.json") as file:
        file.write(b"content")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == place.content("backup/manifest.json") == b"content"
    assert path.stat().st_mode & 0o777 == 0o600
    assert synced[-2:] == [(path.stat().st_ino, False), (path.parent.stat().st_ino, True)]
    # A new directory's entry is lost in a power cut if its parent is not synced.
    assert [each for each, _ in synced[:-2]] == [
        each.stat().st_ino for each in (tmp_path, root.parent, root)
    ]
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["path", "URI"])
def test_a_killed_program_leaves_the_former_file(tmp_path: Path, kind: str) -> None:
    place = open_destination(place_of(tmp_path, kind))
    place.write("file", b"former")
    child = os.fork()
    if not child:
        with place.writer("file") as file:
            file.write(b"new")
            file.flush()
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert place.content("file") == b"former"
    place.write("file", b"next")
    assert place.names().keys() == {"file"}
    assert not list(tmp_path.glob(f"*{PARTIAL_SUFFIX}"))


def test_a_destination_that_is_no_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "backups"
    with pytest.raises(BackupError, match=f"^{path} is no directory .*: it does not exist$"):
        open_destination(str(path), existing=True)
    path.touch()
    for place in (str(path), path.as_uri()):
        with pytest.raises(BackupError, match=f"^{path} is no directory$"):
            open_destination(place, existing=True)
    for suffix in ("?region=eu", "#1"):
        with pytest.raises(BackupError, match=r"has a query or fragment: write %3F for \?"):
            open_destination(f"{path.as_uri()}{suffix}")


def test_backups_are_listed_while_another_program_removes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_destination(str(tmp_path))
    for name in ("logs/kept", "logs/a/file", "logs/b/file"):
        place.write(name, b"content")
    walk = os.walk

    def walk_with_removals(root: Path, **options: Any) -> Iterator[Any]:
        for folder, folders, files in walk(root, **options):
            if Path(folder).name == "b":
                place.remove("logs/b/file")
            yield folder, folders, files
            if Path(folder).name == "logs":
                place.remove("logs/a/file")

    monkeypatch.setattr(os, "walk", walk_with_removals)
    # A directory is missing when it is listed, and a file after it was listed.
    assert place.names() == {"logs/kept": len(b"content")}
    assert not {"a", "b"}.intersection(os.listdir(tmp_path / "logs"))


def test_a_directory_and_its_uri_have_one_lock(tmp_path: Path) -> None:
    with (
        open_destination(tmp_path.as_uri()).locked() as is_alone,
        pytest.raises(BackupError, match=f"^{tmp_path} is in use"),
        open_destination(str(tmp_path)).locked(),
    ):
        pass
    assert is_alone
