"""Instructions per message, counted by Valgrind; other work on the machine does not change them.

Run: `make bench-instructions`; it needs `valgrind`. Scenarios: a producer awaits each send; the
same with a listening consumer; batches of three messages for a hundred topics. Scenario `layers`
has no broker: it compares HTTP/2 layers (`bench/layers/instructions.py`). Counted are
user-space instructions of the broker or the client, without those of an idle process, and misses of
the first-level instruction cache; a miss costs as much as ten instructions. Two runs of one tree
differ by 1 to 2 %. System calls, locks and waits are not included.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

import rockoon
from bench.callgrind import VALGRIND, counted
from bench.compare.fetching import NotHere
from bench.layers.instructions import instructions_of_layers
from bench.single import BODY, made
from rockoon.local import LocalCluster

SIDES = ("broker", "client")
SCENARIOS = ("awaited", "listener", "topics")
LAYERS = "layers"
MESSAGES = 500
TOPICS = 100
OF_A_TOPIC = 3
# Replaces Python while nodes are started, so that only the broker runs under Valgrind.
WRAPPER = """#!/bin/sh
case "$*" in *rockoon_broker*) exec {valgrind} {python} "$@";; *) exec {python} "$@";; esac
"""


async def measure(folder: Path, side: str, scenario: str, flush: str, out: Path) -> None:
    settings = {"broker": {"flush": flush, "commit_log_file_bytes": "64MiB"}}
    async with (
        LocalCluster(folder / "cluster", brokers=1, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.producer() as producer,
    ):
        broker = local.node(local.brokers[0]).pid
        assert broker is not None
        pid = os.getpid() if side == "client" else broker
        topic = await made(cluster, "single", 1)
        handled = asyncio.Event()

        async def handle(_: rockoon.Message) -> None:
            handled.set()

        async def awaited(count: int) -> None:
            for _ in range(count):
                await producer.send(topic, BODY)

        async def listener(count: int) -> None:
            for _ in range(count):
                handled.clear()
                await producer.send(topic, BODY)
                await handled.wait()

        if scenario == "awaited":
            found = await counted(awaited, MESSAGES, pid, out)
        elif scenario == "listener":
            consumer = cluster.push_consumer("listener", {topic: "*"}, handle, consume_from="first")
            async with consumer:
                found = await counted(listener, MESSAGES, pid, out)
        else:
            topics = [await made(cluster, f"topic-{number}", 1) for number in range(TOPICS)]

            async def batches(count: int) -> None:
                for _ in range(max(count // TOPICS, 1)):
                    for each in topics:
                        for _ in range(OF_A_TOPIC):
                            producer.send(each, BODY)
                    await producer.flush()

            found = await counted(batches, 10 * TOPICS, pid, out)
        print(f"{scenario:10}{flush:8}{side:8}{found[0]:13,}{found[1]:13,}", flush=True)


def run(side: str, scenario: str, flush: str, folder: Path) -> None:
    """Measure one row in a new process, which runs under Valgrind if the client is counted."""
    out = folder / "callgrind"
    command = [sys.executable, "-m", "bench.instructions", "--out", str(out), "--side", side]
    command += ["--only", scenario, "--flush", flush]
    valgrind = (*VALGRIND, f"--callgrind-out-file={out}")
    subprocess.run([*(valgrind if side == "client" else ()), *command], check=True)


def main() -> None:
    """Print a row for each scenario and side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=[*SCENARIOS, LAYERS], action="append", help="may be repeated"
    )
    parser.add_argument("--side", choices=SIDES, action="append")
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out is not None:
        ((side,), (scenario,)) = arguments.side, arguments.only
        folder = arguments.out.parent
        if side == "broker":
            wrapper = folder / "python"
            valgrind = " ".join((*VALGRIND, f"--callgrind-out-file={arguments.out}"))
            wrapper.write_text(WRAPPER.format(valgrind=valgrind, python=sys.executable))
            wrapper.chmod(0o755)
            sys.executable = str(wrapper)
        uvloop.run(measure(folder, side, scenario, arguments.flush, arguments.out))
        return
    if shutil.which("valgrind") is None:
        parser.exit(2, "valgrind is not installed\n")
    only = arguments.only or [*SCENARIOS, LAYERS]
    if scenarios := [name for name in only if name != LAYERS]:
        print("of a message, or of a batch (topics)  instructions  cache misses")
        for scenario in scenarios:
            for side in arguments.side or SIDES:
                with tempfile.TemporaryDirectory(prefix="rockoon-instructions-") as folder:
                    run(side, scenario, arguments.flush, Path(folder))
    if LAYERS in only:
        with tempfile.TemporaryDirectory(prefix="rockoon-instructions-") as folder:
            try:
                print(uvloop.run(instructions_of_layers(Path(folder))))
            except NotHere as failure:
                parser.exit(1, f"{failure}\n")


if __name__ == "__main__":
    main()
