"""Performance goals, and the table that compares them with measured values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.compare.figures import shown


@dataclass(frozen=True)
class Goal:
    """A performance goal: the bound of one measured value.

    Attributes:
        measure: name of the measured value.
        bound: the bound.
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

    def told(self) -> str:
        """Return the goal as text for the table."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.is_floor else "\N{LESS-THAN OR EQUAL TO}"
        origin = f" ({self.origin})" if self.origin else ""
        return f"{sign} {self.bound:,.12g} {self.unit}{origin}"


@dataclass(frozen=True)
class Measured:
    """Measured values of a benchmark part, and the state of the machine.

    Attributes:
        values: values by the names of goals.
        load: load average when the part began.
        others_cores: cores that other programs used during the part.
        failure: reason of an early end; values measured before it are valid.
    """

    values: Mapping[str, float]
    load: float
    others_cores: float
    failure: str = ""


def table(goals: Iterable[Goal], parts: Sequence[Measured]) -> str:
    """Return a table with a line per goal: goal, value, result, and the machine's state."""
    lines = ["| measure | goal | measured | held | load, others' cores |", "|---|---|---|---|---|"]
    for goal in goals:
        part = next((each for each in parts if goal.measure in each.values), None)
        if part is None:
            lines.append(f"| {goal.measure} | {goal.told()} | not measured | | |")
            continue
        value = part.values[goal.measure]
        held = "yes" if goal.holds(value) else "**no**"
        machine = f"{part.load:.1f}, {part.others_cores:.1f}"
        lines.append(
            f"| {goal.measure} | {goal.told()} | {shown(value)} {goal.unit} | {held} | {machine} |"
        )
    return "\n".join(lines)
