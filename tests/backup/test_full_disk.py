"""`rockoon backup restore` to a disk that becomes full at each step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import BackupManifest
from rockoon.backup.restoring import REPORT
from support.tmpfs import resize, tmpfs

# The last one is enough.
SIZES_BYTES = [pages * 4096 for pages in (1, 3, 6, 10, 14, 18, 24, 250)]


def restored(place: Path, target: Path) -> str:
    """Run the command; return its error, empty if it succeeds. The offset service's journal may
    log a line before the error."""
    command = [sys.executable, "-m", "rockoon.cli", "backup", "restore", place, target]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == (1 if ran.stderr else 0), ran
    return "".join(ran.stderr.splitlines()[-1:])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_one_sentence_with_the_file_and_the_restore_continues(
    copied: tuple[Directory, BackupManifest], tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    assert not restored(place, tmp_path / "undisturbed")
    target, refused = tmp_path / "small", []
    with tmpfs(target, SIZES_BYTES[0]):
        for size_bytes in SIZES_BYTES:
            resize(target, size_bytes)
            error = restored(place, target)
            if not error:
                break
            refused.append(error)
        report = (target / REPORT).read_bytes()
    assert report == (tmp_path / "undisturbed" / REPORT).read_bytes()
    advice = "No space left on device; make room on this disk and repeat the command"
    for each in refused:
        assert each.startswith(f"rockoon: {target}/"), each
        assert each.endswith(f" cannot be written: {advice}, which continues"), each
    assert len({each.split()[1] for each in refused}) > 2, "the disk was full at several steps"
