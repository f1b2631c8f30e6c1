"""The tables of runs as parts of docs/operate/kubernetes.md."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from k8s.shell import ROOT, Failed
from k8s.stage import Row

PAGE = ROOT / "docs" / "operate" / "kubernetes.md"
# The comments before and after the table of all steps, and of random operations.
STEPS = ("<!-- make k8s writes from here -->", "<!-- to here -->")
DAYS = ("<!-- make k8s DAYS= writes from here -->", "<!-- days to here -->")
HEADING = (
    "cluster",
    "step",
    "DNS answers",
    "seconds",
    "failed calls",
    "longest silence",
    "after the return",
    "newcomers",
)


def write(
    rows: Sequence[Row], words: str, marks: tuple[str, str] = STEPS, page: Path = PAGE
) -> None:
    """Write a table between its marks on the page.

    Args:
        rows: of the run.
        words: a sentence about machine and date.
        marks: comments before and after the table.
        page: Markdown file.
    """
    begin, end = marks
    before, found, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise Failed(f"{page} has no `{begin}` ... `{end}` for the table")
    table = [HEADING, tuple("---" for _ in HEADING), *map(cells, rows)]
    notes = [f"- {row.cluster}, {row.step}: {row.note.strip()}" for row in rows if is_noted(row)]
    lines = [
        begin,
        "",
        textwrap.fill(words, 118),
        "",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        *notes,
        *([""] if notes else []),
        end,
    ]
    page.write_text(before + "\n".join(lines) + after)


def is_noted(row: Row) -> bool:
    return row.failed is None and bool(row.note)


def cells(row: Row) -> tuple[str, ...]:
    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.2f} s"

    return (
        row.cluster,
        row.step,
        "" if row.dns is None else f"{row.dns:.0f} s old",
        f"{row.seconds:.1f}",
        "" if row.failed is None else str(row.failed),
        seconds(row.longest),
        seconds(row.after_return),
        seconds(row.newcomers),
    )
