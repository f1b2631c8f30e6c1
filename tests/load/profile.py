"""The profile of a run: one JSON file with all values for a comparison of runs."""

import dataclasses
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from load.plan import Plan
from load.usage import Usage

FORMAT = 1
Profile = dict[str, Any]


def machine() -> dict[str, Any]:
    """The machine: runs on machines that differ in this cannot be compared."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def commit_of(tree: Path) -> str:
    """Return the commit of a source tree, with a "+" if files have changed since; empty without
    git."""
    try:
        found = subprocess.run(
            ["git", "-C", str(tree), "describe", "--always", "--abbrev=12", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def make_profile(
    plan: Plan, directory: Path, usages: dict[str, Usage], load_average: float
) -> Profile:
    """Combine the results of master, auditor and meter.

    Args:
        plan: plan of the run.
        directory: directory of its results.
        usages: of the processes on this machine.
        load_average: of this machine before the run: whether other programs used it.
    """
    measured = json.loads((directory / "measured.json").read_text())
    seconds = measured["ended_s"] - measured["began_s"]
    for name, operation in measured["operations"].items():
        # From the first to the last: readers that wait for the first messages are idle first.
        active = [row["second"] for row in measured["timeline"] if name in row]
        interval = measured["interval_seconds"]
        operation["seconds"] = min(active[-1] - active[0] + interval, seconds)
        operation["per_second"] = operation["count"] / operation["seconds"]
        operation["mb_per_second"] = operation["bytes"] / operation["seconds"] / 1e6
    verdict_path = directory / "verdict.json"
    verdict = json.loads(verdict_path.read_text()) if verdict_path.exists() else None
    lag = verdict.pop("lag") if verdict is not None else []
    return {
        "format": FORMAT,
        "commit": plan.commit,
        "machine": machine(),
        "load_average_before": round(load_average, 2),
        "plan": dataclasses.asdict(plan),
        "seconds": seconds,
        "operations": measured["operations"],
        "failures": measured["failures"],
        "exceptions": measured["exceptions"],
        "workers_cpu_seconds": measured["workers_cpu_seconds"],
        "processes": {
            name: {
                "cpu_seconds": round(usage.cpu_seconds, 2),
                "memory_mib_max": round(usage.memory_bytes_max / (1 << 20), 1),
            }
            for name, usage in usages.items()
        },
        "verdict": verdict,
        "interval_seconds": measured["interval_seconds"],
        "timeline": measured["timeline"],
        "lag": [
            {"second": round(each["at_s"] - measured["began_s"], 1), "messages": each["messages"]}
            for each in lag
        ],
    }
