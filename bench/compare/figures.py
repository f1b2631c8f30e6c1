"""Measures of the comparison, and the figures of a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.tables import P50, P99
from bench.usage import Circumstances

RATE, CPU = "messages/s", "CPU µs a message"
SECONDS, MIB = "s", "MiB"
TIMES = "times the p99 of one connection"


@dataclass(frozen=True)
class Row:
    """One measure (a row of the table).

    Attributes:
        do: operation of the clients (`clients/protocol.py`).
        given: arguments of the operation; the duration is added.
        units: units of the figures; each is one line of the table.
        times: factor by which the duration is multiplied.
        awaits: True for measures of awaited sends (`awaited.py`).
        reads: True if it only reads stored messages, so that syncs make no difference.
    """

    name: str
    do: str
    given: Mapping[str, object]
    units: Sequence[str] = (RATE, CPU)
    times: float = 1.0
    reads: bool = False
    awaits: bool = False


SMALL, LARGE = {"topic": "small", "bytes": 100}, {"topic": "large", "bytes": 1024}
READ = {"topic": "fill"}
SINGLE = {"topic": "single"}

ONE_SEND, TASKS = "one awaited send after another", "64 tasks, each awaits its sends"
CONNECTIONS = "1,000 connections, each awaits its sends"
PACED = "1,000 messages/s, from send to listener"

# Topics of each client, with their numbers of queues.
TOPICS: Mapping[str, int] = {"fill": 8, "small": 8, "large": 8, "single": 1, "paced": 1, "first": 1}

ROWS = (
    Row("produce 100 B, a call a message", "produce_each", SMALL),
    Row("produce 100 B, lists", "produce_lists", SMALL),
    Row("produce 1 KiB, a call a message", "produce_each", LARGE),
    Row("produce 1 KiB, lists", "produce_lists", LARGE),
    Row("consume 100 B, columns", "consume_columns", READ, reads=True),
    Row("consume 100 B, lists of objects", "consume_lists", READ, reads=True),
    Row("consume 100 B, an object a call", "consume_each", READ, reads=True),
    Row("push 100 B, a message a call", "push_each", READ, reads=True),
    Row("push 100 B, lists of up to 64", "push_lists", READ, reads=True),
    Row(ONE_SEND, "single", SINGLE, (P50, P99, CPU), awaits=True),
    Row(TASKS, "tasks", SINGLE, (RATE, P99, CPU), awaits=True),
    # Without CPU, because it would include the CPU of opening the connections.
    Row(
        CONNECTIONS,
        "connections",
        {**SINGLE, "count": 1000},
        (RATE, P50, P99, TIMES),
        2.0,
        awaits=True,
    ),
    Row(PACED, "paced", {"topic": "paced", "rate": 1000}, (P50, P99, CPU), 2.0, awaits=True),
)
SERVERS_MEMORY = "memory of the servers after that"
CLIENT_MEMORY = "memory of the client after that"
FIRST_MESSAGE = "from the command to the first message"


def rows(*, sync: bool, awaited: bool = False) -> list[Row]:
    """Return the measures with or without a sync before the acknowledgement, or only awaited
    sends."""
    return [row for row in ROWS if not (sync and row.reads) and (row.awaits or not awaited)]


def lines(*, sync: bool, awaited: bool = False) -> list[tuple[str, str]]:
    """Return the lines of a table: measure and unit."""
    found = [(row.name, unit) for row in rows(sync=sync, awaited=awaited) for unit in row.units]
    return [*found, (SERVERS_MEMORY, MIB), (CLIENT_MEMORY, MIB), (FIRST_MESSAGE, SECONDS)]


# Measure and unit → value.
Figures = dict[tuple[str, str], float]


def figures(row: Row, done: Mapping[str, float], cpu_seconds: float) -> Figures:
    """Compute the figures of a measure from a client's result.

    Args:
        done: result of a client: messages, seconds, optionally p50 and p99 in seconds, and `alone`,
            the p99 of one connection.
        cpu_seconds: CPU time used by client and servers.
    """
    messages = done["messages"]
    values = {RATE: messages / done["seconds"], CPU: cpu_seconds / messages * 1e6}
    waits = {"p50": P50, "p99": P99}
    values |= {unit: done[name] * 1e3 for name, unit in waits.items() if name in done}
    if "alone" in done:
        values[TIMES] = done["p99"] / done["alone"]
    return {(row.name, unit): values[unit] for unit in row.units}


@dataclass
class Result:
    """Result of a run of the comparison.

    Attributes:
        date, machine, command: date, description of the machine, command line.
        seconds: duration of each rate.
        rounds: state of the machine in each round.
        values: one value per round, by (sync, column, measure, unit).
        missing: reasons for missing columns or measures, by name.
    """

    date: str
    machine: str
    command: str
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[Circumstances] = field(default_factory=list)
    values: dict[tuple[bool, str, str, str], list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, column: str, found: Figures, *, sync: bool) -> None:
        """Add the figures of one turn to a column."""
        for (name, unit), value in found.items():
            self.values.setdefault((sync, column, name, unit), []).append(value)
