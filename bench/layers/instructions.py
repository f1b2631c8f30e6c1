"""Instruction counts of calls and stream messages in each layer, as a server and as a client.

grpc-go is not counted: callgrind aborts when Go switches stacks.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.callgrind import VALGRIND, counted
from bench.compare.__main__ import told
from bench.compare.fetching import ROOT, NotHere
from bench.compare.programs import ClientProgram, MeasureFailed, Program, ProgramFailed
from bench.gateway.figures import Figures
from bench.layers import echo, streams
from bench.layers.frames import RawClient
from bench.layers.servers import Layer, layers
from bench.run_notes import RunNotes
from rockoon.local.ports import PortBlock

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
    """Return a table of the counts, followed by the measures that failed.

    Raises:
        NotHere: the clone does not have the former commit.
    """
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
                streams.call_each([client])

        async def messages(count: int) -> None:
            whole = max(count // streams.WRITE_MESSAGES, 1) * streams.WRITE_MESSAGES
            streams.burst(port, echo.STREAM, in_full_frames=True, messages=whole)

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
