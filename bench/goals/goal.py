"""Goals, and the table of what holds them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.compare.figures import shown


@dataclass(frozen=True)
class Goal:
    """A bound of one measure.

    Attributes:
        measure: its name, the same as of the value that is measured.
        bound: what it is to reach.
        unit: of bound and value.
        is_floor: the value is to be no less than the bound; otherwise no more.
        origin: where the bound comes from, if it is not ours.
    """

    measure: str
    bound: float
    unit: str
    is_floor: bool = False
    origin: str = ""

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.is_floor else value <= self.bound

    def told(self) -> str:
        """The goal as the table has it."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.is_floor else "\N{LESS-THAN OR EQUAL TO}"
        origin = f" ({self.origin})" if self.origin else ""
        return f"{sign} {self.bound:,.12g} {self.unit}{origin}"


@dataclass(frozen=True)
class Measured:
    """A part's values, and what the machine was like.

    Attributes:
        values: by the names of goals.
        load: the load average when the part began.
        others_cores: cores that other programs used meanwhile.
        failure: why it ended early; what it had measured before counts.
    """

    values: Mapping[str, float]
    load: float
    others_cores: float
    failure: str = ""


def table(goals: Iterable[Goal], parts: Sequence[Measured]) -> str:
    """A line for each goal: goal, value, whether it is held, and the machine meanwhile."""
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
