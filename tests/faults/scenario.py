"""What a scenario is given, and what it says at its end."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.flood_choice import BRIEF, FloodChoice

BROKEN_SHOWN_MAX = 20


@dataclass(frozen=True)
class Task:
    """How one scenario is to be run.

    Args:
        directory: its own, empty.
        seed: decides everything that is chance's.
        scale: 1.0: the default counts.
        library: preload.c, compiled; None where it cannot be.
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
        """So many, scaled; at least one."""
        return max(1, round(default * self.scale))


@dataclass
class Outcome:
    """What a scenario has shown."""

    runs: int = 0
    """Times that a service went through what was done to it."""
    injected: int = 0
    """Faults."""
    acknowledged: int = 0
    """Operations that a service said were done, each checked at least once afterwards."""
    broken: list[str] = field(default_factory=list)
    """Promises that did not hold; must be empty."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the figures should know."""
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
        promise: what must hold, for people.
        run: does it.
        needs_library: whether it can be run without preload.c.
        seconds_max: at scale 1; no scenario needs nearly as much on a quiet machine.
    """

    name: str
    promise: str
    run: Run
    needs_library: bool = False
    seconds_max: float = 900.0
