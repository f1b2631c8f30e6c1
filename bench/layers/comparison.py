"""Comparison of gRPC layers: each as a server, then each as a client, in turns, with goals.

Only the CPU time of the process with the layer is measured. Its peer is the same for all layers.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.compare.programs import (
    ROOT,
    ClientProgram,
    Interrupts,
    MeasureFailed,
    NotHere,
    Program,
    ProgramFailed,
    run,
)
from bench.gateway import h2load
from bench.layers import echo, frames
from bench.layers.servers import Layer, go_layer, go_version, layers
from bench.tables import CALL_CPU, CALLS, MESSAGE_CPU, Figures, Goal, markdown, p50_p99, shown
from bench.usage import RunNotes, cpu_seconds, own_bytes, wait_rest
from rockoon.local.directory import PortBlock

CONNECTIONS, LONG_CONNECTIONS, IDLE_CONNECTIONS = 50, 4, 1000
AT_ONCE = 10
WARM_CALLS, LONG_WARM_CALLS = 5_000, 50
ANSWER_SECONDS_MAX = 120.0
IDLE_KIB = "KiB a connection"
GO = "grpc-go"
UNARY = f"unary echo of 100 B, {CONNECTIONS} connections"
ONE, TEN = f"{UNARY}, one call at a time", f"{UNARY}, {AT_ONCE} calls at a time"
BURST = "stream echo, 100,000 messages of 100 B in a burst"
BURST_FULL, BURST_EACH = f"{BURST}, full frames", f"{BURST}, a frame a message"
BURST_IN = "stream of requests, the same burst, full frames"
ONE_BY_ONE = "stream echo of 100 B, one by one"
LONG_IN, LONG_OUT = "1 MiB in", "1 MiB out"
IDLE, IDLE_CALLED = "idle connection, no call yet", "idle connection, after a call"
CHANNEL_ONE, CHANNEL_TEN = "unary call of 100 B, one at a time", f"unary call, {AT_ONCE} at a time"
CHANNEL_BURST, CHANNEL_ONE_BY_ONE = "stream, 20,000 messages in a burst", "stream, one by one"
CHANNEL_TURNS: Mapping[str, tuple[str, Mapping[str, int], str]] = {
    CHANNEL_ONE: ("unary", {"tasks": 1}, CALL_CPU),
    CHANNEL_TEN: ("unary", {"tasks": AT_ONCE}, CALL_CPU),
    CHANNEL_BURST: ("burst", {}, MESSAGE_CPU),
    CHANNEL_ONE_BY_ONE: ("one_by_one", {}, MESSAGE_CPU),
}
TIMES_FORMER = "times the former layer's"
SERVER_GOALS = (
    Goal(TEN, 12, CALL_CPU),
    Goal(BURST_FULL, 2, MESSAGE_CPU),
    Goal(BURST_EACH, 2, MESSAGE_CPU),
    Goal(LONG_IN, 1.1, TIMES_FORMER),
    Goal(LONG_OUT, 1.1, TIMES_FORMER),
    Goal(IDLE, 24, IDLE_KIB),
    Goal(IDLE_CALLED, 24, IDLE_KIB),
)
CHANNEL_GOALS = (Goal(CHANNEL_TEN, 12, CALL_CPU), Goal(CHANNEL_BURST, 2, MESSAGE_CPU))
FAILURES = (MeasureFailed, ProgramFailed, NotHere, OSError)


class LayerComparison:
    """One run of the comparison; see the module.

    Attributes:
        servers, channels: figures of the layers as servers, and as clients.
        versions: versions of programs and libraries, by name.

    Args:
        folder: directory for log files.
        rounds: number of turns of each layer.
        seconds: approximate duration of a turn.
        interrupts: signals, deferred while programs are stopped.
    """

    def __init__(self, folder: Path, rounds: int, seconds: float, interrupts: Interrupts) -> None:
        self._folder = folder
        self._rounds = rounds
        self._seconds = seconds
        self._interrupts = interrupts
        self._ports = PortBlock()
        self._notes = RunNotes(FAILURES)
        # The echo servers that run.
        self._running: dict[str, tuple[Program, int]] = {}
        self.versions: dict[str, str] = {}

    def prepare(self) -> None:
        """Extract and compile the layers. Raises NotHere: there is no h2load, or the former layer
        is not in this clone."""
        self.versions["h2load"] = run([h2load.PROGRAM, "--version"]).split("/")[-1].strip()
        self.versions["grpcio"] = version("grpcio")
        found = layers()
        with self._notes.noted(GO):
            found["go"] = go_layer()
            self.versions[GO] = go_version()
        self.compare(found)

    def compare(self, found: Mapping[str, Layer]) -> None:
        """Compare layers, given by name; `own` and `former` must be among them."""
        self._layers = dict(found)
        columns = [each.column for each in found.values()]
        # A missing grpc-go has a column of dashes.
        self.servers = Figures(list(dict.fromkeys([*columns, GO])))
        self.channels = Figures([column for column in columns if column != GO])

    def run(self) -> None:
        with self._notes.measured("layers as servers"):
            self._measure_servers()
        with self._notes.measured("idle connections"):
            self._in_turns(IDLE, self._idle)
        with self._notes.measured("layers as clients"):
            self._measure_channels()

    def close(self) -> None:
        """Release the reserved ports. Each part stops its own programs."""
        self._ports.close()

    def text(self) -> str:
        """Return the tables, and whether the goals are met, as text for the page."""
        parts = [self._notes.machine_table(), "As servers:", self.servers.table()]
        parts += ["As clients:", self.channels.table(), self._goals()]
        return "\n\n".join([*parts, *self._notes.missing()])

    def _goals(self) -> str:
        own, former = self._layers["own"].column, self._layers["former"].column
        rows = []
        for side, figures, goals in (
            ("server", self.servers, SERVER_GOALS),
            ("client", self.channels, CHANNEL_GOALS),
        ):
            for goal in goals:
                unit = CALL_CPU if goal.unit == TIMES_FORMER else goal.unit
                values = figures.values.get((goal.measure, unit), {})
                found = values.get(own, [])
                if goal.unit == TIMES_FORMER:
                    beside = values.get(former, [])
                    is_whole = len(beside) == len(found)
                    found = [a / b for a, b in zip(found, beside, strict=True)] if is_whole else []
                cells = ["not measured", ""]
                if found:
                    median = statistics.median(found)
                    cells = [shown(median), goal.verdict(median)]
                rows.append((f"{side}: {goal.measure}", goal.told(), *cells))
        return markdown(("goal of this checkout", "bound", "median of the rounds", "held"), rows)

    def _in_turns(
        self, what: str, turn: Callable[[Layer], None], among: Sequence[Layer] = ()
    ) -> None:
        """Run one turn of each given layer per round; each round starts with another layer."""
        every = list(among or self._layers.values())
        for number in range(self._rounds):
            first = number % len(every)
            for layer in every[first:] + every[:first]:
                with self._notes.noted(f"{layer.column}: {what}"):
                    turn(layer)

    @contextmanager
    def _started(self, layer: Layer) -> Iterator[tuple[Program, int]]:
        """Context manager that runs the echo server of a layer; yields the program and its port."""
        port = self._ports.choose()
        program = layer.started(self._folder, port)
        try:
            yield program, port
        finally:
            with self._interrupts.held():
                program.stop()

    # Servers.

    def _measure_servers(self) -> None:
        with ExitStack() as stack:
            for layer in list(self._layers.values()):
                with self._notes.noted(layer.column):
                    running = stack.enter_context(self._started(layer))
                    frames.check(running[1])
                    self._running[layer.name] = running
            for measure, at_once in ((ONE, 1), (TEN, AT_ONCE)):
                self._calls(measure, echo.ECHO, bytes(100), CONNECTIONS, at_once)
            for measure, path, in_full_frames in (
                (BURST_FULL, echo.STREAM, True),
                (BURST_EACH, echo.STREAM, False),
                (BURST_IN, echo.COUNT, True),
            ):
                work = partial(self._bursts, path, in_full_frames=in_full_frames)
                self._in_turns(measure, partial(self._messages, measure, work))
            work = partial(frames.one_by_one, seconds=self._seconds)
            self._in_turns(ONE_BY_ONE, partial(self._messages, ONE_BY_ONE, work))
            self._calls(LONG_IN, echo.IN, echo.LONG, LONG_CONNECTIONS)
            self._calls(LONG_OUT, echo.OUT, b"", LONG_CONNECTIONS)
        self._running.clear()

    def _server(self, layer: Layer) -> tuple[Program, int]:
        """Start the server of a layer. Raises MeasureFailed if the server does not run."""
        found = self._running.get(layer.name)
        if found is None:
            raise MeasureFailed("its server does not run")
        return found

    def _calls(
        self, measure: str, path: str, request: bytes, connections: int, at_once: int = 1
    ) -> None:
        """Measure unary calls with h2load; the first turn determines the number of calls per
        turn."""
        rates = dict[str, float]()

        def turn(layer: Layer) -> None:
            program, port = self._server(layer)

            def loaded(calls: int) -> h2load.Load:
                calls = max(calls // connections, 1) * connections
                address = f"127.0.0.1:{port}"
                return h2load.load(
                    address, path, request, {}, calls, connections, self._folder, at_once
                )

            if layer.name not in rates:
                warm = loaded(LONG_WARM_CALLS if connections == LONG_CONNECTIONS else WARM_CALLS)
                rates[layer.name] = warm.calls / warm.seconds
            before = self._rested(program)
            done = loaded(int(rates[layer.name] * self._seconds))
            spent = self._rested(program) - before
            rates[layer.name] = done.calls / done.seconds
            found = {CALLS: done.calls / done.seconds, CALL_CPU: spent / done.calls * 1e6}
            if at_once == 1 and connections == CONNECTIONS:
                found |= p50_p99(done.waits)
            self.servers.add(layer.column, measure, found)

        self._in_turns(measure, turn)

    def _messages(self, measure: str, work: Callable[[int], int], layer: Layer) -> None:
        """Measure the CPU cost per message of a layer's server; `work` sends messages to a port."""
        program, port = self._server(layer)
        before = self._rested(program)
        count = work(port)
        spent = self._rested(program) - before
        self.servers.add(layer.column, measure, {MESSAGE_CPU: spent / count * 1e6})

    def _bursts(self, path: str, port: int, *, in_full_frames: bool) -> int:
        end, count = time.perf_counter() + self._seconds, 0
        while not count or time.perf_counter() < end:
            count += frames.burst(port, path, in_full_frames=in_full_frames)
        return count

    @staticmethod
    def _rested(program: Program) -> float:
        """Return the CPU seconds of a server once it is idle."""
        wait_rest([program.pid])
        return cpu_seconds([program.pid])

    def _idle(self, layer: Layer) -> None:
        """Measure the memory of connections on a new server, because freed memory of earlier calls
        would hide it."""
        with self._started(layer) as (program, port):
            with frames.connected(port, CONNECTIONS) as clients:
                frames.call_each(clients)
            wait_rest([program.pid])
            before = own_bytes([program.pid])
            with frames.connected(port, IDLE_CONNECTIONS) as clients:
                for measure in (IDLE, IDLE_CALLED):
                    if measure == IDLE_CALLED:
                        frames.call_each(clients)
                    wait_rest([program.pid])
                    grown = own_bytes([program.pid]) - before
                    found = {IDLE_KIB: grown / IDLE_CONNECTIONS / 1024}
                    self.servers.add(layer.column, measure, found)

    # Clients.

    def _clients(self) -> list[Layer]:
        """Return the layers that are measured as clients."""
        return [each for each in self._layers.values() if each.name != "go"]

    def _measure_channels(self) -> None:
        port = self._ports.choose()
        command = [sys.executable, "-m", "bench.layers.raw_server", port]
        paths = {"PYTHONPATH": str(ROOT)}
        server = Program("raw server", command, self._folder / "raw-server.log", paths)
        with ExitStack() as stack:
            stack.callback(self._stop, server)
            server.wait_listening(port)
            clients = dict[str, ClientProgram]()
            for layer in self._clients():
                log = self._folder / f"client-{layer.name}.log"
                command = layer.client(f"127.0.0.1:{port}")
                clients[layer.name] = ClientProgram(command, log, layer.environment)
                stack.callback(self._stop, clients[layer.name])
            for measure in CHANNEL_TURNS:
                work = partial(self._channel, measure, clients)
                self._in_turns(measure, work, self._clients())

    def _channel(self, measure: str, clients: Mapping[str, ClientProgram], layer: Layer) -> None:
        do, given, unit = CHANNEL_TURNS[measure]
        if layer.column not in self.channels.values.get((measure, unit), {}):
            clients[layer.name].ask(do, ANSWER_SECONDS_MAX, seconds=self._seconds / 4, **given)
        done = clients[layer.name].ask(do, ANSWER_SECONDS_MAX, seconds=self._seconds, **given)
        found = {unit: done["cpu"] / done["count"] * 1e6}
        self.channels.add(layer.column, measure, found)

    def _stop(self, program: Program | ClientProgram) -> None:
        with self._interrupts.held():
            program.stop()
