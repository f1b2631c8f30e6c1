"""A service under systemd: it reports that it is ready, that its event loop runs, and its end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rockoon_runtime.notify import watchdog_seconds
from support.waiting import DEADLINE_SECONDS

SAMPLE = Path(__file__).with_name("sample_service.py")


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of systemd; the name of an abstract one begins with "@" in NOTIFY_SOCKET."""
    is_file = request.param == "file"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify") if is_file else f"\0rockoon-test-{os.getpid()}")
        receiver.settimeout(DEADLINE_SECONDS)
        yield receiver


def start(receiver: socket.socket, **environment: str) -> subprocess.Popen[str]:
    name = receiver.getsockname()
    address = name if isinstance(name, str) else "@" + name[1:].decode()
    return subprocess.Popen(
        [sys.executable, str(SAMPLE)],
        env={**os.environ, "NOTIFY_SOCKET": address, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(receiver: socket.socket) -> dict[str, str]:
    lines = receiver.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_service_reports_ready_and_stopping_once_each(systemd: socket.socket) -> None:
    with start(systemd) as process:
        ready = report(systemd)
        assert ready["READY"] == "1"
        assert ready["STATUS"].startswith("sample-1 at 127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert report(systemd) == {"STOPPING": "1", "STATUS": "received SIGTERM"}
        assert process.wait(DEADLINE_SECONDS) == 0
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(4096)


def test_the_event_loop_reports_that_it_runs_and_a_stopped_process_does_not(
    systemd: socket.socket,
) -> None:
    with start(systemd, WATCHDOG_USEC="200000") as process:
        reports: list[dict[str, str]] = []
        while reports.count({"WATCHDOG": "1"}) < 4 or not any("READY" in each for each in reports):
            reports.append(report(systemd))
        process.send_signal(signal.SIGSTOP)
        systemd.settimeout(1.0)
        # The reports that were sent before the signal, and then none for five intervals.
        with suppress(TimeoutError):
            while process.poll() is None:
                systemd.recv(4096)
        assert process.poll() is None
        process.kill()


def test_a_service_starts_if_systemd_receives_nothing(tmp_path: Path) -> None:
    for address in (str(tmp_path / "absent"), "not-a-path", "vsock:2:3"):
        process = subprocess.Popen(
            [sys.executable, str(SAMPLE)],
            env={**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"},
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert '"ready": "sample"' in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_only_the_watched_process_reports(environment: dict[str, str], seconds: float) -> None:
    assert watchdog_seconds(environment, 7) == seconds
