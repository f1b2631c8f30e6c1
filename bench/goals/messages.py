"""Cost and latency of a message: the rows of `make compare` that have a goal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.compare.__main__ import Turn
from bench.compare.figures import CONNECTIONS, CPU, ONE_SEND, PACED, RATE, TASKS, TIMES, rows
from bench.compare.peer import python_client
from bench.compare.programs import ClientProgram
from bench.goals import alone
from bench.tables import P50, P99, Goal
from bench.usage import cpu_seconds
from rockoon.local import LocalCluster

EACH, LISTS = "produce 100 B, a call a message", "produce 100 B, lists"
LARGE = "produce 1 KiB, a call a message"
BROKER = "the broker's share of produce 100 B, with its index"
MANY = "1,000 connections that await their sends, p99 beside that of one"
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
            Goal(f"{ONE_SEND}, {mode}, CPU", 300, CPU),
            Goal(f"{ONE_SEND}, {mode}, p50", p50, "ms"),
            Goal(f"{ONE_SEND}, {mode}, p99", 1.5, "ms"),
            Goal(f"{TASKS}, {mode}", 60_000, RATE, is_floor=True),
            Goal(f"{PACED}, {mode}, CPU", 500, CPU),
            Goal(f"{PACED}, {mode}, p50", 0.5, "ms"),
            Goal(f"{PACED}, {mode}, p99", 2, "ms"),
        )
    ),
    Goal(MANY, 20, "times"),
)


def measure(folder: Path, seconds: float) -> Iterator[tuple[str, float]]:
    """Measure the rows of `make compare` without and with a sync before the acknowledgement."""
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
                if row.name == CONNECTIONS:
                    if not sync:
                        yield MANY, turn.measured(row, seconds)[CONNECTIONS, TIMES]
                    continue
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


@contextmanager
def _running(folder: Path, *, sync: bool) -> Iterator[tuple[LocalCluster, ClientProgram]]:
    """Start a cluster, and a client in another process."""
    broker = {"flush": "sync" if sync else "async", "commit_log_file_bytes": "1GiB"}
    command = python_client("Rockoon", sys.executable, "rockoon_client")
    with LocalCluster(folder, brokers=1, settings={"broker": broker}) as local:
        client = ClientProgram(command.command, folder / "client.log", command.environment)
        try:
            yield local, client
        finally:
            client.stop()
