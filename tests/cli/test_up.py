"""`rockoon up`: a cluster in the foreground."""

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from rockoon.local.directory import choose_port
from rockoon.local.supervisor import Pauses
from support.up_process import ROCKOON, run, up
from support.waiting import DEADLINE_SECONDS, gone, wait_until


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


def test_one_process_is_the_command_itself_and_ends_with_it(tmp_path: Path) -> None:
    port = choose_port()
    with up(tmp_path / "data", port, "--single", "--access") as running:
        assert list((tmp_path / "data").glob("etcd*")) == []
        for variable, value in re.findall(r"export (\w+)=(\S+)", running.shown):
            os.environ[variable] = value
        try:
            run(port, "topic", "create", "kept", "--queues", "1")
            run(port, "produce", "kept", stdin="hello\n")
            assert run(port, "consume", "kept") == "hello\n"
            assert json.loads(run(port, "status", "--json"))["healthy"]
        finally:
            for variable, _ in re.findall(r"export (\w+)=(\S+)", running.shown):
                del os.environ[variable]
        # It keeps the lock, and the ports.
        said = refused("--single", "--dir", str(tmp_path / "data"), "--port", str(choose_port()))
        assert f"already (process {running.process.pid})" in said
        said = refused("--single", "--dir", str(tmp_path / "other"), "--port", str(port))
        assert f"port {port} is in use" in said
        said = refused("kill", "broker-a", "--dir", str(tmp_path / "data"))
        assert f"runs in one process ({running.process.pid}" in said
        assert running.end(signal.SIGINT) == 0
        log = (tmp_path / "data" / "logs" / "single.log").read_text()
        assert "stopped: received SIGINT" in log
        assert "ERROR" not in log


def test_a_node_that_dies_is_started_again_and_one_that_is_killed_by_wish_stays_down(
    tmp_path: Path,
) -> None:
    # Longer than the name of a socket may be.
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    port = choose_port()
    with up(folder / "data", port, "--brokers", "2") as running:
        where = ("--dir", str(folder / "data"))

        def said(sentence: str) -> None:
            wait_until(lambda: sentence in running.output.read_text(), sentence)

        def played(*arguments: str) -> tuple[int, str]:
            command = [*ROCKOON, "up", *arguments, *where]
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
            )
            assert "Traceback" not in ended.stderr
            return ended.returncode, ended.stdout + ended.stderr

        os.kill(running.processes["broker-b"], signal.SIGKILL)
        said("rockoon: broker-b ended unexpectedly (killed by SIGKILL)")
        said("restarting broker-b in 0.5 s")
        said("broker-b runs again, as process")
        assert running.process.poll() is None
        assert json.loads(run(port, "status", "--json"))["healthy"]

        assert played("kill", "broker-a") == (0, "broker-a is killed\n")
        status, sentence = played("kill", "broker-a")
        assert (status, "broker-a is down already" in sentence) == (1, True)
        status, sentence = played("start", "broker-a")
        assert status == 0
        assert sentence.startswith("broker-a runs, as process ")
        assert played("stop", "offset") == (0, "offset is stopped\n")
        status, sentence = played("stop", "brokr-b")
        assert (status, sentence) == (
            1,
            "rockoon: there is no node 'brokr-b': did you mean broker-b?\n",
        )
        assert "broker-a is started again" not in running.output.read_text()
        mode = (folder / "data" / "control").stat().st_mode
        assert mode & 0o777 == 0o600
        assert running.end(signal.SIGINT) == 0
        status, sentence = played("kill", "broker-a")
        assert (status, sentence.startswith("rockoon: no cluster runs on ")) == (1, True)
    shown = refused("kill", "broker-a", "--dir", str(tmp_path))
    assert shown.startswith(
        f"rockoon: there is no cluster in {tmp_path}: name its directory with --dir"
    )


def test_a_node_that_dies_again_and_again_is_started_less_and_less_often() -> None:
    pauses = Pauses()
    now, waited = 100.0, []
    for _ in range(9):
        waited.append(pauses.ended("broker-a", now))
        now += waited[-1] + 5
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses.ended("broker-b", now) == 0.5
    assert pauses.ended("broker-a", now + 100) == 0.5


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
        (("--flush", "sometimes"), "'sometimes' is not one of sync, async"),
        (("--new-queue-rule", "newest"), "'newest' is not one of exact, classic"),
        (("end", "broker-a"), "'end' is not one of stop, start, kill"),
        (("kill",), "name the node to kill"),
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
        assert "has no access key" in refused.stderr
        assert running.end(signal.SIGINT) == 0
