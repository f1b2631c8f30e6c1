"""Several services in one process: started and stopped in order, ended by any of them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rockoon_runtime.process import ExitStatus
from support.waiting import DEADLINE_SECONDS

HERE = Path(__file__).parent


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Two that are the sample service."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.py").write_text("from sample_service import PROGRAM\n")
    return tmp_path


def start(packages: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rockoon_runtime.together", *arguments],
        env=os.environ | {"PYTHONPATH": f"{packages}:{HERE}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_all_are_ready_at_once_and_stop_in_order(packages: Path) -> None:
    process = start(packages, "one", "--name=first", "two", "--name=second")
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    assert (line["ready"], line["name"], line["pid"]) == ("single", "first", process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert "stopped: received SIGTERM" in errors


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (("one", "two", "--fail=start"), ExitStatus.UNAVAILABLE, "no nameserver"),
        (("one", "two", "--fail=disk"), ExitStatus.DISK_FAILED, "fsync failed"),
        (("one", "--fail=disk", "two"), ExitStatus.DISK_FAILED, "fsync failed"),
        (("one", "two", "--fail=bug"), ExitStatus.FAILED, "nobody foresaw this"),
        (("one", "--listen=nowhere", "two"), ExitStatus.CONFIGURATION, "cannot listen on nowhere"),
        (("one", "two", "--cluster-secret=x"), 2, "unrecognized arguments"),
        (("one", "two", "--access=maybe"), ExitStatus.CONFIGURATION, "must be one of"),
        ((), 2, "name the services"),
    ],
)
def test_when_one_ends_all_do_and_the_status_is_its_own(
    packages: Path, options: tuple[str, ...], status: int, sentence: str
) -> None:
    process = start(packages, *options)
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == status, errors
    assert sentence in errors


def test_they_stop_with_the_process_that_started_them_and_log_to_a_file(
    packages: Path, tmp_path: Path
) -> None:
    own = ("--stop-with-parent", f"--log-file={tmp_path / 'log'}", "--ready-text=all there")
    process = start(packages, *own, "one", "two")
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "all there\n"
    process.stdin.close()
    assert process.wait(DEADLINE_SECONDS) == 0
    assert "stopped: the process that started this one has ended" in (tmp_path / "log").read_text()
    with process:
        pass
