"""Files of a directory with backups: complete, durable, and written by one program at a time."""

import os
from pathlib import Path

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


def test_a_directory_and_its_uri_have_one_lock(tmp_path: Path) -> None:
    with (
        open_destination(tmp_path.as_uri()).locked() as is_alone,
        pytest.raises(BackupError, match=f"^{tmp_path} is in use"),
        open_destination(str(tmp_path)).locked(),
    ):
        pass
    assert is_alone
