"""A service that is forked behaves as one that `subprocess` has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rockoon.local import process
from support.waiting import gone
from support.warm_nodes import WarmNodes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="services are new processes here")
BROKER = (sys.executable, "-m", "rockoon_broker")


@contextmanager
def started(log: Path, *command: str, **variables: str) -> Iterator[Any]:
    with log.open("wb") as stream:
        service: Any = process.start_program(command, stream, os.environ | variables)
    with service.stdin, service.stdout:
        yield service


def test_it_has_its_own_session_pipes_and_variables_and_ends_with_its_status(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with started(log, *BROKER, "--print-settings", ROCKOON_BROKER_NAME="by-variable") as service:
        assert 'name = "by-variable"' in service.stdout.read().decode()
        assert service.wait() == 0
        assert gone(service.pid)
        assert log.read_bytes() == b""
    with started(log, *BROKER, "--flush=sometimes") as service:
        assert service.wait() == 78
        assert "sometimes" in log.read_text()


def test_it_is_a_child_that_can_be_killed(tmp_path: Path) -> None:
    store = f"--store-path={tmp_path / 'store'}"
    with started(tmp_path / "log", *BROKER, store, "--nameservers=127.0.0.1:1") as service:
        fields = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
        assert (int(fields[1]), int(fields[3])) == (os.getpid(), service.pid)
        service.send_signal(signal.SIGKILL)
        assert service.wait() == -signal.SIGKILL
        service.send_signal(signal.SIGKILL)


def test_a_program_that_has_ended_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    nodes = WarmNodes(process.start_program)
    with (tmp_path / "log").open("wb") as log, closing(nodes):
        for _ in range(2):
            with pytest.raises(OSError, match="the program that forks services has ended"):
                nodes.start(("/bin/false", "-m", "rockoon_broker"), log, os.environ)


def test_other_programs_and_other_interpreters_are_new_processes(tmp_path: Path) -> None:
    for command, variables in (
        ((sys.executable, "-c", "print('name')"), {}),
        ((*BROKER, "--print-settings"), {"PYTHONMALLOC": "malloc"}),
    ):
        with started(tmp_path / "log", *command, **variables) as service:
            assert isinstance(service, subprocess.Popen)
            assert "name" in service.stdout.read().decode()
            assert service.wait() == 0
