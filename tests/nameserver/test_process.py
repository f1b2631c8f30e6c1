"""The nameserver as a process: the time of its readiness, and its exit statuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from rockoon.local.directory import choose_port
from rockoon.local.etcd import etcd_version
from rockoon_core.protocol import is_recommended
from rockoon_runtime.process import ExitStatus
from support.etcd import EtcdServer, etcd_binary
from support.waiting import DEADLINE_SECONDS


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rockoon_nameserver", "--listen", "127.0.0.1:0", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, errors


def test_it_announces_itself_and_stops_on_sigterm(shared_etcd: EtcdServer, cluster: str) -> None:
    process = start("--etcd", shared_etcd.endpoint, "--cluster", cluster, "--name", "ns-1")
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    assert line["ready"] == "nameserver"
    assert line["name"] == "ns-1"
    assert not line["address"].endswith(":0")
    process.send_signal(signal.SIGTERM)
    status, errors = end(process)
    assert status == ExitStatus.STOPPED, errors
    assert "Traceback" not in errors


def test_it_gives_up_with_one_sentence_when_etcd_does_not_answer_in_time() -> None:
    nobody = f"127.0.0.1:{choose_port()}"
    process = start("--etcd", nobody, "--start-timeout-seconds", "0.5")
    status, errors = end(process)
    assert status == ExitStatus.UNAVAILABLE
    assert "no reply from etcd for 0.5 s" in errors
    assert nobody in errors
    assert "Traceback" not in errors


def test_it_stops_while_it_waits_for_etcd() -> None:
    nobody = f"127.0.0.1:{choose_port()}"
    process = start("--etcd", nobody)
    assert process.stderr is not None
    assert any("does not answer" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    status, errors = end(process)
    assert status == ExitStatus.STOPPED
    assert "Traceback" not in errors


def test_a_cluster_name_that_cannot_be_a_key_is_a_wrong_setting(shared_etcd: EtcdServer) -> None:
    process = start("--etcd", shared_etcd.endpoint, "--cluster", "a/b")
    status, errors = end(process)
    assert status == ExitStatus.CONFIGURATION
    assert "'a/b' is not a cluster name" in errors


def test_an_etcd_that_loses_writes_is_told_or_refused(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    good = is_recommended(etcd_version(Path(etcd_binary())))
    refusing = start(
        "--etcd", shared_etcd.endpoint, "--cluster", cluster, "--etcd-version-check", "refuse"
    )
    assert refusing.stdout is not None
    if good:
        assert refusing.stdout.readline()
        refusing.send_signal(signal.SIGTERM)
    status, errors = end(refusing)
    assert status == (ExitStatus.STOPPED if good else ExitStatus.CONFIGURATION), errors
    assert ("which may lose acknowledged writes" in errors) is not good
    assert "Traceback" not in errors
