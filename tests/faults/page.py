"""The table of docs/measurements/faults.md, between its marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.scenario import Outcome, Scenario
from faults.scenarios import SCENARIOS

BEGIN = "<!-- make faults writes from here -->"
END = "<!-- to here -->"
HEADING = (
    "scenario",
    "what must hold",
    "runs",
    "faults",
    "acknowledged",
    "longest pause of sends",
    "broken",
    "command",
)


@dataclass(frozen=True)
class Row:
    """A scenario that has run."""

    scenario: Scenario
    outcome: Outcome
    seed: int
    scale: float

    @property
    def command(self) -> str:
        scale = "" if self.scale == 1 else f" SCALE={self.scale:g}"
        return f"make faults ONLY={self.scenario.name} SEED={self.seed}{scale}"


def write(rows: Sequence[Row], path: Path) -> None:
    """Put figures into a page that has the marks; scenarios that did not run keep their lines."""
    before, _, rest = path.read_text().partition(BEGIN)
    former, _, after = rest.partition(END)
    lines = {line.split(" | ")[0]: line for line in former.splitlines()}
    lines |= {f"| {row.scenario.name}": shown(cells(row)) for row in rows}
    known = (lines.get(f"| {each.name}") for each in SCENARIOS)
    table = [shown(HEADING), shown(["---" for _ in HEADING]), *filter(None, known)]
    path.write_text("\n".join((before + BEGIN, *table, END + after)))


def shown(line: Sequence[str]) -> str:
    return f"| {' | '.join(line)} |"


def cells(row: Row) -> tuple[str, ...]:
    outcome = row.outcome
    if not outcome.runs and outcome.notes:
        return (
            row.scenario.name,
            row.scenario.promise,
            "left out",
            "",
            "",
            "",
            "",
            outcome.notes[0],
        )
    return (
        row.scenario.name,
        row.scenario.promise,
        f"{outcome.runs:,}",
        f"{outcome.injected:,}",
        f"{outcome.acknowledged:,}",
        f"{outcome.pause_seconds:.1f} s" if outcome.pause_seconds else "",
        str(len(outcome.broken)),
        f"`{row.command}`",
    )
