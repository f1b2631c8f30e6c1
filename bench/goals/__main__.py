"""`make bench-goals`: measures Rockoon's performance goals in one run, and compares the results.

A run needs ten minutes on two quiet cores. On busy cores, wall-clock figures mean little, and CPU
figures somewhat more. Each line has the load average before its part and the cores that other
programs used during it.
"""

import sys
import time
import traceback
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import uvloop

from bench.command import parser, stores
from bench.compare.fetching import ROOT
from bench.goals import alone, logs, many, messages, still
from bench.tables import Goal, markdown, shown, told, write
from bench.usage import Circumstances, circumstances, machine
from rockoon_format import kernel

PAGE = ROOT / "docs" / "measurements" / "benchmarks.md"
GOALS = {
    "messages": messages.GOALS,
    "many": many.GOALS,
    "logs": logs.GOALS,
    "still": still.GOALS,
}
IDLE_SECONDS = 60.0
Values = Iterable[tuple[str, float]] | AsyncIterable[tuple[str, float]]
"""Values of a benchmark part by the names of goals, yielded as soon as each is measured."""


@dataclass(frozen=True)
class Measured:
    """Measured values of a benchmark part, and the state of the machine.

    Attributes:
        values: values by the names of goals.
        machine: state of the machine in the part.
        failure: reason of an early end; values measured before it are valid.
    """

    values: Mapping[str, float]
    machine: Circumstances
    failure: str = ""


def table(goals: Iterable[Goal], parts: Sequence[Measured]) -> str:
    """Return a table with a line per goal: goal, value, result, and the machine's state."""
    rows = []
    for goal in goals:
        part = next((each for each in parts if goal.measure in each.values), None)
        cells = ["not measured", "", ""]
        if part is not None:
            value = part.values[goal.measure]
            state = f"{part.machine.load:.1f}, {part.machine.others_cores:.1f}"
            cells = [f"{shown(value)} {goal.unit}", goal.verdict(value), state]
        rows.append((goal.measure, goal.told(), *cells))
    return markdown(("measure", "goal", "measured", "held", "load, others' cores"), rows)


def measured(part: Callable[[], Values]) -> Measured:
    """Run a benchmark part; an error ends it and is reported in the result."""
    values: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        values[name] = value
        told(f"  {name}: {value:.4g}")

    async def note_all(found: AsyncIterable[tuple[str, float]]) -> None:
        async for name, value in found:
            note(name, value)

    failure = ""
    with circumstances() as machine_state:
        try:
            found = part()
            if isinstance(found, AsyncIterable):
                uvloop.run(note_all(found))
            else:
                for name, value in found:
                    note(name, value)
        except Exception as error:  # noqa: BLE001 - the root of a part: the others are measured
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"
    return Measured(values, machine_state, failure)


def main() -> int:
    options = parser("make bench-goals", __doc__, GOALS, seconds=2.0)
    options.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    options.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    arguments = options.parse_args()
    began = time.monotonic()
    with stores(arguments.dir) as folder:
        parts: dict[str, Callable[[], Values]] = {
            "messages": lambda: messages.measure(folder, arguments.seconds),
            "many": lambda: many.measure(folder, arguments.seconds),
            "logs": lambda: logs.measure(folder),
            "still": lambda: still.measure(folder, arguments.idle_seconds),
        }
        only = arguments.only or list(GOALS)
        results = []
        for part in only:
            told(part)
            results.append(measured(parts[part]))
    date = datetime.now(UTC).date().isoformat()
    made = (
        f"{date}, {machine()}, kernel: {kernel.name()}; {time.monotonic() - began:.0f} s.\n\n"
        f"{table([each for part in only for each in GOALS[part]], results)}"
    )
    facts = {name: value for each in results for name, value in each.values.items()}
    if by_itself := [f"{name}: {shown(facts[name])}" for name in alone.FACTS if name in facts]:
        made += f"\n\nThe machine by itself, between them: {'; '.join(by_itself)}."
    print(made)
    if arguments.write:
        write(PAGE, made, "goals")
        told(f"written: {PAGE}")
    return int(any(each.failure for each in results))


if __name__ == "__main__":
    sys.exit(main())
