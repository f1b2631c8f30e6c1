"""Instructions per message, counted by Valgrind; other work on the machine does not change them.

Run: `make bench-instructions`; it needs `valgrind`. Scenarios: a producer awaits each send; the
same with a listening consumer; batches of three messages for a hundred topics. Scenario `layers`
has no broker: it compares HTTP/2 layers (`bench/instructions.py`). Counted are
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
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import uvloop

import rockoon
from bench.compare.programs import (
    ROOT,
    ClientProgram,
    MeasureFailed,
    NotHere,
    Program,
    ProgramFailed,
)
from bench.layers import echo, frames
from bench.layers.frames import RawClient
from bench.layers.servers import Layer, layers
from bench.loops import BODY, make_topic
from bench.tables import Figures, told
from bench.usage import RunNotes
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock

WARM_UP = 300
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes", "-q")
Doing = Callable[[int], Awaitable[object]]
"""Type of a function that repeats an operation; the argument is the number of repetitions."""


def control(option: str, *, pid: int, argument: str = "") -> None:
    command = ["callgrind_control", option, *([argument] if argument else []), str(pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def totals(part: Path) -> tuple[int, int]:
    """Return the number of instructions and of instruction cache misses in a callgrind dump."""
    for line in part.read_text().splitlines():
        if line.startswith("totals: "):
            instructions, _, _, misses, *_ = map(int, line.split()[1:])
            return instructions, misses
    raise ValueError(f"no totals in {part}")


async def counted(doing: Doing, count: int, pid: int, out: Path, first: int = 1) -> tuple[int, int]:
    """Count instructions and cache misses of one operation.

    The counts of an idle period of the same length are subtracted.

    Args:
        count: number of counted repetitions.
        pid: the process, under callgrind.
        out: file name of its dumps, without their numbers.
        first: number of the next dump.
    """
    await doing(WARM_UP)
    control("-i", pid=pid, argument="on")
    # Not counted: Valgrind translates code at its first execution.
    await doing(count // 10)
    control("-z", pid=pid)
    began = time.perf_counter()
    await doing(count)
    control("-d", pid=pid)
    await asyncio.sleep(time.perf_counter() - began)
    control("-d", pid=pid)
    control("-i", pid=pid, argument="off")
    busy, idle = (totals(out.with_name(f"{out.name}.{first + number}")) for number in (0, 1))
    return (busy[0] - idle[0]) // count, (busy[1] - idle[1]) // count


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
        topic = await make_topic(cluster, "single", 1)
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
            topics = [await make_topic(cluster, f"topic-{number}", 1) for number in range(TOPICS)]

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

CALLS, MESSAGES = 500, 2_500
ANSWER_SECONDS_MAX = 600.0
INSTRUCTIONS, MISSES = "instructions", "cache misses"
UNARY, BURST = "a unary call of 100 B, one at a time", "a message of a stream, in a burst"

FAILURES = (
    NotHere,
    MeasureFailed,
    ProgramFailed,
    OSError,
    ValueError,
    subprocess.CalledProcessError,
)


async def instructions_of_layers(folder: Path) -> str:
    """Return a table of the counts, followed by the measures that failed. Raises NotHere: the clone
    does not have the former commit."""
    found, notes = layers(), RunNotes(FAILURES)
    figures = Figures([each.column for each in found.values()])
    ports = PortBlock()
    try:
        for layer in found.values():
            with notes.noted(f"{layer.column}, server"):
                await _server(layer, folder, ports.choose(), figures)
            with notes.noted(f"{layer.column}, client"):
                await _client(layer, folder, ports.choose(), figures)
    finally:
        ports.close()
    return "\n\n".join([figures.table(), *notes.missing()])


async def _server(layer: Layer, folder: Path, port: int, figures: Figures) -> None:
    out = folder / f"server-{layer.name}"
    program = layer.started(folder, port, [*VALGRIND, f"--callgrind-out-file={out}"])
    client = RawClient(port)
    try:

        async def calls(count: int) -> None:
            for _ in range(count):
                frames.call_each([client])

        async def messages(count: int) -> None:
            whole = max(count // frames.WRITE_MESSAGES, 1) * frames.WRITE_MESSAGES
            frames.burst(port, echo.STREAM, in_full_frames=True, messages=whole)

        works = {UNARY: (calls, CALLS), BURST: (messages, MESSAGES)}
        await _counted("server: {}", works, layer, program.pid, out, figures)
    finally:
        client.close()
        program.stop()


async def _client(layer: Layer, folder: Path, port: int, figures: Figures) -> None:
    out = folder / f"client-{layer.name}"
    command = [sys.executable, "-m", "bench.layers.raw_server", port]
    with ExitStack() as stack:
        server = Program("raw server", command, folder / "raw.log", {"PYTHONPATH": str(ROOT)})
        stack.callback(server.stop)
        server.wait_listening(port)
        command = [*VALGRIND, f"--callgrind-out-file={out}", *layer.client(f"127.0.0.1:{port}")]
        client = ClientProgram(command, folder / f"{out.name}.log", layer.environment)
        stack.callback(client.stop)

        async def ask(do: str, count: int) -> None:
            await asyncio.to_thread(client.ask, do, ANSWER_SECONDS_MAX, seconds=0, count=count)

        works = {UNARY: (partial(ask, "unary"), CALLS), BURST: (partial(ask, "burst"), MESSAGES)}
        await _counted("client: {}", works, layer, client.pid, out, figures)


async def _counted(
    name: str,
    works: Mapping[str, tuple[Callable[[int], Awaitable[None]], int]],
    layer: Layer,
    pid: int,
    out: Path,
    figures: Figures,
) -> None:
    for number, (what, (doing, count)) in enumerate(works.items()):
        measure = name.format(what)
        told(f"{layer.column}, {measure}")
        found = await counted(doing, count, pid, out, 1 + 2 * number)
        figures.add(layer.column, measure, dict(zip((INSTRUCTIONS, MISSES), found, strict=True)))
