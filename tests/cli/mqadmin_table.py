"""The tables of `docs/operate/mqadmin.md`, made from `mqadmin.csv` beside it.

`PYTHONPATH=tests python -m cli.mqadmin_table` writes them again, after the list was changed.
"""

import csv
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "mqadmin.md"
LIST = PAGE.with_suffix(".csv")
MARK = "## Topics\n"


class Counterpart(NamedTuple):
    """A command of mqadmin.

    Attributes:
        commands: commands of `rockoon` that do its work, as examples; none if there is none.
        remark: a difference; the reason if there is no command.
    """

    subject: str
    mqadmin: str
    commands: list[str]
    remark: str


def counterparts() -> list[Counterpart]:
    with LIST.open(newline="") as lines:
        return [
            Counterpart(
                each["subject"],
                each["mqadmin"],
                [command for command in each["rockoon"].split("; ") if command],
                each["remark"],
            )
            for each in csv.DictReader(lines)
        ]


def page() -> str:
    """The page with its tables as the list has them."""
    text = PAGE.read_text().partition(MARK)[0]
    sections = []
    for subject, rows in groupby(counterparts(), key=lambda each: each.subject):
        lines = [f"## {subject}", "", "| mqadmin | rockoon | |", "|---|---|---|"]
        lines += [row(each) for each in rows]
        sections.append("\n".join(lines) + "\n")
    return text + "\n".join(sections)


def row(of: Counterpart) -> str:
    commands = "<br>".join(f"`{each}`".replace("|", "\\|") for each in of.commands)
    return f"| `{of.mqadmin}` | {commands or '—'} | {of.remark.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(page())
