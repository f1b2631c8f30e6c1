"""Figures of benchmarks as Markdown tables, and generated blocks of pages.

This module does not import Rockoon: client programs of other message queues may import it.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

P50, P99 = "p50 ms", "p99 ms"
CALLS = "calls/s"
CALL_CPU, MESSAGE_CPU, CLIENT_CPU = "CPU µs a call", "CPU µs a message", "the client's CPU µs"
CORES, CLIENT_KIB = "% of a core", "KiB a client"
NONE = "\N{EN DASH}"
MISSING = "*Not measured yet.*"
# Name of the block that the figures of a run fill, if a page has no other.
FIGURES = "figures"
DIGITS = 3
REASON_CHARACTERS_MAX = 160
# Processes with a smaller share are not shown.
SHARE_TOLD_MIN = 0.01
BLOCK = re.compile(r"(<!-- begin (\S+) -->\n)(.*?)(<!-- end \2 -->)", re.DOTALL)


def told(line: str) -> None:
    """Print a line about the progress of a run."""
    print(line, file=sys.stderr, flush=True)


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


def p50_p99(seconds: Iterable[float]) -> dict[str, float]:
    """Return p50 and p99 of latencies, in milliseconds by unit."""
    ordered = sorted(seconds)
    return {unit: quantile(ordered, share) * 1e3 for unit, share in ((P50, 0.5), (P99, 0.99))}


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


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def miss(missing: dict[str, str], name: str, reason: str) -> None:
    """Record and print the failure of a measure."""
    reason = " ".join(reason.split())
    if missing.setdefault(name, reason) == reason:
        told(f"  not measured: {name}: {reason}")


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """Return the paragraphs about failed measures, given with their reasons."""
    lines = [f"- {name}: {brief(why)}" for name, why in missing.items()]
    return ["Not measured:", "\n".join(lines)] if lines else []


def brief(reason: str) -> str:
    """Shorten an error text for the page, and remove local paths and memory addresses."""
    said = " ".join(word for word in reason.split() if "/" not in word)
    return said if len(said) <= REASON_CHARACTERS_MAX else f"{said[:REASON_CHARACTERS_MAX]}..."


def fill(page: Path, made: Callable[[str], str | None]) -> None:
    """Write the blocks of a page, `<!-- begin NAME -->` to `<!-- end NAME -->`. `made`: returns the
    content of a block, given its name; None leaves the block unchanged."""

    def filled(found: re.Match[str]) -> str:
        content = made(found[2])
        return found[0] if content is None else f"{found[1]}{content}\n{found[4]}"

    page.write_text(BLOCK.sub(filled, page.read_text()))


def write(page: Path, made: str, block: str = FIGURES) -> None:
    """Write a text into a block of a page. Raises ValueError: the page has no block with this
    name."""
    between(page, block)
    fill(page, lambda name: made if name == block else None)


def between(page: Path, block: str = FIGURES) -> str:
    """Return the content of a block of a page. Raises ValueError: the page has no block with this
    name."""
    for found in BLOCK.finditer(page.read_text()):
        if found[2] == block:
            return found[3].rstrip("\n")
    raise ValueError(f"{page} has no markers of {block}")


@dataclass(frozen=True)
class Goal:
    """A performance goal: the bound of one measured value.

    Attributes:
        unit: unit of bound and value.
        is_floor: True if the bound is a minimum, False if it is a maximum.
        origin: source of the bound, if it is not Rockoon's own goal.
    """

    measure: str
    bound: float
    unit: str
    is_floor: bool = False
    origin: str = ""

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.is_floor else value <= self.bound

    def verdict(self, value: float) -> str:
        return "yes" if self.holds(value) else "**no**"

    def told(self) -> str:
        """Return the goal as text for the table."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.is_floor else "\N{LESS-THAN OR EQUAL TO}"
        origin = f" ({self.origin})" if self.origin else ""
        return f"{sign} {self.bound:,.12g} {self.unit}{origin}"


@dataclass
class Figures:
    """Results of a run that compares clients or servers.

    Attributes:
        columns: names of the compared clients and servers.
        values: one value per round, by measure, unit and column.
        shares: share of each process, for values that are sums over processes.
    """

    columns: list[str]
    values: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    shares: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, column: str, measure: str, values: Mapping[str, float]) -> None:
        """Add the values of one turn, given by unit."""
        for unit, value in values.items():
            self.values.setdefault((measure, unit), {}).setdefault(column, []).append(value)

    def add_sum(
        self, column: str, measure: str, unit: str, by_process: Mapping[str, float]
    ) -> None:
        """Add a value that is a sum over processes, and the share of each process."""
        self.add(column, measure, {unit: sum(by_process.values())})
        shares = self.shares.setdefault((measure, unit), {}).setdefault(column, {})
        for name, value in by_process.items():
            shares.setdefault(name, []).append(value)

    def table(self) -> str:
        """Return the table; a cell is a range over the rounds, or a dash."""
        rows = []
        told = ""
        for (measure, unit), by_column in self.values.items():
            cells = [span(by_column.get(column, ())) for column in self.columns]
            rows.append(("" if measure == told else measure, unit, *cells))
            told = measure
            processes = self.shares.get((measure, unit), {})
            if any(len(each) > 1 for each in processes.values()):
                cells = [self._processes(processes.get(column, {})) for column in self.columns]
                rows.append(("", "of it", *cells))
        return markdown(("measure", "unit", *self.columns), rows)

    @staticmethod
    def _processes(by_process: Mapping[str, list[float]]) -> str:
        total = sum(map(sum, by_process.values()))
        if len(by_process) < 2 or not total:
            return NONE
        found = sorted(by_process.items(), key=lambda item: -sum(item[1]))
        return ", ".join(
            f"{name} {shown(sum(values) / len(values))}"
            for name, values in found
            if sum(values) / total >= SHARE_TOLD_MIN
        )
