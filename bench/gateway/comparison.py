"""Comparison of gateway and proxy: starts both servers, measures each part, collects the
figures."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import uvloop
from grpc import aio

from bench.compare.figures import MIB, RATE, SECONDS
from bench.compare.programs import Interrupts, MeasureFailed, NotHere, ProgramFailed, run
from bench.gateway import h2load
from bench.gateway.clients import (
    WARM_SHARE,
    Done,
    Turns,
    connected,
    measured_turns,
    modest,
    stored_first,
)
from bench.gateway.servers import SDK, GatewaySide, Side
from bench.loops import BODY
from bench.tables import (
    CALL_CPU,
    CALLS,
    CLIENT_CPU,
    CLIENT_KIB,
    CORES,
    MESSAGE_CPU,
    Figures,
    p50_p99,
    told,
)
from bench.usage import RunNotes, own_bytes, used, wait_rest
from gateway.wire_client import message, producer_settings
from rockoon.errors import RockoonError
from rockoon.local.process import LocalClusterError
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
HEADERS = {"x-mq-client-id": "h2load@1@0@bench", "x-mq-language": "JAVA", "x-mq-protocol": "v2"}
CONNECTIONS = 50
CLIENTS, CLIENTS_RATE = 1000, 1000.0
# Numbers of clients, and the length of the unmeasured turn of receivers in turns.
LEVELS = (1, 8, 64)
LEVEL_WARM_TIMES = 3.0
# Messages of one receive, and rates that receivers do not reach, messages/s.
SINGLE, BATCH = 1, 32
RATES_MAX = {SINGLE: 10_000, BATCH: 60_000}
CLIENTS_TIMES = 3.0
FILL_MESSAGES = 32
SECOND_WARM_CALLS = 5_000
IDLE_SECONDS = 20.0
STORED_SECONDS_MAX = 20.0
LOOK_SECONDS = 0.05
SENT = "sent"
PARTS = ("sends", "levels", "receive", "processes", "clients", "still")
PARTS_WITH_SYNC = ("sends",)
FAILURES = (
    MeasureFailed,
    ProgramFailed,
    LocalClusterError,
    NotHere,
    RockoonError,
    aio.AioRpcError,
)


def mode(sync: bool) -> str:
    return "flush = sync" if sync else "flush = async"


def request(topic: str, messages: int) -> bytes:
    """Return an encoded send request with messages of 100 bytes."""
    each = [message(topic, BODY, f"{number:032}") for number in range(messages)]
    return pb.SendMessageRequest(messages=each).SerializeToString()


def topic_of(column: str, batch: int) -> str:
    """Return the name of the topic, and of the group, for the receivers of a column."""
    return f"read-{batch}-{''.join(filter(str.isalnum, column))}"


class Comparison:
    """One run of the comparison of gateway and proxy ("sides").

    Args:
        folder: directory for stores and logs, on the disk to measure.
        rounds: number of turns of each server.
        seconds: duration of each rate.
        warm_calls: number of unmeasured calls before the first measure.
        interrupts: signals, deferred while a process is stopped.
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
        # The sides that run, the rates of their last sends, and the unread messages of each topic.
        self._running: list[Side] = []
        self._rates: dict[str, float] = {}
        self._unread: dict[str, int] = {}
        self._notes = RunNotes(FAILURES)
        self.versions: dict[str, str] = {}
        self._figures = Figures([side.name for side in self._sides])
        self._levels = Figures([*(side.name for side in self._sides), SDK])

    def prepare(self) -> None:
        """Fetch the programs; skip servers that cannot run here. Raises NotHere without h2load."""
        self.versions["h2load"] = run([h2load.PROGRAM, "--version"]).split("/")[-1].strip()
        for side in list(self._sides):
            with self._notes.noted(side.name):
                self.versions |= side.prepare()
                continue
            self._sides.remove(side)

    def run(self, parts: Sequence[str]) -> None:
        for sync, known in ((True, PARTS_WITH_SYNC), (False, PARTS)):
            chosen = [name for name in known if name in parts]
            if chosen:
                with self._notes.measured(mode(sync)):
                    self._pair(chosen, sync=sync)

    def text(self) -> str:
        tables = [each.table() for each in (self._figures, self._levels) if each.values]
        told_parts = [self._notes.machine_table(), *tables, *self._notes.missing()]
        return "\n\n".join(told_parts)

    def close(self) -> None:
        with self._interrupts.held():
            for side in self._sides:
                side.stop()

    # What runs.

    def _pair(self, parts: Sequence[str], *, sync: bool) -> None:
        """Start gateway and proxy, warm both up, and measure the requested parts."""
        told(mode(sync))
        measures: dict[str, Callable[[str], None]] = {
            "sends": self._measure_sends,
            "levels": self._measure_levels,
            "receive": self._measure_receives,
            "processes": self._measure_processes,
            "clients": self._measure_clients,
            "still": self._measure_rest,
        }
        try:
            for side in self._sides:
                with self._notes.noted(f"{side.name}, {mode(sync)}"):
                    self._start(side, sync=sync)
            for part in parts:
                told(part)
                measures[part](mode(sync))
        finally:
            with self._interrupts.held():
                self._running.clear()
                self._unread.clear()
                for side in self._sides:
                    side.stop()

    def _start(self, side: Side, *, sync: bool) -> None:
        """Start one server, and warm it up with unmeasured calls."""
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
        """Run a turn of each server per round; consecutive rounds start with different servers."""
        for number in range(self._rounds):
            first = number % max(len(self._running), 1)
            for side in self._running[first:] + self._running[:first]:
                with self._notes.noted(f"{side.name}: {what}"):
                    turn(side)

    # Sends.

    def _load(self, side: Side, calls: int, topic: str = SENT, messages: int = 1) -> h2load.Load:
        """Send messages with h2load, and check that all are stored afterwards."""
        calls = max(calls // CONNECTIONS, 1) * CONNECTIONS
        before = side.stored(topic)
        done = h2load.load(
            side.endpoint, SEND, request(topic, messages), HEADERS, calls, CONNECTIONS, self._folder
        )
        self._wait_stored(side, topic, before, calls * messages)
        return done

    @staticmethod
    def _wait_stored(side: Side, topic: str, before: int, messages: int) -> None:
        """Wait until a topic has grown by a number of messages. Raises MeasureFailed: the topic has
        grown by another number of messages."""
        # RocketMQ writes its queues after the log.
        deadline = time.monotonic() + STORED_SECONDS_MAX
        while (stored := side.stored(topic) - before) != messages:
            if time.monotonic() > deadline:
                raise MeasureFailed(f"{stored} messages of {messages} are stored")
            time.sleep(LOOK_SECONDS)

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

    # Sends and receives of 1, 8 and 64 clients: each side, and the Python SDK on Rockoon.

    def _measure_levels(self, _how: str) -> None:
        for side in self._running:
            for column, opened in side.turns().items():
                topic = topic_of(column, SINGLE)
                with self._notes.noted(f"{column}: receive one message, warm-up"):
                    self._make(side, topic)
                    seconds = LEVEL_WARM_TIMES * self._seconds
                    self._receive(side, opened, topic, LEVELS[-1], SINGLE, seconds)
        for level in LEVELS:
            for batch, what in ((0, "send 100 B"), (SINGLE, "receive one message and acknowledge")):
                measure = f"{what}, {level} at once"
                self._in_turns(measure, partial(self._measure_level, measure, level, batch))

    def _measure_level(self, measure: str, level: int, batch: int, side: Side) -> None:
        for column, opened in side.turns().items():
            with self._notes.noted(f"{column}: {measure}"):
                if batch:
                    topic = topic_of(column, SINGLE)
                    done = self._receive(side, opened, topic, level, SINGLE, self._seconds)
                else:
                    done = self._send(side, opened, level)
                units = (RATE, MESSAGE_CPU) if batch else (CALLS, CALL_CPU)
                self._add_done(self._levels, column, measure, done, *units)

    def _send(self, side: Side, opened: Turns, level: int) -> Done:
        """Measure sends of `level` clients; check that all their messages are stored."""
        wait_rest([*side.processes().values()])
        before = side.stored(SENT)
        done = uvloop.run(measured_turns(opened, SENT, level, 0, self._seconds, side.processes()))
        self._wait_stored(side, SENT, before, done.before + done.count)
        return done

    # Receives.

    def _measure_receives(self, _how: str) -> None:
        measure = f"receive up to {BATCH} messages and acknowledge, {CONNECTIONS} connections"
        for side in self._running:
            with self._notes.noted(f"{side.name}: {measure}, warm-up"):
                self._make(side, topic_of(side.name, BATCH))
                self._receive_batches(side)
        self._in_turns(measure, partial(self._measure_receive, measure))

    def _measure_receive(self, measure: str, side: Side) -> None:
        self._add_done(
            self._figures, side.name, measure, self._receive_batches(side), RATE, MESSAGE_CPU
        )

    def _receive_batches(self, side: Side) -> Done:
        topic, opened = topic_of(side.name, BATCH), side.turns()[side.name]
        return self._receive(side, opened, topic, CONNECTIONS, BATCH, self._seconds)

    def _make(self, side: Side, topic: str) -> None:
        """Create a topic with one message, and a consumer group with the same name."""
        side.make_topic(topic)
        side.make_group(topic)
        uvloop.run(stored_first(side.endpoint, topic))

    def _receive(
        self, side: Side, opened: Turns, topic: str, clients: int, batch: int, seconds: float
    ) -> Done:
        """Measure receives from a topic that has more messages than the clients can read. Raises
        MeasureFailed: the clients have read all messages."""
        unread = self._fill(side, topic, int(RATES_MAX[batch] * seconds * (1 + WARM_SHARE)))
        done = uvloop.run(measured_turns(opened, topic, clients, batch, seconds, side.processes()))
        self._unread[topic] = unread - done.count - done.before
        if self._unread[topic] <= 0:
            raise MeasureFailed("all messages were read before the end of the measure")
        return done

    def _fill(self, side: Side, topic: str, messages: int) -> int:
        """Send messages until a topic has a number of unread ones; return that number."""
        unread = self._unread.get(topic, 0)
        calls = -(-max(messages - unread, 0) // FILL_MESSAGES // CONNECTIONS) * CONNECTIONS
        if calls:
            self._load(side, calls, topic, FILL_MESSAGES)
        wait_rest([*side.processes().values()])
        return unread + calls * FILL_MESSAGES

    @staticmethod
    def _add_done(
        figures: Figures, column: str, measure: str, done: Done, rate: str, cpu: str
    ) -> None:
        figures.add(column, measure, {rate: done.count / done.seconds, **p50_p99(done.waits)})
        figures.add_sum(column, measure, cpu, each(done.used, done.count))
        figures.add(column, measure, {CLIENT_CPU: done.own_seconds / done.count * 1e6})

    # Others.

    def _measure_processes(self, _how: str) -> None:
        """Measure one gateway process, and two on the same port."""
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
            self._add_done(self._figures, side.name, measure, done, CALLS, CALL_CPU)
            self._figures.add(side.name, measure, {CLIENT_KIB: grown / CLIENTS / 1024})

        for side in self._running:
            with self._notes.noted(f"{side.name}: {measure}"):
                uvloop.run(clients_at_work(side))

    def _measure_rest(self, _how: str) -> None:
        """Measure the memory after all parts, and the CPU time of both servers while they are
        idle."""
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
    """Return the CPU microseconds per operation of each process."""
    return {name: seconds / count * 1e6 for name, seconds in spent.items()}
