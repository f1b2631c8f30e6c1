"""`make failover`: how long producers wait when the leader of a log with three copies fails.

The leader is killed, stopped with a planned handover, or paused as if its machine had vanished; all
processes run on one machine. One producer sends single messages, another in bulk. The result of a
trial is the longest wait from a send to its acknowledgement. Exit status 1: a message was lost.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.failover.trials import KINDS, Outcome, outcome_of

console = Console()
COLUMNS = ("p50 s", "p99 s", "longest s", "lost", "doubled", "failed sends")


def rows(kind: str, outcome: Outcome) -> list[tuple[str, ...]]:
    """Return a table row for each producer."""
    made = []
    for topic, waits in outcome.waits.items():
        ordered = sorted(waits)
        figures = [ordered[int(len(ordered) * share)] for share in (0.5, 0.99)] + ordered[-1:]
        counts = (outcome.lost[topic], outcome.doubled[topic], outcome.failed[topic])
        made.append((KINDS[kind], topic, *(f"{each:.2f}" for each in figures), *map(str, counts)))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="make failover", description=__doc__)
    parser.add_argument("--only", choices=KINDS, action="append", help="one kind; may be repeated")
    parser.add_argument("--trials", type=int, default=20, help="of each kind, at least 1")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before each trial")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="directory for the stores")
    arguments = parser.parse_args()
    # Errors of stopped processes are expected; lost messages are counted at the end.
    logging.getLogger("rockoon").setLevel(logging.ERROR)
    arguments.dir.mkdir(exist_ok=True)
    table = Table(title=f"The leader goes, {arguments.trials} times each", title_justify="left")
    for column in ("leader", "producer"):
        table.add_column(column)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    lost = 0
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        for kind in arguments.only or KINDS:
            trials = outcome_of(Path(folder, kind), kind, arguments.trials, arguments.settle)
            outcome = uvloop.run(trials)
            lost += sum(outcome.lost.values())
            for row in rows(kind, outcome):
                table.add_row(*row)
    console.print(table)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
