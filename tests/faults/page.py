"""The table of docs/faults.md, between its marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.scenario import Outcome, Scenario

BEGIN = "<!-- make faults writes from here -->"
END = "<!-- to here -->"
HEADING = ("scenario", "what must hold", "runs", "faults", "acknowledged", "broken", "command")


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
    """Put the figures of a whole run into a page that has the marks."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


def table(rows: Sequence[Row]) -> str:
    lines = [HEADING, tuple("---" for _ in HEADING), *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Row) -> tuple[str, ...]:
    outcome = row.outcome
    if not outcome.runs and outcome.notes:
        return (row.scenario.name, row.scenario.promise, "left out", "", "", "", outcome.notes[0])
    return (
        row.scenario.name,
        row.scenario.promise,
        f"{outcome.runs:,}",
        f"{outcome.injected:,}",
        f"{outcome.acknowledged:,}",
        str(len(outcome.broken)),
        f"`{row.command}`",
    )
