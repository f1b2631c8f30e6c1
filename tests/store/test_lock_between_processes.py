"""The lock is a POSIX record lock on byte 0, which Java brokers use as well."""

import subprocess
import sys
from pathlib import Path

import pytest

from rockoon_core.disk import DirectoryLock, DirectoryLocked

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""
TRIER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("free")
except BlockingIOError:
    print("taken")
"""


def test_a_lock_held_elsewhere_refuses_and_its_end_lets_in(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLocked, match="another process"):
            DirectoryLock(tmp_path)
    DirectoryLock(tmp_path).release()


def test_ours_keeps_others_out_even_after_a_refused_second_open(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryLocked):
        DirectoryLock(tmp_path)
    tried = subprocess.run(
        [sys.executable, "-c", TRIER, str(tmp_path / "lock")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert tried.stdout == "taken\n"
    lock.release()
