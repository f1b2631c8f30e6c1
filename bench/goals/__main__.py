"""`make bench-goals`: measures Rockoon's performance goals in one run, and compares the results.

A run needs ten minutes on two quiet cores. On busy cores, wall-clock figures mean little, and CPU
figures somewhat more. Each line has the load average before its part and the cores that other
programs used during it.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench.capacity.processes import machine
from bench.compare.__main__ import used_cpu_seconds
from bench.compare.fetching import ROOT
from bench.compare.figures import shown
from bench.compare.page import write
from bench.goals import alone, goal, logs, many, messages, still
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


def measured(part: Callable[[], Values]) -> goal.Measured:
    """Run a benchmark part; an error ends it and is reported in the result."""
    values: dict[str, float] = {}
    load, began, before = os.getloadavg()[0], time.monotonic(), used_cpu_seconds()

    async def take(found: AsyncIterable[tuple[str, float]]) -> None:
        async for name, value in found:
            note(name, value)

    def note(name: str, value: float) -> None:
        values[name] = value
        print(f"  {name}: {value:.4g}", file=sys.stderr, flush=True)

    failure = ""
    try:
        found = part()
        if isinstance(found, AsyncIterable):
            uvloop.run(take(found))
        else:
            for name, value in found:
                note(name, value)
    except Exception as error:  # noqa: BLE001 - the root of a part: the others are measured
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    now = used_cpu_seconds()
    own = now[1] - before[1]
    others = max(now[0] - before[0] - own, 0.0) / (time.monotonic() - began)
    return goal.Measured(values, load, others, failure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-goals", description=__doc__)
    parser.add_argument("--only", choices=GOALS, action="append", help="one part; repeatable")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a rate is measured")
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the stores go")
    arguments = parser.parse_args()
    arguments.dir.mkdir(exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.dir, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        parts: dict[str, Callable[[], Values]] = {
            "messages": lambda: messages.measure(folder, arguments.seconds),
            "many": lambda: many.measure(folder, arguments.seconds),
            "logs": lambda: logs.measure(folder),
            "still": lambda: still.measure(folder, arguments.idle_seconds),
        }
        only = arguments.only or list(GOALS)
        results = []
        for part in only:
            print(part, file=sys.stderr, flush=True)
            results.append(measured(parts[part]))
    date = datetime.now(UTC).date().isoformat()
    made = (
        f"{date}, {machine()}, kernel: {kernel.name()}; {time.monotonic() - began:.0f} s.\n\n"
        f"{goal.table([each for part in only for each in GOALS[part]], results)}"
    )
    facts = {name: value for each in results for name, value in each.values.items()}
    if told := [f"{name}: {shown(facts[name])}" for name in alone.FACTS if name in facts]:
        made += f"\n\nThe machine by itself, between them: {'; '.join(told)}."
    print(made)
    if arguments.write:
        write(PAGE, made, "goals")
        print(f"written: {PAGE}", file=sys.stderr)
    return int(any(each.failure for each in results))


if __name__ == "__main__":
    sys.exit(main())
