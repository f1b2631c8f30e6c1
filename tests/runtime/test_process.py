"""A service process reports when it serves, and its exit status shows why it ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon.local.directory import choose_port
from rockoon_runtime.process import ExitStatus
from support.waiting import DEADLINE_SECONDS

SAMPLE = Path(__file__).with_name("sample_service.py")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SAMPLE), *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    assert line["ready"] == "sample"
    return str(line["address"])


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, errors


def test_a_ready_service_answers_health_checks_and_sigterm_stops_it() -> None:
    process = start()
    with grpc.insecure_channel(ready(process)) as channel:
        request = health_pb2.HealthCheckRequest(service="")
        reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_SECONDS)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    process.send_signal(signal.SIGTERM)
    status, errors = end(process)
    assert status == ExitStatus.STOPPED
    assert "stopped: received SIGTERM" in errors


def test_a_service_without_the_kernel_says_so_at_start_and_answers() -> None:
    process = start(ROCKOON_KERNEL="numpy")
    with grpc.insecure_channel(ready(process)) as channel:
        request = health_pb2.HealthCheckRequest(service="")
        reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_SECONDS)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    process.send_signal(signal.SIGTERM)
    _, errors = end(process)
    assert errors.count("HTTP/2: h2 for Python") == 1


def test_a_service_with_nothing_in_it_has_the_settings_and_metrics_of_every_service() -> None:
    page = f"127.0.0.1:{choose_port()}"
    process = start("--metrics-listen", page)
    with grpc.insecure_channel(ready(process)) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=DEADLINE_SECONDS) as told:
            metrics = told.read().decode()
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0
    for name in ("rocketmq_rpc_latency", "rockoon_connections_closed"):
        assert f"# HELP {name}" in metrics
    assert 'node_type="sample"' in metrics


def test_a_service_without_standard_files_serves_and_stops() -> None:
    """The first files that it opens must not get their numbers: libuv would end the process."""
    port = choose_port()
    shell = 'exec "$0" "$1" --listen "$2" <&- >&- 2>&-'
    command = ["sh", "-c", shell, sys.executable, str(SAMPLE), f"127.0.0.1:{port}"]
    process = subprocess.Popen(command)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service="")
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(request, timeout=DEADLINE_SECONDS, wait_for_ready=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_SECONDS) == ExitStatus.STOPPED


def test_a_second_sigterm_ends_a_service_that_is_not_done_with_the_first() -> None:
    process = start("--fail", "later")
    ready(process)
    process.send_signal(signal.SIGTERM)
    # It reports when it has begun the endless work.
    ready(process)
    process.send_signal(signal.SIGTERM)
    status, _ = end(process)
    assert status == 128 + signal.SIGTERM


def test_a_service_whose_parent_ends_stops_by_itself() -> None:
    process = start("--stop-with-parent")
    ready(process)
    status, errors = end(process)
    assert status == ExitStatus.STOPPED
    assert "the process that started this one has ended" in errors


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--fail", "start"], ExitStatus.UNAVAILABLE, "no nameserver answers at 127.0.0.1:1"),
        (["--fail", "disk"], ExitStatus.DISK_FAILED, "rockoon-sample: fsync failed"),
        (["--fail", "bug"], ExitStatus.FAILED, "RuntimeError: nobody foresaw this"),
        (["--config", "absent.toml"], ExitStatus.CONFIGURATION, "cannot read absent.toml"),
    ],
)
def test_what_stops_a_service_is_one_sentence_and_an_exit_status(
    arguments: list[str], status: ExitStatus, sentence: str
) -> None:
    ended, errors = end(start(*arguments))
    assert ended == status
    assert sentence in errors
    assert ("Traceback" in errors) == (status is ExitStatus.FAILED)


def test_a_port_in_use_is_a_configuration_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, errors = end(start("--listen", address))
    assert status == ExitStatus.CONFIGURATION
    assert f"cannot listen on {address}" in errors
