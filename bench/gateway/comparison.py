"""A run: what is started, in which order it is asked what, and what is noted."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvloop
from grpc import aio

from bench.compare.__main__ import told, used_cpu_seconds
from bench.compare.fetching import ROOT, NotHere, run
from bench.compare.figures import MIB, RATE, SECONDS, Round
from bench.compare.page import brief
from bench.compare.programs import (
    Interrupts,
    MeasureFailed,
    Program,
    ProgramFailed,
    own_bytes,
    wait_rest,
)
from bench.gateway import echo, h2load
from bench.gateway.clients import BODY, Done, connected, modest, receive, stored_first, used
from bench.gateway.figures import (
    CALL_CPU,
    CALLS,
    CLIENT_CPU,
    CLIENT_KIB,
    CORES,
    MESSAGE_CPU,
    Figures,
    p50_p99,
)
from bench.gateway.servers import GatewaySide, Side
from gateway.wire_client import message, producer_settings
from rockoon.local.ports import PortBlock
from rockoon.local.process import LocalClusterError
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
HEADERS = {"x-mq-client-id": "h2load@1@0@bench", "x-mq-language": "JAVA", "x-mq-protocol": "v2"}
CONNECTIONS = 50
CLIENTS, CLIENTS_RATE = 1000, 1000.0
# Messages at a time; how many times as long the unmeasured turn is; a rate that is not reached.
RECEIVES = ((1, 3.0, 5_000), (32, 1.0, 50_000))
CLIENTS_TIMES = 3.0
FILL_MESSAGES = 32
# More than a turn reads at the rate of the one before.
FILL_SPARE = 6.0
FLOOR_WARM_CALLS = SECOND_WARM_CALLS = 5_000
IDLE_SECONDS = 20.0
STORED_SECONDS_MAX = 20.0
LOOK_SECONDS = 0.05
OWN, GRPC = "Rockoon's HTTP/2", "grpc.aio, uvloop"
SENT, READ = "sent", "read"
PARTS = ("floors", "sends", "receive", "processes", "clients", "still")
PARTS_WITH_SYNC = ("sends",)
ECHO = f"echo of 100 B, {CONNECTIONS} connections"
FAILURES = (MeasureFailed, ProgramFailed, LocalClusterError, NotHere, aio.AioRpcError)


def mode(sync: bool) -> str:
    return "flush = sync" if sync else "flush = async"


def request(topic: str, messages: int) -> bytes:
    """A send of some messages with bodies of 100 bytes."""
    each = [message(topic, BODY, f"{number:032}") for number in range(messages)]
    return pb.SendMessageRequest(messages=each).SerializeToString()


class Comparison:
    """A run.

    Args:
        sides: what is compared.
        folder: for stores and logs; on the disk that is to be measured.
        rounds: turns that each has.
        seconds: how long a rate is measured.
        warm_calls: unmeasured ones before the first measure.
        interrupts: that wait while something is stopped.
    """

    def __init__(
        self,
        sides: Sequence[Side],
        folder: Path,
        rounds: int,
        seconds: float,
        warm_calls: int,
        interrupts: Interrupts,
    ) -> None:
        self._folder = folder
        self._rounds = rounds
        self._seconds = seconds
        self._warm_calls = warm_calls
        self._interrupts = interrupts
        self._sides = list(sides)
        # Of those that run: rates of sends; by topic, those of receives, and what is unread.
        self._running: list[Side] = []
        self._rates: dict[str, float] = {}
        self._reads: dict[tuple[str, str], float] = {}
        self._unread: dict[tuple[str, str], int] = {}
        self._circumstances: dict[str, Round] = {}
        self.versions: dict[str, str] = {}
        self._missing: dict[str, str] = {}
        self._figures = Figures([side.name for side in self._sides])
        self._floors = Figures([OWN, GRPC])

    def prepare(self) -> None:
        """Leave out what cannot be had. Raises NotHere: there is no h2load."""
        self.versions["h2load"] = run([h2load.PROGRAM, "--version"]).split("/")[-1].strip()
        for side in list(self._sides):
            with self._noted(side.name):
                self.versions |= side.prepare()
                continue
            self._sides.remove(side)

    def run(self, parts: Sequence[str]) -> None:
        """Each part that is asked for."""
        if "floors" in parts:
            with self._measured_machine("floors"):
                self._measure_floors()
        for sync, known in ((True, PARTS_WITH_SYNC), (False, PARTS[1:])):
            chosen = [name for name in known if name in parts]
            if chosen:
                with self._measured_machine(mode(sync)):
                    self._pair(chosen, sync=sync)

    def text(self) -> str:
        """What was found, as the page has it."""
        lines = ["| part | load before | cores that others used | seconds |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {each.load:.1f} | {each.others_cores:.1f} | {each.seconds:.0f} |"
            for name, each in self._circumstances.items()
        ]
        told_parts = ["\n".join(lines)]
        told_parts += [each.table() for each in (self._figures, self._floors) if each.values]
        if self._missing:
            lines = [f"- {name}: {brief(why)}" for name, why in self._missing.items()]
            told_parts += ["Not measured:", "\n".join(lines)]
        return "\n\n".join(told_parts)

    def close(self) -> None:
        """End whatever was started."""
        with self._interrupts.held():
            for side in self._sides:
                side.stop()

    @contextmanager
    def _measured_machine(self, name: str) -> Iterator[None]:
        """Load and other programs' CPU, of all that is started and ended in this block."""
        load, began, before = os.getloadavg()[0], time.monotonic(), used_cpu_seconds()
        yield
        now, seconds = used_cpu_seconds(), time.monotonic() - began
        others = max(now[0] - before[0] - (now[1] - before[1]), 0.0) / seconds
        self._circumstances[name] = Round(load, others, seconds)

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """What fails in this block has no figures, and is told."""
        try:
            yield
        except FAILURES as failure:
            reason = " ".join(str(failure).split())
            self._missing[name] = reason
            told(f"  not measured: {name}: {reason}")

    # What runs.

    def _pair(self, parts: Sequence[str], *, sync: bool) -> None:
        """Start both, warm both, and measure."""
        told(mode(sync))
        measures: dict[str, Callable[[str], None]] = {
            "sends": self._measure_sends,
            "receive": self._measure_receives,
            "processes": self._measure_processes,
            "clients": self._measure_clients,
            "still": self._measure_rest,
        }
        try:
            for side in self._sides:
                with self._noted(f"{side.name}, {mode(sync)}"):
                    self._start(side, sync=sync)
            for part in parts:
                told(part)
                measures[part](mode(sync))
        finally:
            with self._interrupts.held():
                self._running.clear()
                self._unread.clear()
                self._reads.clear()
                for side in self._sides:
                    side.stop()

    def _start(self, side: Side, *, sync: bool) -> None:
        """Start it, and make the calls that are not measured."""
        folder, began = self._folder / f"{side.name.split()[-1]}-{mode(sync)[8:]}", time.monotonic()
        side.start(folder, sync=sync)
        side.make_topic(SENT)
        uvloop.run(stored_first(side.endpoint, SENT))
        seconds = time.monotonic() - began
        self._figures.add(side.name, "from the command to the first send", {SECONDS: seconds})
        done = self._load(side, self._warm_calls)
        self._rates[side.name] = done.calls / done.seconds
        self._running.append(side)

    def _in_turns(self, what: str, turn: Callable[[Side], None]) -> None:
        """A turn of each in each round; another begins each time."""
        for number in range(self._rounds):
            first = number % max(len(self._running), 1)
            for side in self._running[first:] + self._running[:first]:
                with self._noted(f"{side.name}: {what}"):
                    turn(side)

    # Sends.

    def _load(self, side: Side, calls: int, topic: str = SENT, messages: int = 1) -> h2load.Load:
        """Sends, all of which have to be stored afterwards."""
        calls = max(calls // CONNECTIONS, 1) * CONNECTIONS
        before = side.stored(topic)
        done = h2load.load(
            side.endpoint, SEND, request(topic, messages), HEADERS, calls, CONNECTIONS, self._folder
        )
        # RocketMQ's queues are written behind the log.
        deadline = time.monotonic() + STORED_SECONDS_MAX
        while (stored := side.stored(topic) - before) != calls * messages:
            if time.monotonic() > deadline:
                raise MeasureFailed(f"{stored} messages of {calls * messages} are stored")
            time.sleep(LOOK_SECONDS)
        return done

    def _measure_sends(self, how: str) -> None:
        measure = f"send 100 B, {CONNECTIONS} connections, {how}"
        self._in_turns(measure, lambda side: self._measure_load(side, measure))

    def _measure_load(self, side: Side, measure: str) -> None:
        wait_rest([*side.processes().values()])
        before = used(side.processes())
        done = self._load(side, int(self._rates[side.name] * self._seconds))
        spent = {name: now - before[name] for name, now in used(side.processes()).items()}
        self._rates[side.name] = done.calls / done.seconds
        rate = {CALLS: done.calls / done.seconds, **p50_p99(done.waits)}
        self._figures.add(side.name, measure, rate)
        self._figures.add_sum(side.name, measure, CALL_CPU, each(spent, done.calls))

    def _measure_floors(self) -> None:
        """Servers that answer with the request, in turns."""
        ports, servers = PortBlock(), dict[str, tuple[Program, str]]()
        rates = dict[str, float]()
        try:
            for name, kind in ((OWN, "own"), (GRPC, "grpc")):
                port = ports.choose()
                command = [sys.executable, "-m", "bench.gateway.echo", kind, port]
                paths = {"PYTHONPATH": str(ROOT)}
                program = Program(name, command, self._folder / f"{kind}.log", paths)
                servers[name] = program, f"127.0.0.1:{port}"
                program.wait_listening(port)
            for number in range(1 + self._rounds):
                for name, (program, endpoint) in servers.items():
                    calls = int(rates[name] * self._seconds) if number else FLOOR_WARM_CALLS
                    before = used({name: program.pid})[name]
                    done = h2load.load(
                        endpoint, echo.METHOD, bytes(100), {}, calls, CONNECTIONS, self._folder
                    )
                    spent = used({name: program.pid})[name] - before
                    rates[name] = done.calls / done.seconds
                    if number:
                        found = {CALLS: rates[name], **p50_p99(done.waits)}
                        self._floors.add(name, ECHO, {**found, CALL_CPU: spent / done.calls * 1e6})
        finally:
            with self._interrupts.held():
                for program, _ in servers.values():
                    program.stop()
                ports.close()

    # Receives.

    def _measure_receives(self, _how: str) -> None:
        for batch, warm_times, rate_max in RECEIVES:
            noun = "one message" if batch == 1 else f"up to {batch} messages"
            measure = f"receive {noun} and acknowledge, {CONNECTIONS} connections"
            topic = f"{READ}-{batch}"
            for side in self._running:
                with self._noted(f"{side.name}: {measure}, warm-up"):
                    side.make_topic(topic)
                    side.make_group(topic)
                    uvloop.run(stored_first(side.endpoint, topic))
                    seconds = warm_times * self._seconds
                    self._fill(side, topic, int(rate_max * seconds))
                    self._receive(side, topic, batch, seconds)
            self._in_turns(measure, partial(self._measure_receive, measure, topic, batch))

    def _measure_receive(self, measure: str, topic: str, batch: int, side: Side) -> None:
        if (topic, side.name) not in self._reads:
            return
        self._fill(side, topic, int(self._reads[topic, side.name] * self._seconds * FILL_SPARE))
        done = self._receive(side, topic, batch, self._seconds)
        if self._unread[topic, side.name] <= 0:
            raise MeasureFailed("everything was read before the time was over")
        self._add_done(side, measure, done, RATE, MESSAGE_CPU)
        own = {CLIENT_CPU: done.own_seconds / done.count * 1e6}
        self._figures.add(side.name, measure, own)

    def _fill(self, side: Side, topic: str, messages: int) -> None:
        """Have at least so many to be read."""
        left = self._unread.setdefault((topic, side.name), 0)
        calls = max(messages - left, 0) // FILL_MESSAGES // CONNECTIONS * CONNECTIONS
        if calls:
            self._load(side, calls, topic, FILL_MESSAGES)
            self._unread[topic, side.name] += calls * FILL_MESSAGES
        wait_rest([*side.processes().values()])

    def _receive(self, side: Side, topic: str, batch: int, seconds: float) -> Done:
        done = uvloop.run(
            receive(side.endpoint, topic, batch, CONNECTIONS, seconds, side.processes())
        )
        self._unread[topic, side.name] -= done.count + done.before
        self._reads[topic, side.name] = done.count / done.seconds
        return done

    def _add_done(self, side: Side, measure: str, done: Done, rate: str, cpu: str) -> None:
        found = {rate: done.count / done.seconds, **p50_p99(done.waits)}
        self._figures.add(side.name, measure, found)
        self._figures.add_sum(side.name, measure, cpu, each(done.used, done.count))

    # Others.

    def _measure_processes(self, _how: str) -> None:
        """The gateway alone, and with a second one on its port."""
        self._in_turns("several gateways", self._measure_second)

    def _measure_second(self, side: Side) -> None:
        if not isinstance(side, GatewaySide):
            return
        self._measure_load(side, f"send, one gateway, {CONNECTIONS} connections")
        alone = self._rates[side.name]
        side.start_second(self._folder)
        try:
            self._load(side, SECOND_WARM_CALLS)
            self._measure_load(side, f"send, two on one port, {CONNECTIONS} connections")
        finally:
            side.stop_second()
            self._rates[side.name] = alone

    def _measure_clients(self, _how: str) -> None:
        measure = f"{CLIENTS:,} clients, {CLIENTS_RATE:,.0f} sends/s in all"

        async def clients_at_work(side: Side) -> None:
            pids, before = [*side.processes().values()], own_bytes(side.processes().values())
            settings = producer_settings(SENT)
            async with connected(side.endpoint, CLIENTS, settings) as clients:
                await modest(clients, SENT, CLIENTS_RATE, self._seconds, side.processes())
                seconds = CLIENTS_TIMES * self._seconds
                done = await modest(clients, SENT, CLIENTS_RATE, seconds, side.processes())
                grown = own_bytes(pids) - before
            self._add_done(side, measure, done, CALLS, CALL_CPU)
            own = {CLIENT_CPU: done.own_seconds / done.count * 1e6}
            self._figures.add(side.name, measure, {**own, CLIENT_KIB: grown / CLIENTS / 1024})

        for side in self._running:
            with self._noted(f"{side.name}: {measure}"):
                uvloop.run(clients_at_work(side))

    def _measure_rest(self, _how: str) -> None:
        """Memory after all that, and what both take that do nothing, at the same time."""
        for side in self._running:
            wait_rest([*side.processes().values()])
        before = {side.name: used(side.processes()) for side in self._running}
        time.sleep(IDLE_SECONDS)
        for side in self._running:
            now, then = used(side.processes()), before[side.name]
            idle = {name: (now[name] - then[name]) / IDLE_SECONDS * 100 for name in then}
            self._figures.add_sum(side.name, "at rest after that", CORES, idle)
            held = {name: own_bytes([pid]) / (1 << 20) for name, pid in side.processes().items()}
            self._figures.add_sum(side.name, "memory after that", MIB, held)


def each(spent: Mapping[str, float], count: int) -> dict[str, float]:
    """Microseconds of each process for one."""
    return {name: seconds / count * 1e6 for name, seconds in spent.items()}
