"""What a message costs, and how long it takes: the rows of `make compare` that have a goal."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.compare.__main__ import Turn
from bench.compare.figures import CPU, P50, P99, RATE, rows
from bench.compare.peer import python_client
from bench.compare.programs import ClientProgram, cpu_seconds
from bench.goals import alone
from bench.goals.goal import Goal
from rockoon.local import LocalCluster

EACH, LISTS = "produce 100 B, a call a message", "produce 100 B, lists"
LARGE = "produce 1 KiB, a call a message"
SINGLE, SOME = "one awaited send after another", "64 tasks, each awaits its sends"
PACED = "1,000 messages/s, from send to listener"
BROKER = "the broker's share of produce 100 B, with its index"
CONNECTIONS = "1,000 connections that await their sends, p99 beside that of one"
COUNT = 1_000
KAFKA = "Kafka's when the goal was set"
ASYNC, SYNC = "before a sync", "after a sync"

GOALS = (
    Goal(f"{EACH}, {SYNC}", 1_290_000, RATE, is_floor=True, origin=KAFKA),
    Goal(f"{EACH}, {SYNC}, CPU", 1.3, CPU),
    Goal(f"{BROKER}, {SYNC}", 0.45, CPU),
    Goal(f"{LISTS}, {SYNC}", 2_200_000, RATE, is_floor=True, origin=f"1.5 times {KAFKA}"),
    Goal(f"{LARGE}, {SYNC}", 600_000, RATE, is_floor=True, origin=KAFKA),
    Goal("consume 100 B, columns", 3_500_000, RATE, is_floor=True),
    Goal("consume 100 B, lists of objects", 1_200_000, RATE, is_floor=True),
    Goal("push 100 B, a message a call", 280_000, RATE, is_floor=True),
    Goal("push 100 B, lists of up to 64", 900_000, RATE, is_floor=True),
    *(
        goal
        for mode, p50 in ((ASYNC, 0.25), (SYNC, 0.35))
        for goal in (
            Goal(f"{SINGLE}, {mode}, CPU", 300, CPU),
            Goal(f"{SINGLE}, {mode}, p50", p50, "ms"),
            Goal(f"{SINGLE}, {mode}, p99", 1.5, "ms"),
            Goal(f"{SOME}, {mode}", 60_000, RATE, is_floor=True),
            Goal(f"{PACED}, {mode}, CPU", 500, CPU),
            Goal(f"{PACED}, {mode}, p50", 0.5, "ms"),
            Goal(f"{PACED}, {mode}, p99", 2, "ms"),
        )
    ),
    Goal(CONNECTIONS, 20, "times"),
)


def measure(folder: Path, seconds: float) -> Iterator[tuple[str, float]]:
    """The rows without and with a sync before the answer, then many connections."""
    wanted = {goal.measure for goal in GOALS}
    suffixes = {RATE: "", CPU: ", CPU", P50: ", p50", P99: ", p99"}
    for sync in (False, True):
        mode = SYNC if sync else ASYNC
        with _running(folder / mode.replace(" ", "-"), sync=sync) as (local, client):
            servers = [node.pid for node in local.nodes if node.pid is not None]
            turn = Turn(servers, client, "", folder)
            turn.connect(",".join(local.nameservers))
            turn.warm(seconds)
            for row in rows(sync=sync):
                name = row.name if row.reads else f"{row.name}, {mode}"
                if not any(each.startswith(name) for each in wanted):
                    continue
                broker, every = [local.node("broker-a").pid or 0], [*servers, client.pid]
                before = cpu_seconds(broker), cpu_seconds(every)
                found = turn.measured(row, seconds)
                share = (cpu_seconds(broker) - before[0]) / (cpu_seconds(every) - before[1])
                for (_, unit), value in found.items():
                    yield name + suffixes[unit], value
                if row.name == EACH:
                    yield f"{BROKER}, {mode}", share * found[row.name, CPU]
                    if sync:
                        yield from alone.measure(folder)
            if not sync:
                yield CONNECTIONS, _connections(local, seconds)


def _connections(local: LocalCluster, seconds: float) -> float:
    """How much longer the slowest hundredth of sends takes when many await theirs."""
    given = [",".join(local.nameservers), "single", str(COUNT), str(2 * seconds)]
    command = [sys.executable, "-m", "bench.goals.connections", *given]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    alone, together = map(float, said.split())
    return together / alone


@contextmanager
def _running(folder: Path, *, sync: bool) -> Iterator[tuple[LocalCluster, ClientProgram]]:
    """A cluster, and a client in a process of its own."""
    broker = {"flush": "sync" if sync else "async", "commit_log_file_bytes": "1GiB"}
    settings = {"broker": broker}
    command = python_client("Rockoon", sys.executable, "rockoon_client")
    with LocalCluster(folder, brokers=1, settings=settings) as local:
        client = ClientProgram(command.command, folder / "client.log", command.environment)
        try:
            yield local, client
        finally:
            client.stop()
