"""Writes the generated tables of docs/measurements/compare.md, between markers.

One table has results without a sync before the acknowledgement, one with a sync. A line is a
measure and a unit, a column is a client. A cell is a range over the rounds, a figure, or a dash.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.figures import Result, lines, parsed, span

FIGURES = "figures"
MISSING = "*Not measured yet.*"
REASON_CHARACTERS_MAX = 160
TITLES = {False: "### Answered before a sync", True: "### Answered after a sync"}


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        title: its heading.
        columns: names of clients.
        cells: by measure, unit and column: lowest and highest, or None if nothing was measured.
    """

    title: str
    columns: Sequence[str]
    cells: dict[tuple[str, str, str], tuple[float, float] | None]


def text(result: Result, columns: Sequence[str], *, awaited: bool = False) -> str:
    """Return the text between the markers.

    Args:
        result: result of a run.
        columns: columns of the tables.
        awaited: True if the run has only measures of awaited sends.
    """
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    parts = [
        f"{result.date}, {result.machine}. `{result.command}`: {result.seconds:g} s a rate.",
        f"Versions: {versions}.",
        "\n".join(
            [
                "| round | load average before | cores that others used | seconds |",
                "|---|---|---|---|",
            ]
            + [
                f"| {number} | {each.load:.2f} | {each.others_cores:.2f} | {each.seconds:.0f} |"
                for number, each in enumerate(result.rounds, 1)
            ]
        ),
    ]
    for sync, title in TITLES.items():
        made = [f"| measure | unit | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
        for name, unit in lines(sync=sync, awaited=awaited):
            cells = [span(result.values.get((sync, column, name, unit), ())) for column in columns]
            made.append(f"| {name} | {unit} | {' | '.join(cells)} |")
        parts += [title, "\n".join(made)]
    if result.missing:
        parts.append("Not measured:")
        parts.append("\n".join(f"- {name}: {brief(why)}" for name, why in result.missing.items()))
    return "\n\n".join(parts)


def brief(reason: str) -> str:
    """Shorten an error text for the page, and remove local paths and memory addresses."""
    said = " ".join(word for word in reason.split() if "/" not in word)
    return said if len(said) <= REASON_CHARACTERS_MAX else f"{said[:REASON_CHARACTERS_MAX]}..."


def write(page: Path, made: str, block: str = FIGURES) -> None:
    """Write a text between the markers of a page.

    Raises:
        ValueError: the page has no markers with this name.
    """
    text, count = _marked(block).subn(
        lambda found: f"{found[1]}{made}\n{found[2]}", page.read_text()
    )
    if not count:
        raise ValueError(f"{page} has no markers of {block}")
    page.write_text(text)


def between(page: Path, block: str = FIGURES) -> str:
    """Return the text between the markers of a page.

    Raises:
        ValueError: it has no markers.
    """
    found = _marked(block).search(page.read_text())
    if found is None:
        raise ValueError(f"{page} has no markers of {block}")
    return found[0].partition("\n")[2].rpartition("\n")[0]


def tables(made: str) -> Iterator[Table]:
    """Parse the tables of figures in a text.

    Raises:
        ValueError: a cell is invalid, or a line has a wrong number of cells.
    """
    for title in TITLES.values():
        _, found, rest = made.partition(f"{title}\n\n")
        if not found:
            continue
        head, _, *lines = rest.partition("\n\n")[0].splitlines()
        columns = _cells(head)[2:]
        cells = {}
        for line in lines:
            name, unit, *values = _cells(line)
            for column, value in zip(columns, values, strict=True):
                cells[name, unit, column] = parsed(value)
        yield Table(title, columns, cells)


def _marked(block: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- begin {block} -->\n).*?(<!-- end {block} -->)", re.DOTALL)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
