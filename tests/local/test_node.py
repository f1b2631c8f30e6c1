"""A node's process: ready, ended, killed, and never left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.local.etcd import (
    CAREFUL_FLAGS,
    built_etcd,
    etcd_command,
    etcd_healthy,
    etcd_version,
    etcd_warning,
    find_etcd,
)
from rockoon.local.process import LocalClusterError, Node, NodeEnded, NodeKind
from rockoon_core.protocol import is_recommended
from support.waiting import DEADLINE_SECONDS, gone, soon, wait_until

READY = 'import sys; print(\'{"ready": "broker"}\', flush=True); sys.stdin.read()'
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + READY
BROKEN = "import sys; print('the disk is on fire', file=sys.stderr); sys.exit(74)"
SILENT = "import sys; print('still thinking', file=sys.stderr, flush=True); sys.stdin.read()"


class Started:
    """Creates nodes of Python one-liners and ends them after the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ended: list[NodeEnded] = []
        self._nodes: list[Node] = []

    def node(self, program: str) -> Node:
        node = Node(
            "broker-a",
            NodeKind.BROKER,
            1,
            (sys.executable, "-c", program),
            self.directory / "broker-a.log",
            environment={},
            on_unexpected_end=self.ended.append,
        )
        self._nodes.append(node)
        node.launch()
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.signal(signal.SIGKILL)
            node.wait_ended(DEADLINE_SECONDS)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.close()


def test_a_node_is_ready_when_it_says_so_and_ends_when_told(started: Started) -> None:
    node = started.node(READY)
    node.wait_ready(soon())
    assert node.ready
    assert node.pid is not None
    node.signal(signal.SIGTERM)
    assert node.wait_ended(DEADLINE_SECONDS) == -signal.SIGTERM
    assert not node.running
    assert started.ended == [], "an end that was asked for is no surprise"


def test_a_node_that_fails_to_start_is_reported_with_the_end_of_its_log(started: Started) -> None:
    node = started.node(BROKEN)
    with pytest.raises(LocalClusterError) as failure:
        node.wait_ready(soon())
    assert "broker-a did not start (exit status 74)" in str(failure.value)
    assert "the disk is on fire" in str(failure.value)
    assert str(node.log_path) in str(failure.value)


def test_a_node_that_never_gets_ready_is_reported_at_the_deadline(started: Started) -> None:
    node = started.node(SILENT)
    wait_until(lambda: b"thinking" in node.log_path.read_bytes(), "the program to start")
    with pytest.raises(LocalClusterError, match="was not ready in time") as failure:
        node.wait_ready(time.monotonic() + 0.05)
    assert "still thinking" in str(failure.value)


def test_a_node_that_dies_by_itself_is_noticed(started: Started) -> None:
    node = started.node(READY)
    node.wait_ready(soon())
    assert node.pid is not None
    os.kill(node.pid, signal.SIGSEGV)
    wait_until(lambda: started.ended, "the end to be noticed")
    assert started.ended[0].name == "broker-a"
    assert "killed by SIGSEGV" in str(started.ended[0])


def test_a_node_that_ignores_sigterm_can_be_killed_and_started_again(started: Started) -> None:
    node = started.node(STUBBORN)
    node.wait_ready(soon())
    node.signal(signal.SIGTERM)
    assert node.wait_ended(0.05) is None
    node.signal(signal.SIGKILL)
    assert node.wait_ended(DEADLINE_SECONDS) == -signal.SIGKILL
    node.launch()
    node.wait_ready(soon())
    with pytest.raises(LocalClusterError, match="running already"):
        node.launch()


def test_a_program_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    node = Node(
        "broker-a",
        NodeKind.BROKER,
        1,
        (str(tmp_path / "absent"),),
        tmp_path / "log",
        environment={},
        on_unexpected_end=lambda _: None,
    )
    with pytest.raises(LocalClusterError, match=r"broker-a cannot be started: .*No such file"):
        node.launch()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Node]:
    port = choose_port()
    node = Node(
        "etcd",
        NodeKind.ETCD,
        port,
        etcd_command(find_etcd(), tmp_path / "etcd", port, durable=False),
        tmp_path / "etcd.log",
        environment={},
        on_unexpected_end=lambda _: None,
        probe=lambda: etcd_healthy(port),
    )
    yield node
    node.signal(signal.SIGKILL)
    node.wait_ended(DEADLINE_SECONDS)


def session_of(pid: int) -> list[int]:
    """Return live processes of the session that `pid` leads."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and not gone(int(folder.name)):
            try:
                if os.getsid(int(folder.name)) == pid:
                    members.append(int(folder.name))
            except ProcessLookupError:
                continue
    return members


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_etcd_ends_and_leaves_no_process_behind(etcd: Node, number: signal.Signals) -> None:
    etcd.launch()
    etcd.wait_ready(soon())
    pid = etcd.pid
    assert pid is not None
    assert "etcd" in Path(f"/proc/{pid}/comm").read_text(), "signals reach etcd, not a shell"
    etcd.signal(number)
    assert etcd.wait_ended(DEADLINE_SECONDS) is not None
    wait_until(lambda: not session_of(pid), "what watched etcd to end with it")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_etcd_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, signal, time
from pathlib import Path
from rockoon.local.etcd import etcd_command, etcd_healthy, find_etcd
from rockoon.local.directory import choose_port
from rockoon.local.process import NodeKind, Node
port = choose_port()
command = etcd_command(find_etcd(), Path({str(tmp_path / "etcd")!r}), port, durable=False)
node = Node("etcd", NodeKind.ETCD, port, command, Path({str(tmp_path / "log")!r}), environment={{}},
            on_unexpected_end=print, probe=lambda: etcd_healthy(port))
node.launch()
node.wait_ready(time.monotonic() + {DEADLINE_SECONDS})
print(node.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    wait_until(lambda: gone(int(ended.stdout)), "etcd to end")


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="Linux only")
def test_etcd_s_timers_may_run_out_together(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\ncat /proc/$$/timerslack_ns >{told}.new && mv {told}.new {told}\n"
    )
    program.chmod(0o755)
    command = etcd_command(program, tmp_path / "data", 1, durable=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.wait(DEADLINE_SECONDS) == 0
    assert int(told.read_text()) == 50_000_000


def test_the_packaged_etcd_is_found_when_there_is_no_other(tmp_path: Path) -> None:
    found = find_etcd(search_path=str(tmp_path), cache_directory=tmp_path)
    assert found.parts[-2:] == ("etcdbin", "etcd")
    assert etcd_version(found) == "3.5.1"
    assert "is for trials only" in etcd_warning(found)
    command = etcd_command(found, tmp_path / "data", 1, durable=True)
    assert set(CAREFUL_FLAGS) <= set(command)


def named(directory: Path, version: str) -> Path:
    """A program with the name of etcd; no script, because the package installs no script."""
    source = directory / "etcd.c"
    source.write_text(f'int puts(const char *); int main() {{ puts("etcd Version: {version}"); }}')
    subprocess.run(["cc", "-o", str(directory / "etcd"), str(source)], check=True)
    return directory / "etcd"


def test_the_first_recommended_etcd_is_preferred_and_else_the_first(tmp_path: Path) -> None:
    on_path, cache = tmp_path / "bin", tmp_path / "cache"
    on_path.mkdir()
    cache.mkdir()

    def found() -> Path:
        return find_etcd(search_path=str(on_path), cache_directory=cache)

    old = named(on_path, "3.5.4")
    assert found() == old
    built = built_etcd(cache)
    named(cache, "3.5.21").rename(built)
    assert found() == built
    assert etcd_warning(built) == ""
    old.unlink()
    debian = named(on_path, "3.4.23")
    assert found() == debian
    assert not set(CAREFUL_FLAGS) & set(etcd_command(debian, tmp_path, 1, durable=True))
    debian.write_bytes(b"#!/usr/bin/env python\n")
    assert found() == built


def test_the_etcd_to_build_is_of_a_recommended_version() -> None:
    assert is_recommended(built_etcd().name.removeprefix("etcd-"))


def test_versions_that_lose_writes_or_differ_are_not_recommended() -> None:
    wrong = ["3.5.0", "3.5.1", "3.5.5", "3.4.21", "3.3.27", "", "main"]
    right = ["3.4.22", "3.4.37", "3.5.6", "3.5.21", "3.6.0", "4.0.0-rc.1"]
    assert [each for each in wrong + right if is_recommended(each)] == right


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="Linux tells it")
@pytest.mark.parametrize(("given", "wanted"), [(None, "1"), ("2", "2")])
def test_services_start_without_threads_that_calculate_unless_somebody_wants_them(
    given: str | None, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    with LocalCluster(tmp_path, single=True) as local:
        (node,) = local.nodes
        variables = Path(f"/proc/{node.pid}/environ").read_bytes().split(b"\0")
    assert f"OPENBLAS_NUM_THREADS={wanted}".encode() in variables
