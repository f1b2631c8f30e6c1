"""`make compare`: comparison of Rockoon, Kafka, RocketMQ and NATS, in turns, on this machine.

A peer is one of the compared message queues. Each round starts each peer on an empty store, without
and with a sync before the acknowledgement, runs the same work with each of its clients, and stops
it. Peers that this machine cannot run are skipped and listed. A run of all peers in at least three
rounds fills docs/measurements/compare.md; other runs only print. `--awaited` measures only awaited
sends, of the clients that have goals for them (`page.py`); with three rounds it fills that part
of the page.
"""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.command import parser, stores
from bench.compare import page
from bench.compare.figures import (
    CLIENT_MEMORY,
    FIRST_MESSAGE,
    MIB,
    SECONDS,
    SERVERS_MEMORY,
    TOPICS,
    Figures,
    Result,
    Row,
    figures,
    rows,
)
from bench.compare.peer import ClientCommand, KafkaPeer, NatsPeer, Peer, RocketMqPeer, RockoonPeer
from bench.compare.programs import (
    ROOT,
    ClientProgram,
    Interrupts,
    MeasureFailed,
    NoSuchWay,
    NotHere,
    ProgramFailed,
)
from bench.tables import FIGURES, miss, told, write
from bench.usage import circumstances, cpu_seconds, find_pages, machine, own_bytes, wait_rest
from rockoon.local.directory import PortBlock
from rockoon.local.process import LocalClusterError

PAGE = ROOT / "docs" / "measurements" / "compare.md"
PEERS: tuple[type[Peer], ...] = (RockoonPeer, KafkaPeer, RocketMqPeer, NatsPeer)
ROUNDS_OF_A_PAGE_MIN = 3
# The warm-up ends when a repetition is faster by less than this factor.
WARM_GAIN = 1.1
WARM_TIMES_MIN, WARM_TIMES_MAX = 8, 12
# With fewer stored messages, a reader would mostly measure its restarts from the beginning.
STORED_MIN = 20_000
ANSWER_SECONDS_MAX = 100.0


class Turn:
    """Measures one client of a running message queue.

    Args:
        servers: process ids of the servers.
        prefix: prefix of the client's topic names, because all clients use the same servers.
        folder: a directory on the servers' disk.
    """

    def __init__(
        self, servers: Sequence[int], client: ClientProgram, prefix: str, folder: Path
    ) -> None:
        self._servers = servers
        self._client = client
        self._prefix = prefix
        self._folder = folder
        self._stored = 0

    def connect(self, address: str) -> None:
        """Connect, create topics, and send and receive one message."""
        self._client.ask("connect", ANSWER_SECONDS_MAX, address=address)
        topics = {self._prefix + name: queues for name, queues in TOPICS.items()}
        self._client.ask("make_topics", ANSWER_SECONDS_MAX, **topics)
        self._client.ask("first", ANSWER_SECONDS_MAX, topic=self._prefix + "first")

    def warm(self, seconds: float) -> None:
        """Warm up until throughput no longer increases (JIT compilers); the messages are read
        later."""
        best = 0.0
        for times in range(1, WARM_TIMES_MAX + 1):
            done = self._ask("produce_each", seconds, topic="fill", bytes=100)
            self._stored += int(done["messages"])
            before, best = best, max(best, done["messages"] / done["seconds"])
            if times >= WARM_TIMES_MIN and best < before * WARM_GAIN and self._stored >= STORED_MIN:
                break
        self._ask("consume_lists", seconds / 2, topic="fill", stored=self._stored)
        self._ask("tasks", seconds, topic="single")
        wait_rest(self._servers)

    def measured(self, row: Row, seconds: float) -> Figures:
        """Measure one row of the table, including later work of the servers such as flushes."""
        given = dict(row.given)
        if row.do.startswith(("consume_", "push_")):
            given["stored"] = self._stored
        processes = [*self._servers, self._client.pid]
        if row.do.startswith("produce_"):
            find_pages(self._folder, seconds * row.times)
        before = cpu_seconds(processes)
        done = self._ask(row.do, seconds * row.times, **given)
        wait_rest(self._servers)
        return figures(row, done, cpu_seconds(processes) - before)

    def memory(self) -> Figures:
        return {
            (SERVERS_MEMORY, MIB): own_bytes(self._servers) / (1 << 20),
            (CLIENT_MEMORY, MIB): own_bytes([self._client.pid]) / (1 << 20),
        }

    def _ask(self, do: str, seconds: float, *, topic: object, **given: object) -> dict[str, float]:
        named = {"topic": f"{self._prefix}{topic}", "seconds": seconds, **given}
        return self._client.ask(do, ANSWER_SECONDS_MAX + seconds, **named)


class Comparison:
    """One run of the comparison.

    Args:
        peers: classes of the compared message queues; each has one turn per round.
        seconds: duration of each rate.
        folder: directory for stores and logs, on the disk to measure.
        result: filled by this run.
        interrupts: signals, deferred while a process is stopped.
        awaited: True to measure only awaited sends, of the clients in `page.COLUMNS`.
    """

    def __init__(
        self,
        peers: Sequence[type[Peer]],
        seconds: float,
        folder: Path,
        result: Result,
        interrupts: Interrupts,
        *,
        awaited: bool = False,
    ) -> None:
        self._awaited = awaited
        self._seconds = seconds
        self._folder = folder
        self._result = result
        self._interrupts = interrupts
        self._ports = PortBlock()
        self._peers = [peer(self._ports) for peer in peers]

    def prepare(self) -> None:
        """Fetch the programs of all peers; skip peers that this machine cannot run."""
        for peer in list(self._peers):
            told(f"{peer.name}: fetching")
            try:
                self._result.versions |= peer.prepare()
            except NotHere as reason:
                self._peers.remove(peer)
                self._miss(peer.name, str(reason))

    def round(self) -> None:
        """Run one turn of each peer without and with a sync; the next round starts with another
        peer."""
        with circumstances() as found:
            for sync in (False, True):
                for peer in self._peers:
                    self._turn(peer, sync=sync)
        self._result.rounds.append(found)
        self._peers.append(self._peers.pop(0))

    def _turn(self, peer: Peer, *, sync: bool) -> None:
        with stores(self._folder) as folder:
            began = time.monotonic()
            try:
                address = peer.start(folder, sync=sync)
                for number, command in enumerate(peer.clients()):
                    if self._awaited and command.name not in page.COLUMNS:
                        continue
                    started = began if number == 0 else None
                    self._client(peer, command, address, folder, started, sync=sync)
            except (ProgramFailed, LocalClusterError, NotHere) as failure:
                self._miss(f"{peer.name}, {mode(sync)}", str(failure))
            finally:
                with self._interrupts.held():
                    peer.stop()

    def _client(
        self,
        peer: Peer,
        command: ClientCommand,
        address: str,
        folder: Path,
        began: float | None,
        *,
        sync: bool,
    ) -> None:
        """Run all measures of one client; `began`: start time of the servers, for the first
        client."""
        number = peer.columns.index(command.name)
        log = folder / f"client-{number}.log"
        client = ClientProgram(command.command, log, command.environment)
        turn = Turn(peer.pids(), client, f"c{number}-", folder)
        name = f"{command.name}, {mode(sync)}"
        told(name)
        doing = "start"
        try:
            turn.connect(address)
            if began is not None:
                seconds = time.monotonic() - began
                self._result.add(command.name, {(FIRST_MESSAGE, SECONDS): seconds}, sync=sync)
            doing = "warm-up"
            turn.warm(self._seconds)
            for row in rows(sync=sync, awaited=self._awaited):
                doing = row.name
                try:
                    found = turn.measured(row, self._seconds)
                except NoSuchWay as reason:
                    self._miss(f"{command.name}: {row.name}", str(reason))
                except MeasureFailed as failure:
                    self._miss(f"{name}: {row.name}", str(failure))
                else:
                    self._result.add(command.name, found, sync=sync)
            self._result.add(command.name, turn.memory(), sync=sync)
        except (MeasureFailed, ProgramFailed) as failure:
            self._miss(f"{name}: {doing}, and what comes behind it", str(failure))
        finally:
            with self._interrupts.held():
                client.stop()

    def _miss(self, name: str, reason: str) -> None:
        miss(self._result.missing, name, reason)

    def close(self) -> None:
        for peer in self._peers:
            peer.stop()
        self._ports.close()


def mode(sync: bool) -> str:
    return "after a sync" if sync else "before a sync"


def main() -> int:
    names = [peer.name for peer in PEERS]
    options = parser("make compare", __doc__, names, seconds=1.0)
    options.add_argument("--rounds", type=int, default=3, help="number of turns of each peer")
    options.add_argument("--awaited", action="store_true", help="only measures of awaited sends")
    arguments = options.parse_args()
    known = [peer.name for peer in page.PEERS] if arguments.awaited else names
    chosen = [peer for peer in PEERS if peer.name in (arguments.only or known)]
    result = Result(
        datetime.now(UTC).date().isoformat(),
        machine(),
        f"make compare ROUNDS={arguments.rounds} SECONDS={arguments.seconds:g}"
        + (" AWAITED=1" if arguments.awaited else ""),
        arguments.seconds,
    )
    interrupts = Interrupts()
    interrupts.handle()
    comparison = Comparison(
        chosen,
        arguments.seconds,
        arguments.dir,
        result,
        interrupts,
        awaited=arguments.awaited,
    )
    try:
        comparison.prepare()
        for number in range(arguments.rounds):
            told(f"round {number + 1} of {arguments.rounds}")
            comparison.round()
    except KeyboardInterrupt:
        told("interrupted; every server and client is stopped")
        return 130
    finally:
        comparison.close()
    columns = [column for peer in chosen for column in peer.columns]
    if arguments.awaited:
        columns = [column for column in columns if column in page.COLUMNS]
    made = page.text(result, columns, awaited=arguments.awaited)
    made += f"\n\n{page.goals_table(result)}" if arguments.awaited else ""
    print(made)
    if arguments.rounds >= ROUNDS_OF_A_PAGE_MIN and not arguments.only:
        write(PAGE, made, page.BLOCK if arguments.awaited else FIGURES)
        told(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
