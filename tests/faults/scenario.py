"""Input and result of a scenario."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.flood_choice import BRIEF, FloodChoice

BROKEN_SHOWN_MAX = 20


@dataclass(frozen=True)
class Task:
    """Parameters of one run of a scenario.

    Args:
        directory: its own directory, empty.
        seed: decides all random choices.
        scale: 1.0: the default counts.
        library: preload.c, compiled; None: it cannot be compiled.
        broken: the mechanism that is broken on purpose (`broken_service.py`); empty: none.
        floods: attacks of the scenario `http2`.
    """

    directory: Path
    seed: int
    scale: float = 1.0
    library: Path | None = None
    broken: str = ""
    floods: FloodChoice = BRIEF

    def chance(self, purpose: str = "") -> random.Random:
        return random.Random(f"{self.seed} {purpose}")

    def count(self, default: int) -> int:
        """Return a scaled number; at least one."""
        return max(1, round(default * self.scale))


@dataclass
class Outcome:
    """Result of a scenario."""

    runs: int = 0
    """Number of faults that a service survived."""
    injected: int = 0
    """Faults."""
    acknowledged: int = 0
    """Operations that a service acknowledged, each checked at least once afterwards."""
    broken: list[str] = field(default_factory=list)
    """Violated promises; must be empty."""
    notes: list[str] = field(default_factory=list)
    """Notes for readers of the figures."""
    pause_seconds: float = 0.0
    """The longest time in which no message was acknowledged; 0: not measured."""

    def breaks(self, where: str, sentences: Sequence[str]) -> None:
        self.broken += [f"{where}: {sentence}" for sentence in sentences]


Run = Callable[[Task], Awaitable[Outcome]]


@dataclass(frozen=True)
class Scenario:
    """One line of the table.

    Args:
        name: for `ONLY=`.
        promise: the promise, for people.
        run: runs the scenario.
        needs_library: whether it needs preload.c.
        seconds_max: at scale 1; no scenario needs nearly as much on a quiet machine.
    """

    name: str
    promise: str
    run: Run
    needs_library: bool = False
    seconds_max: float = 900.0
