"""Measures of the comparison, and arithmetic: figures of a turn, and their range over the
rounds."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RATE, CPU, P50, P99 = "messages/s", "CPU µs a message", "p50 ms", "p99 ms"
SECONDS, MIB = "s", "MiB"
TIMES = "times the p99 of one connection"
NONE = "\N{EN DASH}"
DIGITS = 3
_CELL = re.compile(rf"([\d,.]+)(?: {NONE} ([\d,.]+))?")


@dataclass(frozen=True)
class Row:
    """One measure (a row of the table).

    Attributes:
        name: name in the table.
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
        row: the measure.
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


def shown(value: float) -> str:
    """Format a figure with a suitable number of digits."""
    if value <= 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(value))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def span(values: Sequence[float]) -> str:
    """Format the range of values over the rounds for a table cell."""
    if not values:
        return NONE
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} {NONE} {high}"


def parsed(cell: str) -> tuple[float, float] | None:
    """Parse the lowest and highest value of a cell; None if nothing was measured.

    Raises:
        ValueError: invalid text.
    """
    if cell == NONE:
        return None
    found = _CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"no figure: {cell!r}")
    low, high = (float(each.replace(",", "")) for each in (found[1], found[2] or found[1]))
    return low, high


@dataclass(frozen=True)
class Round:
    """State of the machine in one round.

    Attributes:
        load: load average before the round.
        others_cores: CPU cores that other programs used during the round.
        seconds: duration of the round.
    """

    load: float
    others_cores: float
    seconds: float


@dataclass
class Result:
    """Result of a run of the comparison.

    Attributes:
        date, machine, command: date, description of the machine, command line.
        seconds: duration of each rate.
        versions: version of each program, by name.
        rounds: state of the machine in each round.
        values: one value per round, by (sync, column, measure, unit).
        missing: reasons for missing columns or measures, by name.
    """

    date: str
    machine: str
    command: str
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    values: dict[tuple[bool, str, str, str], list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, column: str, found: Figures, *, sync: bool) -> None:
        """Add the figures of one turn to a column."""
        for (name, unit), value in found.items():
            self.values.setdefault((sync, column, name, unit), []).append(value)
