"""Runs the model by seeds: with all rules (no violation is allowed), or with one broken rule (there
must be one).

PYTHONPATH=tests python -m replica.model --seeds 2000
PYTHONPATH=tests python -m replica.model --bug elect_longest
PYTHONPATH=tests python -m replica.model --all-bugs --seeds 3000
"""

import argparse
import sys
from collections import Counter
from typing import Any

from replica.model.broken import BROKEN
from replica.model.settling import settle
from replica.model.violation import Violation
from replica.model.world import World

STEPS = 1500
SHAPES: tuple[dict[str, Any], ...] = (
    {"size": 3, "min_in_sync": 2},
    {"size": 3, "min_in_sync": 2, "commit": "all"},
    {"size": 3, "min_in_sync": 1},
    {"size": 2, "min_in_sync": 1},
    {"size": 5, "min_in_sync": 2},
    {"size": 3, "min_in_sync": 2, "flush": "async"},
    {"size": 3, "min_in_sync": 2, "commit": "all", "flush": "async"},
    {"size": 1, "min_in_sync": 1},
    {"size": 2, "min_in_sync": 1, "voters": 1},
)


def run(seed: int, bug: str | None = None) -> tuple[World, bool | None]:
    """Run one seed; return the world at its end, and the result of `settle`.

    Raises:
        Violation: an entry was lost, undone, or acknowledged twice.
    """
    world = World(seed, bugs=() if bug is None else (bug,), **SHAPES[seed % len(SHAPES)])
    try:
        for _ in range(STEPS):
            world.step()
        return world, settle(world)
    except Violation as found:
        found.add_note(f"seed {seed}, step {world.steps}")
        raise


def hunt(bug: str, first: int, seeds: int) -> bool:
    for seed in range(first, first + seeds):
        try:
            run(seed, bug)
        except Violation as found:
            print(f"{bug:22} {found.__notes__[0]}: {found}", flush=True)
            return True
    print(f"{bug:22} not found in {seeds} seeds", flush=True)
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--bug", choices=sorted(BROKEN))
    parser.add_argument("--all-bugs", action="store_true")
    options = parser.parse_args()
    if options.all_bugs or options.bug:
        bugs = [options.bug] if options.bug else list(BROKEN)
        missed = [bug for bug in bugs if not hunt(bug, options.first, options.seeds)]
        sys.exit(", ".join(missed) or 0)
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        world, works = run(seed)
        counts.update(world.counts)
        counts[f"works again: {works}"] += 1
        if works is False:
            print(f"seed {seed}: does not work again")
    print(f"{options.seeds} seeds: nothing found; {dict(counts)}")
    sys.exit(counts["works again: False"] > 0)


if __name__ == "__main__":
    main()
