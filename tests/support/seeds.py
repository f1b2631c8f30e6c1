"""Seeds of random tests, which stand in the tests' names.

`make test` runs the same ones every time: what turns red, a change has broken. `make explore` looks
for what nobody has met yet, with seeds of its own. A seed that found something goes into `known`.
"""

import os
import random


def seeds(count: int, known: tuple[int, ...] = ()) -> list[int]:
    """The seeds that a test runs with.

    Args:
        count: how many in `make test`; `ROCKOON_FRESH_SEEDS` says how many fresh ones otherwise.
        known: those that have found a bug, run in any case.

    Returns:
        Those that `ROCKOON_TEST_SEEDS` names, separated by commas, if it names any.
    """
    named = [int(text) for text in os.environ.get("ROCKOON_TEST_SEEDS", "").split(",") if text]
    if named:
        return named
    if fresh := fresh_seeds():
        # Where several processes run tests, all have to know them by the same names.
        chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
        return [*known, *(chance.randrange(1 << 32) for _ in range(fresh))]
    return [*known, *range(1, count + 1)]


def examples(count: int) -> int:
    """How many examples Hypothesis tries in a test: `count` in `make explore`, a third in `make
    test`, which repeats the same ones."""
    return count if fresh_seeds() else count // 3


def fresh_seeds() -> int:
    """How many seeds that nobody has tried each random test is to run with; 0 in `make test`."""
    return int(os.environ.get("ROCKOON_FRESH_SEEDS", "0"))
