"""Generated tables of docs/measurements/compare.md, and the goals for awaited sends.

One table has results without a sync before the acknowledgement, one with a sync. A line is a
measure and a unit, a column is a client. A cell is a range over the rounds, a figure, or a dash.
A goal is a bound of Rockoon's results relative to another message queue in the same round.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.compare.figures import (
    CONNECTIONS,
    CPU,
    ONE_SEND,
    PACED,
    RATE,
    TASKS,
    TIMES,
    Result,
    lines,
)
from bench.compare.peer import AIOKAFKA, NATS_PY, ROCKOON, KafkaPeer, NatsPeer, RockoonPeer
from bench.tables import P50, P99, Goal, markdown, missing_lines, shown, span

TITLES = {False: "### Answered before a sync", True: "### Answered after a sync"}


def text(result: Result, columns: Sequence[str], *, awaited: bool = False) -> str:
    """Return the text of the block. `awaited`: True if the run has only measures of awaited
    sends."""
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


PEERS = (RockoonPeer, KafkaPeer, NatsPeer)
COLUMNS = (ROCKOON, AIOKAFKA, NATS_PY)
# The name in the page's markers.
BLOCK = "awaited"


@dataclass(frozen=True)
class Relative:
    """A goal for one measure.

    Attributes:
        measure, unit: identify a line of the tables.
        goal: bound of Rockoon's figure, or of its ratio to the figure of `beside`.
        beside: column of the other message queue; empty: the bound applies to the figure itself.
    """

    measure: str
    unit: str
    goal: Goal
    beside: str = NATS_PY

    def values(self, result: Result, *, sync: bool) -> list[float]:
        """Return the value of each round that is compared with the goal; empty if a round has
        none."""
        found = result.values.get((sync, ROCKOON, self.measure, self.unit), [])
        if not self.beside:
            return found
        others = result.values.get((sync, self.beside, self.measure, self.unit), [])
        if len(found) != len(others):
            return []
        return [ours / theirs for ours, theirs in zip(found, others, strict=True)]


def _beside_nats(measure: str, unit: str, bound: float = 1.0) -> Relative:
    return Relative(measure, unit, Goal(measure, bound, "times NATS's"))


GOALS = (
    *(_beside_nats(measure, unit) for measure in (ONE_SEND, PACED) for unit in (P50, P99, CPU)),
    Relative(TASKS, RATE, Goal(TASKS, 1.2, "times aiokafka's", is_floor=True), AIOKAFKA),
    _beside_nats(CONNECTIONS, P99, 1.5),
    Relative(CONNECTIONS, TIMES, Goal(CONNECTIONS, 250, "times"), ""),
)


def goals_table(result: Result) -> str:
    """Return a table of the goals, with the median value over the rounds."""
    rows = []
    for each in GOALS:
        cells: list[str] = []
        for sync in (False, True):
            if values := each.values(result, sync=sync):
                median = statistics.median(values)
                cells += [shown(median), each.goal.verdict(median)]
            else:
                cells += ["not measured", ""]
        rows.append((f"{each.measure}, {each.unit}", each.goal.told(), *cells))
    return markdown(("goal", "bound", "before a sync", "held", "after a sync", "held"), rows)
