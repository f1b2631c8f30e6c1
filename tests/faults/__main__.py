"""`make faults`: faults of disks, processes, clocks and callers, and whether Rockoon keeps its
promises.

Exit status 1 if it does not. With --break, one mechanism is broken on purpose, and the status is 1
if no scenario notices it.
"""

import argparse
import asyncio
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from faults import library, page
from faults.broken_service import MECHANISMS
from faults.flood_choice import BRIEF, SERVICES, FloodChoice
from faults.page import Row
from faults.scenario import BROKEN_SHOWN_MAX, Outcome, Scenario, Task
from faults.scenarios import SCENARIOS, chosen, named


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    names = ", ".join(each.name for each in SCENARIOS)
    parser.add_argument(
        "--only",
        default="",
        help=f"scenarios, with commas between, * for any part of a name: {names}",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="times the default counts")
    parser.add_argument("--seed", type=int, help="default: one that nobody has tried")
    parser.add_argument(
        "--break",
        dest="broken",
        default="",
        help=f"a mechanism to break on purpose, or all: {', '.join(MECHANISMS)}",
    )
    parser.add_argument("--out", type=Path, help="page whose table gets the figures")
    add_flood_arguments(parser)
    arguments = parser.parse_args()
    try:
        flood_choice = chosen_floods(arguments)
    except ValueError as failure:
        parser.error(str(failure))
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    # Members of the cluster come and go; the end of the scenario checks the rules.
    logging.getLogger("rockoon").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    patterns = arguments.only.replace(",", " ").split() or ["*"]
    wanted = [scenario for pattern in patterns for scenario in chosen(pattern)]
    if arguments.broken:
        return break_on_purpose(arguments.broken, seed, arguments.scale)
    try:
        rows = go_through(wanted, seed, arguments.scale, floods=flood_choice)
    except KeyboardInterrupt:
        print("interrupted: all processes have ended", file=sys.stderr)
        return 130
    if arguments.out is not None:
        page.write(rows, arguments.out)
    return 1 if any(row.outcome.broken for row in rows) else 0


def add_flood_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of the scenario http2, if it is the only one")
    group.add_argument("--attacks", default="*", help="names with commas between, * for any part")
    group.add_argument("--services", default=",".join(SERVICES), help="with commas between")
    group.add_argument("--tls", default="off,on", choices=("off", "on", "off,on"))
    group.add_argument("--connections", default="1,20", help="of the attacker, in turns")
    group.add_argument("--seconds", type=float, default=FloodChoice.seconds, help="of each attack")
    group.add_argument("--floods-out", type=Path, help="page whose tables get the figures")


def chosen_floods(arguments: argparse.Namespace) -> FloodChoice:
    """Attacks of the scenario `http2`: all if it is the only scenario, else a brief choice.

    Raises:
        ValueError: an argument is wrong.
    """
    if arguments.only != "http2":
        return BRIEF
    return FloodChoice(
        attacks=arguments.attacks.split(","),
        services=tuple(arguments.services.split(",")),
        tls=[each == "on" for each in arguments.tls.split(",")],
        connections=[int(each) for each in arguments.connections.split(",")],
        seconds=arguments.seconds,
        out=arguments.floods_out,
    )


def go_through(
    wanted: Sequence[Scenario],
    seed: int,
    scale: float,
    broken: str = "",
    floods: FloodChoice = BRIEF,
) -> list[Row]:
    """Run scenarios one after another."""
    rows = []
    why_not = library.why_not()
    with tempfile.TemporaryDirectory(prefix="rockoon-faults-") as made:
        directory = Path(made)
        built = None if why_not else library.build(directory)
        for scenario in wanted:
            if scenario.needs_library and built is None:
                print(f"left out: {scenario.name}: {why_not}", file=sys.stderr)
                rows.append(Row(scenario, Outcome(notes=[why_not]), seed, scale))
                continue
            own = directory / f"{scenario.name}-{len(rows)}"
            own.mkdir()
            began = time.monotonic()
            outcome = run(scenario, Task(own, seed, scale, built, broken, floods))
            rows.append(Row(scenario, outcome, seed, scale))
            tell(rows[-1], time.monotonic() - began)
    return rows


def run(scenario: Scenario, task: Task) -> Outcome:
    async def bounded() -> Outcome:
        async with asyncio.timeout(scenario.seconds_max * max(1.0, task.scale)):
            return await scenario.run(task)

    try:
        return asyncio.run(bounded())
    except Exception as failure:  # noqa: BLE001 - what it was is the result
        if os.environ.get("FAULTS_TRACEBACK"):
            traceback.print_exc()
        cause: BaseException = failure
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        said = f"the scenario did not come to its end: {type(cause).__name__}: {cause}"
        return Outcome(broken=[said[:600]])


def tell(row: Row, seconds: float) -> None:
    outcome = row.outcome
    print(
        f"{row.scenario.name:13} {outcome.runs:4} runs, {outcome.injected:6} faults, "
        f"{outcome.acknowledged:7} acknowledged, {len(outcome.broken)} broken promises "
        f"({seconds:.0f} s): {row.command}",
        flush=True,
    )
    if outcome.pause_seconds:
        print(f"  sends paused for {outcome.pause_seconds:.1f} s at most", flush=True)
    for sentence in outcome.broken[:BROKEN_SHOWN_MAX]:
        print(f"  does not hold: {sentence}", flush=True)
    if len(outcome.broken) > BROKEN_SHOWN_MAX:
        print(f"  and {len(outcome.broken) - BROKEN_SHOWN_MAX} more", flush=True)


def break_on_purpose(which: str, seed: int, scale: float) -> int:
    """Run the scenarios that must notice that a mechanism is broken."""
    missed = []
    for mechanism in MECHANISMS if which == "all" else [which]:
        print(f"broken on purpose: {mechanism}", flush=True)
        for name in MECHANISMS[mechanism].noticed_by:
            rows = go_through([named(name)], seed, scale * MECHANISMS[mechanism].scale, mechanism)
            if not rows[0].outcome.broken and not rows[0].outcome.notes:
                missed.append(f"{mechanism} by {name}")
    for each in missed:
        print(f"not noticed: {each}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
