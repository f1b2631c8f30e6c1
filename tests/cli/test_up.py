"""`rockoon up`: a cluster in the foreground."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rockoon.local.ports import choose_port
from support.waiting import DEADLINE_SECONDS, gone, wait_until

ROCKOON = (sys.executable, "-m", "rockoon.cli")


class Up:
    """A running `rockoon up`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output
        wait_until(
            lambda: b"Ctrl-C stops it" in output.read_bytes() or process.poll() is not None,
            "the cluster to be ready",
        )
        self.shown = output.read_text()
        assert process.poll() is None, self.shown

    @property
    def processes(self) -> dict[str, int]:
        found = re.findall(r"^(\S+) +127\.0\.0\.1:\d+ +(\d+)$", self.shown, re.MULTILINE)
        return {name: int(pid) for name, pid in found}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def up(directory: Path, port: int, *options: str) -> Iterator[Up]:
    output = directory.with_suffix(".out")
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [*ROCKOON, "up", "--dir", str(directory), "--port", str(port), *options],
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    with process:
        try:
            yield Up(process, output)
        finally:
            process.kill()


def run(port: int, *arguments: str, stdin: str = "") -> str:
    ended = subprocess.run(
        [*ROCKOON, *arguments, "--nameservers", f"127.0.0.1:{port}"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended
    return ended.stdout


def refused(*arguments: str) -> str:
    ended = subprocess.run(
        [*ROCKOON, "up", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 1, ended
    return ended.stderr


def test_data_stays_from_one_run_to_the_next(tmp_path: Path) -> None:
    port = choose_port()
    with up(tmp_path / "data", port, "--new-queue-rule", "classic", "--flush", "async") as first:
        assert list(first.processes) == ["etcd", "nameserver-a", "broker-a", "offset"]
        assert f"export ROCKOON_NAMESERVERS=127.0.0.1:{port}" in first.shown
        run(port, "topic", "create", "kept", "--queues", "1")
        run(port, "produce", "kept", stdin="hello\n")
        status = json.loads(run(port, "status", "--json"))
        assert status["brokers"][0]["flush"] == "async"

        said = refused("--dir", str(tmp_path / "data"), "--port", str(choose_port({port})))
        assert f"a cluster runs on {tmp_path / 'data'} already" in said
        said = refused("--dir", str(tmp_path / "other"), "--port", str(port))
        assert f"port {port} is in use" in said

        assert first.end(signal.SIGINT) == 0, "Ctrl-C is the normal end"
        assert all(gone(pid) for pid in first.processes.values())
    with up(tmp_path / "data", port) as second:
        assert run(port, "consume", "kept") == "hello\n"
        assert second.end(signal.SIGTERM) == 0


def test_a_node_that_dies_ends_the_whole_with_a_line_that_says_which(tmp_path: Path) -> None:
    with up(tmp_path / "data", choose_port(), "--brokers", "2") as running:
        os.kill(running.processes["broker-b"], signal.SIGKILL)
        assert running.process.wait(DEADLINE_SECONDS) == 1
        said = running.output.read_text()
        assert "rockoon: broker-b ended unexpectedly (killed by SIGKILL)" in said
        assert "stopping everything else" in said
        assert all(gone(pid) for pid in running.processes.values())


def test_nothing_is_left_when_it_is_killed_itself(tmp_path: Path) -> None:
    with up(tmp_path / "data", choose_port()) as running:
        running.end(signal.SIGKILL)
        for name, pid in running.processes.items():
            wait_until(lambda pid=pid: gone(pid), f"{name} to end")


def test_a_port_that_somebody_else_has_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--dir", str(tmp_path), "--port", str(port))
    assert said == (
        f"rockoon: port {port} is in use (for nameserver-a): choose another with --port, "
        "or stop the program that listens there\n"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--flush", "sometimes"), "'sometimes' is none of sync, async"),
        (("--new-queue-rule", "newest"), "'newest' is none of exact, classic"),
    ],
)
def test_wrong_usage_is_explained(options: tuple[str, str], sentence: str) -> None:
    ended = subprocess.run(
        [*ROCKOON, "up", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert sentence in " ".join(ended.stderr.split())


def test_with_access_keys_it_says_what_commands_need_and_others_are_refused(
    tmp_path: Path,
) -> None:
    with up(tmp_path / "cluster", choose_port(), "--access") as running:
        exports = dict(re.findall(r"export (\w+)=(\S+)", running.shown))
        secret = Path(exports["ROCKOON_ACCESS_SECRET_FILE"]).read_text().strip()
        assert secret not in running.shown

        def status(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
            own = os.environ | environment
            return subprocess.run([*ROCKOON, "status"], env=own, capture_output=True, text=True)

        assert status(exports).returncode == 0
        refused = status({"ROCKOON_NAMESERVERS": exports["ROCKOON_NAMESERVERS"]})
        assert refused.returncode == 1
        assert "bears no access key" in refused.stderr
        assert running.end(signal.SIGINT) == 0
