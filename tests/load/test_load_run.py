"""A whole load test for some seconds: local cluster, Locust with two workers, checker, results."""

import asyncio
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree
from pathlib import Path

import psutil
import pytest

import rockoon
from load.__main__ import INTERRUPTED
from load.compare import differences
from load.overhead import measure
from load.profile import Profile
from rockoon.admin.access_keys import Permission
from rockoon.local import LocalCluster
from support.waiting import LOOK_SECONDS_MAX

TESTS = Path(__file__).parents[1]
RUN_SECONDS_MAX = 250
ARGUMENTS = {
    "mixed": ("--minutes", "0.05", "--rate", "300", "--queues", "2"),
    "hot-key": ("--minutes", "0.6", "--flush", "sync", "--kill-seconds", "6"),
    "rebalance-storm": ("--minutes", "0.5", "--stay-seconds", "2"),
}


@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
def test_a_run_that_ctrl_c_ends_has_measured_checked_and_left_its_results(tmp_path: Path) -> None:
    """One worker stops for longer than Locust waits for its heartbeats: its last report counts."""
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "load", "run", "--scenario", "mixed", "--brokers", "1"),
            *("--minutes", "2", "--rate", "300", "--queues", "2", "--dir", str(tmp_path)),
        ],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A terminal sends it to the whole group.
        process_group=0,
    ) as running:
        while running.poll() is None and not has_rows(tmp_path):
            threading.Event().wait(LOOK_SECONDS_MAX)
        children = psutil.Process(running.pid).children()
        late = next(each for each in children if "worker" in each.cmdline())
        late.suspend()
        os.killpg(running.pid, signal.SIGINT)
        while running.poll() is None and not has_stopped_users(tmp_path):
            threading.Event().wait(LOOK_SECONDS_MAX)
        late.resume()
        said, _ = running.communicate(timeout=RUN_SECONDS_MAX)
    assert running.returncode == INTERRUPTED, said
    assert "Stopped early" in said
    (directory,) = tmp_path.iterdir()
    profile = check_results(directory)
    assert profile["stopped_early"]
    assert profile["seconds"] < 120
    assert any("B was stopped" in each for each in differences(profile, profile))
    assert [each for each in psutil.process_iter() if belongs_to(each, tmp_path)] == []


# To the end; with members that come and go; with kill -9 of a broker, the offset service, a
# nameserver.
@pytest.mark.soak
@pytest.mark.parametrize("scenario", ARGUMENTS)
def test_a_run_measures_checks_and_leaves_its_results(scenario: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "load", "run", "--scenario", scenario, "--brokers", "1"),
            *(*ARGUMENTS[scenario], "--dir", str(tmp_path)),
        ],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = tmp_path.iterdir()
    assert not check_results(directory)["stopped_early"]


def check_results(directory: Path) -> Profile:
    """Check that all results exist and agree; return the profile."""
    profile: Profile = json.loads((directory / "profile.json").read_text())
    sent, received = (profile["operations"][name] for name in ("send", "receive"))
    verdict = profile["verdict"]
    assert verdict["is_good"]
    # Not counted: the first message of each stream, which opens it.
    assert 0 < sent["count"] < verdict["sent"] == verdict["acknowledged"]
    assert verdict["stored"] == verdict["acknowledged"] + verdict["twice"]
    (group,) = verdict["groups"].values()
    assert 0 < received["count"] <= group["given"] + group["twice"]
    assert group["given"] == verdict["sent"]
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99"] <= sent["latency_ms"]["max"]
    processes = profile["processes"]
    assert {"broker-a", "offset", "nameserver-a", "etcd", "worker-0", "worker-1"} <= set(processes)
    assert processes["broker-a"]["cpu_seconds"] > 0
    assert processes["broker-a"]["memory_mib_max"] > 10
    assert (
        sum(row["send"]["count"] for row in profile["timeline"] if "send" in row) == sent["count"]
    )
    assert profile["lag"]

    with (directory / "load_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    for name in ("send", "receive"):
        assert int(rows[name]["Request Count"]) == profile["operations"][name]["count"]
    assert (directory / "load_stats_history.csv").read_text().count("send") >= 2
    assert "receive" in (directory / "report.html").read_text()
    plot = xml.etree.ElementTree.parse(directory / "plot.svg").getroot()
    assert plot.tag.endswith("svg")
    # Both workers had users.
    spawned = [
        line for line in (directory / "master.log").read_text().splitlines() if "All" in line
    ]
    assert "SendingUser" in spawned[0]
    assert processes["worker-0"]["cpu_seconds"] > 0
    assert processes["worker-1"]["cpu_seconds"] > 0
    return profile


def has_rows(folder: Path) -> bool:
    """Return whether Locust has counted messages, and written two rows of their history."""
    texts = {path.name: path.read_text() for path in folder.glob("*/load_stats*.csv")}
    history = texts.get("load_stats_history.csv", "")
    return "receive" in texts.get("load_stats.csv", "") and history.count("send") >= 2


def has_stopped_users(folder: Path) -> bool:
    """Return whether the master has stopped the users, and ends or waits for reports of workers."""
    (directory,) = folder.iterdir()
    is_measured = (directory / "measured.json").exists()
    return is_measured or "last report" in (directory / "master.log").read_text()


def belongs_to(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(str(folder) in argument for argument in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.soak
def test_a_cluster_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "load", "run", "--endpoint", "127.0.0.1:1"),
            *("--dir", str(tmp_path)),
        ],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "The run failed: no nameserver" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def permissions_of_jobs() -> list[str]:
    """Return the permissions that the pages give to the access key `jobs`."""
    deploy, load = (
        (TESTS.parent / f"docs/operate/{name}.md").read_text() for name in ("deploy", "load-tests")
    )
    (created,) = re.findall(r"`rockoon access create jobs (.*?)`", deploy, re.DOTALL)
    (granted,) = re.findall(r"^rockoon access grant jobs (.*)$", load, re.MULTILINE)
    return [word for word in shlex.split(f"{created} {granted}") if "=" in word]


@pytest.mark.soak
async def test_the_documented_access_key_suffices(tmp_path: Path) -> None:
    async with LocalCluster(access=True, durable=False) as local:
        async with rockoon.connect(local.nameservers, access=local.access) as cluster:
            permissions = [Permission.parse(each) for each in permissions_of_jobs()]
            key = await cluster.admin.access_keys.create("jobs", permissions)
        secret = tmp_path / "secret"
        secret.write_text(f"{key.secret}\n")
        secret.chmod(0o600)
        results = tmp_path / "results"
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "load", "run", *ARGUMENTS["mixed"]),
            *("--endpoint", ",".join(local.nameservers), "--dir", str(results)),
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {"ROCKOON_ACCESS_KEY": key.id, "ROCKOON_ACCESS_SECRET_FILE": str(secret)},
        )
        said, _ = await asyncio.wait_for(running.communicate(), RUN_SECONDS_MAX)
    assert running.returncode == 0, said.decode()
    (directory,) = results.iterdir()
    assert json.loads((directory / "profile.json").read_text())["verdict"]["is_good"]


@pytest.mark.soak
def test_locust_adds_little_to_what_a_sender_costs(tmp_path: Path) -> None:
    bare, alone, under_locust = measure(tmp_path, seconds=5, turns=3).values()
    assert under_locust.cpu_us < 1.5 * alone.cpu_us
    assert alone.cpu_us < 4 * bare.cpu_us
