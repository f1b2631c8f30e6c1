"""A whole load test for some seconds: local cluster, Locust with two workers, checker, results."""

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from load.overhead import measure

TESTS = Path(__file__).parents[1]
RUN_SECONDS_MAX = 110
ARGUMENTS = {
    "mixed": ("--minutes", "0.05", "--rate", "300", "--queues", "2"),
    "hot-key": ("--minutes", "0.6", "--flush", "sync", "--kill-seconds", "6"),
    "rebalance-storm": ("--minutes", "0.5", "--stay-seconds", "2"),
}


# Members that come and go; and kill -9 of a broker, the offset service, a nameserver.
LONGER = ("rebalance-storm", "hot-key")


@pytest.mark.parametrize(
    "scenario",
    ["mixed", *(pytest.param(name, marks=pytest.mark.soak) for name in LONGER)],
)
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

    profile = json.loads((directory / "profile.json").read_text())
    sent, received = (profile["operations"][name] for name in ("send", "receive"))
    verdict = profile["verdict"]
    assert verdict["is_good"]
    # Not counted: the first message of each stream, with which it opens.
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


@pytest.mark.soak
def test_locust_adds_little_to_what_a_sender_costs(tmp_path: Path) -> None:
    bare, alone, under_locust = measure(tmp_path, seconds=5, turns=3).values()
    assert under_locust.cpu_us < 1.5 * alone.cpu_us
    assert alone.cpu_us < 4 * bare.cpu_us
