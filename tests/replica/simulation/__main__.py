"""Runs the simulation by seeds, with all rules or with one broken rule.

PYTHONPATH=tests python -m replica.simulation --seeds 1000
PYTHONPATH=tests python -m replica.simulation --bug elect_longest
PYTHONPATH=tests python -m replica.simulation --all-bugs
PYTHONPATH=tests python -m replica.simulation --stores --seeds 20
PYTHONPATH=tests python -m replica.simulation --old-disks --seeds 200
"""

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import pytest

from replica.simulation.broken import (
    BROKEN,
    NAMES,
    OF_FLIPS,
    OF_GENERATIONS,
    OF_OLD_DISKS,
    OF_STORES,
)
from replica.simulation.truth import Stuck, Violation
from replica.simulation.world import CHANGING, SHAPES, World

STEPS = 1200
STEPS_WITH_STORES = 500
STEPS_OF_A_HUNT = 2000


def run(
    seed: int,
    shape: str | None = None,
    bug: str | None = None,
    *,
    nameserver: bool = False,
    root: Path | None = None,
    journals: bool = False,
    generations: bool = False,
    flips: bool = False,
    old_disks: bool = False,
    steps: int = STEPS,
) -> World:
    """Run one seed to its end.

    Raises:
        Violation, ValueError, AssertionError: found by this seed.
    """
    with pytest.MonkeyPatch.context() as patch:
        if bug in BROKEN:
            BROKEN[bug](patch)
        bugs = () if bug is None else (bug,)
        generations = generations or bug in OF_GENERATIONS
        flips = flips or bug in OF_FLIPS
        old_disks = old_disks or bug in OF_OLD_DISKS
        kinds = {
            "journals": journals,
            "generations": generations,
            "flips": flips,
            "old_disks": old_disks,
        }
        world = World(seed, shape, bugs, nameserver=nameserver, root=root, **kinds)
        try:
            world.run(steps)
            world.settle()
        except Exception as error:
            error.add_note(f"seed {seed}, {world.shape}, step {world.steps}")
            raise
        finally:
            world.close()
    return world


def run_with_stores(seed: int, shape: str | None = None, bug: str | None = None) -> World:
    """Run stores and the nameserver's functions, with a topic that is deleted and created again."""
    with tempfile.TemporaryDirectory() as home:
        root = Path(home)
        # A violation of a rule of topics shows if the same replica leads again after others.
        steps = STEPS_WITH_STORES if bug is None else STEPS_OF_A_HUNT
        return run(seed, shape, bug, nameserver=True, root=root, steps=steps)


def hunt(bug: str, first: int, seeds: int, shape: str | None) -> bool:
    for seed in range(first, first + seeds):
        try:
            (run_with_stores if bug in OF_STORES else run)(seed, shape, bug)
        except Stuck:
            continue
        except (Violation, ValueError, AssertionError) as error:
            print(f"{bug:22} {error.__notes__[0]}: {str(error)[:100]}", flush=True)
            return True
    print(f"{bug:22} not found in {seeds} seeds", flush=True)
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--shape", choices=(*SHAPES, CHANGING))
    parser.add_argument("--stop", type=int, default=3, help="so many seeds that find something")
    parser.add_argument("--bug", choices=NAMES)
    parser.add_argument("--nameserver", action="store_true", help="its functions are the register")
    parser.add_argument("--stores", action="store_true", help="the broker's, and a topic in them")
    parser.add_argument("--generations", action="store_true", help="leaders make some")
    parser.add_argument("--flips", action="store_true", help="bits flip on disks")
    parser.add_argument("--old-disks", action="store_true", help="one is put back to a snapshot")
    parser.add_argument("--all-bugs", action="store_true")
    options = parser.parse_args()
    if options.bug or options.all_bugs:
        bugs = [options.bug] if options.bug else list(NAMES)
        missed = [bug for bug in bugs if not hunt(bug, options.first, options.seeds, options.shape)]
        sys.exit(", ".join(missed) or 0)
    counts: Counter[str] = Counter()
    found = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            if options.stores:
                world = run_with_stores(seed, options.shape)
            else:
                how = {"nameserver": options.nameserver, "generations": options.generations}
                how["flips"] = options.flips
                how["old_disks"] = options.old_disks
                world = run(seed, options.shape, **how)
        except (Violation, ValueError, AssertionError):
            found += 1
            traceback.print_exc()
            if found >= options.stop:
                sys.exit(1)
            continue
        counts.update(world.counts)
        counts["committed bytes"] += world.truth.end
    print(f"{options.seeds} seeds, {found} found something: {dict(counts)}")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
