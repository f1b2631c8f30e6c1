"""Generated tables of docs/measurements/compare.md.

One table has results without a sync before the acknowledgement, one with a sync. A line is a
measure and a unit, a column is a client. A cell is a range over the rounds, a figure, or a dash.
"""

from collections.abc import Sequence

from bench.compare.figures import Result, lines
from bench.tables import markdown, missing_lines, span

TITLES = {False: "### Answered before a sync", True: "### Answered after a sync"}


def text(result: Result, columns: Sequence[str], *, awaited: bool = False) -> str:
    """Return the text of the block.

    Args:
        result: result of a run.
        columns: columns of the tables.
        awaited: True if the run has only measures of awaited sends.
    """
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    rounds = [
        (str(number), f"{each.load:.2f}", f"{each.others_cores:.2f}", f"{each.seconds:.0f}")
        for number, each in enumerate(result.rounds, 1)
    ]
    parts = [
        f"{result.date}, {result.machine}. `{result.command}`: {result.seconds:g} s a rate.",
        f"Versions: {versions}.",
        markdown(("round", "load average before", "cores that others used", "seconds"), rounds),
    ]
    for sync, title in TITLES.items():
        rows = []
        for name, unit in lines(sync=sync, awaited=awaited):
            cells = [span(result.values.get((sync, column, name, unit), ())) for column in columns]
            rows.append((name, unit, *cells))
        parts += [title, markdown(("measure", "unit", *columns), rows)]
    return "\n\n".join([*parts, *missing_lines(result.missing)])
