"""`make compare`: its arithmetic, its page, its talk with clients, and Rockoon's own turn."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import numpy as np
import pytest
import uvloop

from bench.compare import page
from bench.compare.__main__ import PEERS, Comparison, Turn
from bench.compare.clients import protocol
from bench.compare.clients.protocol import Arrivals, Client, Note, Work
from bench.compare.figures import (
    CONNECTIONS,
    CPU,
    FIRST_MESSAGE,
    MIB,
    ONE_SEND,
    RATE,
    ROWS,
    SECONDS,
    SERVERS_MEMORY,
    TIMES,
    Result,
    figures,
    lines,
    rows,
)
from bench.compare.peer import NATS_PY, ROCKOON, ClientCommand, Peer, RockoonPeer
from bench.compare.programs import (
    ClientProgram,
    Interrupts,
    MeasureFailed,
    NoSuchWay,
    NotHere,
    Program,
    ProgramFailed,
)
from bench.tables import MISSING, NONE, P50, P99, between, shown, span, write
from bench.usage import Circumstances, cpu_seconds, own_bytes, with_children
from rockoon.local.directory import PortBlock
from support.waiting import wait_until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "compare.md"
COLUMNS = [column for peer in PEERS for column in peer.columns]
CELL = re.compile(rf"([\d,.]+)(?: {NONE} ([\d,.]+))?")


@dataclass(frozen=True)
class Table:
    """A table of the page: lowest and highest by measure, unit and column; None: not measured."""

    title: str
    columns: Sequence[str]
    cells: dict[tuple[str, str, str], tuple[float, float] | None]


def parsed(cell: str) -> tuple[float, float] | None:
    """Parse the lowest and highest value of a cell. Raises ValueError."""
    if cell == NONE:
        return None
    found = CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"no figure: {cell!r}")
    low, high = (float(each.replace(",", "")) for each in (found[1], found[2] or found[1]))
    return low, high


def tables(made: str) -> Iterator[Table]:
    """Parse the tables of figures in a text. Raises ValueError."""
    for title in page.TITLES.values():
        _, found, rest = made.partition(f"{title}\n\n")
        if not found:
            continue
        head, _, *lines = rest.partition("\n\n")[0].splitlines()
        columns = split_cells(head)[2:]
        cells = {}
        for line in lines:
            name, unit, *values = split_cells(line)
            for column, value in zip(columns, values, strict=True):
                cells[name, unit, column] = parsed(value)
        yield Table(title, columns, cells)


def split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (612_345.0, "612,000"),
        (999.6, "1,000"),
        (123.4, "123"),
        (12.34, "12.3"),
        (2.9, "2.90"),
        (0.01234, "0.0123"),
        (0.0, "0"),
    ],
)
def test_a_figure_has_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_a_cell_is_the_range_over_rounds_and_is_read_back() -> None:
    assert parsed(span([2.95, 3.1, 2.9])) == (2.9, 3.1)
    assert parsed(span([612_345, 655_000])) == (612_000, 655_000)
    assert parsed(span([2.901, 2.9])) == (2.9, 2.9)
    assert parsed(span([])) is None


@pytest.mark.parametrize("cell", ["", "fast", "1 - 2", "1 \N{EN DASH} 2 ms"])
def test_what_is_no_figure_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match="no figure"):
        parsed(cell)


def test_cpu_and_rate_are_for_each_message_and_waits_are_milliseconds() -> None:
    single = next(row for row in ROWS if row.do == "single")
    done = {"messages": 2000.0, "seconds": 0.5, "p50": 0.0002, "p99": 0.003}
    found = figures(single, done, cpu_seconds=0.5)
    assert {unit: found[single.name, unit] for unit in single.units} == pytest.approx(
        {P50: 0.2, P99: 3.0, CPU: 250.0}
    )
    bulk = figures(ROWS[0], {"messages": 2000.0, "seconds": 0.5}, cpu_seconds=0.5)
    assert bulk == pytest.approx({(ROWS[0].name, RATE): 4000.0, (ROWS[0].name, CPU): 250.0})


def test_tables_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    result = Result(
        "2026-01-31", "2 cores", "make compare", 1.0, rounds=[Circumstances(0.1, 0.0, 60.0)]
    )
    for values in ((100.0, 2.0), (120.0, 1.5), (110.0, 1.75)):
        found = dict(zip(((ROWS[0].name, RATE), (ROWS[0].name, CPU)), values, strict=True))
        result.add(COLUMNS[0], found, sync=True)
    document = tmp_path / "page.md"
    document.write_text("Words.\n\n<!-- begin figures -->\nold\n<!-- end figures -->\n\nMore.\n")
    write(document, page.text(result, COLUMNS))
    assert document.read_text().startswith("Words.\n")
    assert document.read_text().endswith("\nMore.\n")
    plain, synced = tables(between(document))
    assert set(plain.cells.values()) == {None}
    assert synced.columns == COLUMNS
    assert synced.cells[ROWS[0].name, RATE, COLUMNS[0]] == (100.0, 120.0)
    assert synced.cells[ROWS[0].name, CPU, COLUMNS[0]] == (1.5, 2.0)
    assert synced.cells[ROWS[0].name, CPU, COLUMNS[1]] is None
    assert "old" not in document.read_text()


def test_a_reason_in_the_page_is_short_and_names_no_place() -> None:
    result = Result("2026-01-31", "2 cores", "make compare", 1.0)
    where = "https://registry.example/kafka"
    result.missing["Kafka"] = (
        f"mvn failed: cannot get {where} into /tmp/lib " + "for a reason " * 20
    )
    _, _, said = page.text(result, COLUMNS).partition("- Kafka: ")
    assert said.startswith("mvn failed: cannot get into for a reason")
    assert said.endswith("...")
    assert "/" not in said
    assert len(said) < 200


def test_the_figures_of_the_document_are_tables_of_all_measures_and_clients() -> None:
    made = between(DOCUMENT)
    if made == MISSING:
        return
    found = list(tables(made))
    assert [table.title for table in found] == list(page.TITLES.values())
    for sync, table in zip(page.TITLES, found, strict=True):
        assert table.columns == COLUMNS
        assert list(table.cells) == [
            (name, unit, column) for name, unit in lines(sync=sync) for column in COLUMNS
        ]
        assert any(table.cells.values())


class MemoryClient(Client):
    """A queue in memory."""

    missing: Mapping[str, str] = {"push_lists": "it has no lists"}

    def __init__(self) -> None:
        self.stored: dict[str, list[bytes]] = {}
        self.notes: dict[str, Note] = {}

    async def connect(self, address: str) -> None:
        assert address == "memory"

    async def make_topics(self, queues: Mapping[str, int]) -> None:
        self.stored |= {name: [] for name in queues}

    async def send(self, topic: str, body: bytes) -> None:
        await asyncio.sleep(0)
        if topic not in self.stored:
            raise LookupError(f"there is no {topic}")
        self.stored[topic].append(body)
        if note := self.notes.get(topic):
            note(body)

    @asynccontextmanager
    async def listening(self, topic: str, note: Note) -> AsyncIterator[None]:
        self.notes[topic] = note
        yield
        del self.notes[topic]

    async def produce_each(self, topic: str, body: bytes, seconds: float) -> Work:
        self.stored[topic] += [body] * 10
        return Work(10, seconds)

    async def close(self) -> None:
        self.stored.clear()


def told(answer: str) -> dict[str, float]:
    assert answer.startswith("> "), answer
    return {name: float(value) for name, value in (word.split("=") for word in answer[2:].split())}


async def test_a_client_is_told_by_lines_and_says_what_it_did_or_why_not() -> None:
    client = MemoryClient()
    assert await protocol.answer(client, "connect address=memory") == "> "
    assert await protocol.answer(client, "make_topics a=8 b=1") == "> "
    assert await protocol.answer(client, "push_lists topic=a") == "- it has no lists"
    failure = await protocol.answer(client, "connect address=elsewhere")
    assert failure.startswith("! AssertionError")
    # Each of its tasks fails.
    assert (
        await protocol.answer(client, "tasks topic=c seconds=1") == "! LookupError: there is no c"
    )
    produced = told(await protocol.answer(client, "produce_each topic=a bytes=100 seconds=0.5"))
    assert produced == {"messages": 10, "seconds": 0.5}
    assert {len(body) for body in client.stored["a"]} == {100}
    assert told(await protocol.answer(client, "first topic=b"))["messages"] == 1


async def test_tasks_and_a_steady_rate_count_every_message_and_time_each() -> None:
    client = MemoryClient()
    await client.make_topics({"a": 1, "b": 1})
    found = told(await protocol.answer(client, "tasks topic=a seconds=0.02"))
    assert found["messages"] == len(client.stored["a"]) >= protocol.TASKS
    assert 0 < found["p50"] <= found["p99"] < found["seconds"]
    paced = told(await protocol.answer(client, "paced topic=b seconds=0.05 rate=1000"))
    assert paced["messages"] == 50
    # One went before, so that the listener is there.
    assert len(client.stored["b"]) == 51
    assert paced["seconds"] >= 0.049
    assert 0 < paced["p50"] <= paced["p99"]


class SharingClient(MemoryClient):
    """Clients that share queues, and a list of the open ones."""

    queues: ClassVar[dict[str, list[bytes]]] = {}
    opened: ClassVar[list["SharingClient"]] = []

    async def connect(self, address: str) -> None:
        await super().connect(address)
        self.stored = self.queues
        self.opened.append(self)

    async def close(self) -> None:
        self.opened.remove(self)


async def test_connections_are_timed_beside_one_alone() -> None:
    client = SharingClient()
    assert await protocol.answer(client, "connect address=memory") == "> "
    await client.make_topics({"a": 1})
    found = told(await protocol.answer(client, "connections topic=a seconds=0.2 count=120"))
    assert 119 + found["messages"] < len(client.stored["a"]), "one alone has sent, too"
    assert found["messages"] >= 120
    assert 0 < found["alone"] < found["p99"] < found["seconds"]
    assert client.opened == [client]
    row = next(row for row in ROWS if row.do == "connections")
    times = figures(row, found, cpu_seconds=1.0)[row.name, TIMES]
    assert times == found["p99"] / found["alone"]


def test_a_goal_beside_a_peer_is_of_the_ratios_of_the_rounds() -> None:
    result = Result("2026-01-31", "2 cores", "make compare", 1.0)
    for ours, theirs in ((0.3, 0.2), (0.18, 0.2), (0.19, 0.2)):
        result.add(ROCKOON, {(ONE_SEND, P50): ours}, sync=False)
        result.add(NATS_PY, {(ONE_SEND, P50): theirs}, sync=False)
    result.add(ROCKOON, {(CONNECTIONS, TIMES): 251.0}, sync=True)
    lines = page.goals_table(result).splitlines()
    assert f"| {ONE_SEND}, {P50} | ≤ 1 times NATS's | 0.950 | yes | not measured | |" in lines
    assert f"| {CONNECTIONS}, {TIMES} | ≤ 250 times | not measured | | 251 | **no** |" in lines
    assert len(lines) == 2 + len(page.GOALS)


def test_the_document_has_a_place_for_the_goals_of_awaited_sends() -> None:
    assert between(DOCUMENT, page.BLOCK)


def test_a_steady_rate_is_not_in_pairs() -> None:
    """By uvloop's timers, of whole milliseconds, every other one of 400 a second is late."""

    async def least_ms() -> list[float]:
        late: list[float] = []
        await protocol.steadily(20, 400, lambda due: late.append(1000 * (perf_counter() - due)))
        return [min(late[::2]), min(late[1::2])]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tries = [runner.run(least_ms()) for _ in range(5)]
    assert all(late > 0 for each in tries for late in each)
    # The least of a few: a busy machine makes some late.
    assert min(abs(odd - even) for odd, even in tries) < 0.2, tries


async def test_what_a_steady_rate_is_late_with_follows_and_knows_when_it_was_due() -> None:
    moments: list[float] = []
    # No loop turns a million times a second.
    await protocol.steadily(5000, 1e6, moments.append)
    assert len(moments) == 5000
    assert np.diff(moments) == pytest.approx(1e-6, abs=1e-7)
    assert moments[-1] <= perf_counter()


async def test_what_fails_ends_a_steady_rate() -> None:
    asked: list[float] = []

    def fail(due: float) -> None:
        asked.append(due)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await protocol.steadily(5, 1e6, fail)
    assert len(asked) == 1


async def test_what_handlers_get_is_counted_until_all_or_the_time_is_over() -> None:
    everything = Arrivals(stored=3, seconds=1000.0)
    for _ in range(5):
        everything.add(1)
    assert (await everything.wait()).messages == 3
    timed = Arrivals(stored=1_000_000, seconds=0.0)
    timed.add(7)
    assert (await timed.wait()).messages == 7


ANSWERS = """
import sys
for line in sys.stdin:
    print({"count": "> messages=5 seconds=0.5", "refuse": "- no such way", "noise": "noise",
           "fail": "! Broken: it is"}.get(line.split()[0], ""), flush=True)
    if line.startswith("end"):
        break
"""


def test_a_client_that_fails_ends_or_says_nothing_is_told_apart(tmp_path: Path) -> None:
    client = ClientProgram([sys.executable, "-c", ANSWERS], tmp_path / "log", {})
    try:
        assert client.ask("count", 60, topic="a") == {"messages": 5, "seconds": 0.5}
        with pytest.raises(NoSuchWay, match="no such way"):
            client.ask("refuse", 60)
        with pytest.raises(MeasureFailed, match="Broken: it is"):
            client.ask("fail", 60)
        with pytest.raises(ProgramFailed, match="in time"):
            client.ask("noise", 0.05)
        with pytest.raises(ProgramFailed, match="ended"):
            client.ask("end", 60)
    finally:
        client.stop()


BUSY = """
import sys, time
while time.process_time() < 0.3: pass
print("ready", flush=True)
sys.stdin.readline()
"""
# Its child has its input and its output.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_cpu_and_memory_are_of_a_process_and_of_what_it_started() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        assert len(with_children([parent.pid])) == 2
        used = cpu_seconds([parent.pid])
        assert used > 0.3
        assert cpu_seconds([parent.pid, *with_children([parent.pid])]) < 2 * used, "counted twice"
        assert own_bytes([parent.pid]) > 1 << 20
        parent.communicate()


def is_running(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # Who has ended stays there until its parent, here the system's first process, looks at it.
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_server_ends_with_all_that_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = "sleep 1000 & echo $! > child; wait"
    server = Program("shell", ["sh", "-c", script], tmp_path / "log")
    try:
        wait_until(lambda: child.exists() and child.read_text(), "its child")
        assert is_running(child.read_text().strip())
    finally:
        server.stop()
    wait_until(lambda: not is_running(child.read_text().strip()), "the end of its child")


def test_a_server_that_ends_at_once_is_not_waited_for(tmp_path: Path) -> None:
    server = Program("nothing", ["sh", "-c", "echo it cannot; exit 3"], tmp_path / "log")
    with pytest.raises(ProgramFailed, match="it cannot"):
        server.wait_listening(1)
    server.stop()


ENDS_EARLY = """
import sys
for line in sys.stdin:
    if line.startswith("produce"):
        sys.exit("no room left")
    print("> messages=1 seconds=0.5", flush=True)
"""


class AbsentPeer(Peer):
    name = "Absent"
    columns = ("Absent, Python",)

    def prepare(self) -> Mapping[str, str]:
        raise NotHere("there is no such registry")

    def start(self, folder: Path, *, sync: bool) -> str:
        raise AssertionError(f"it is skipped: {folder}, {sync}")

    def pids(self) -> Sequence[int]:
        return []

    def clients(self) -> Sequence[ClientCommand]:
        return []

    def stop(self) -> None:
        raise AssertionError("it is skipped")


class BrokenPeer(AbsentPeer):
    """Its client ends at its first bulk of messages."""

    name = "Broken"
    columns = ("Broken, Python",)

    def prepare(self) -> Mapping[str, str]:
        return {"broken": "1.0"}

    def start(self, folder: Path, *, sync: bool) -> str:
        return f"{folder.name}-{sync}"

    def clients(self) -> Sequence[ClientCommand]:
        return [ClientCommand(self.columns[0], [sys.executable, "-c", ENDS_EARLY])]

    def stop(self) -> None:
        pass


def test_who_is_not_there_is_skipped_by_name_and_who_fails_holds_up_nobody(tmp_path: Path) -> None:
    result = Result("2026-01-31", "2 cores", "make compare", 0.1)
    comparison = Comparison([AbsentPeer, BrokenPeer], 0.1, tmp_path, result, Interrupts())
    try:
        comparison.prepare()
        comparison.round()
    finally:
        comparison.close()
    assert result.versions == {"broken": "1.0"}
    assert result.missing.pop("Absent") == "there is no such registry"
    assert len(result.missing) == len(result.rounds) + 1 == 2
    for name, reason in result.missing.items():
        assert name.endswith("warm-up, and what comes behind it")
        assert "no room left" in reason
    assert {key[2:] for key in result.values} == {(FIRST_MESSAGE, SECONDS)}
    assert not list(tmp_path.iterdir()), "stores are removed"


CTRL_C = """
import os, signal
from bench.compare.programs import Interrupts
interrupts = Interrupts()
interrupts.handle()
try:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    finally:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            print("stopped", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    with (late := Interrupts()).held():
        late.handle()
        os.kill(os.getpid(), signal.SIGTERM)
        print("stopped", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_ctrl_c_counts_once_and_waits_until_servers_are_stopped() -> None:
    root = DOCUMENT.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["stopped", "interrupted"] * 2, done.stderr


def test_rockoons_turn_measures_everything(tmp_path: Path) -> None:
    ports = PortBlock()
    peer = RockoonPeer(ports)
    peer.prepare()
    try:
        address = peer.start(tmp_path / "cluster", sync=False)
        (command,) = peer.clients()
        client = ClientProgram(command.command, tmp_path / "log", command.environment)
        try:
            turn = Turn(peer.pids(), client, "t-", tmp_path)
            turn.connect(address)
            turn.warm(0.02)
            found = turn.memory()
            for row in rows(sync=False):
                few = {"count": 20} if "count" in row.given else {}
                found |= turn.measured(replace(row, given={**row.given, **few}), 0.05)
        finally:
            client.stop()
    finally:
        peer.stop()
        ports.close()
    assert set(lines(sync=False)) - found.keys() == {(FIRST_MESSAGE, SECONDS)}
    assert all(value > 0 for value in found.values())
    assert found[SERVERS_MEMORY, MIB] > 50
