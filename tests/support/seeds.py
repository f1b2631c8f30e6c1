"""Seeds of random tests; the test's name has the seed.

`make test` uses the same seeds every time: if a test fails, a change has broken it. `make explore`
uses new seeds to find unknown faults. A seed that found a fault is added to `known`.
"""

import os
import random


def seeds(count: int, known: tuple[int, ...] = ()) -> list[int]:
    """Return the seeds of a test.

    Args:
        count: number of seeds in `make test`; `ROCKOON_FRESH_SEEDS` is the number otherwise.
        known: seeds that have found a bug; always used.

    Returns:
        The seeds that `ROCKOON_TEST_SEEDS` names, separated by commas, if it is set.
    """
    named = [int(text) for text in os.environ.get("ROCKOON_TEST_SEEDS", "").split(",") if text]
    if named:
        return named
    if fresh := fresh_seeds():
        # If several processes run tests, all of them must know the tests by the same names.
        chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
        return [*known, *(chance.randrange(1 << 32) for _ in range(fresh))]
    return [*known, *range(1, count + 1)]


def examples(count: int) -> int:
    """Return the number of examples that Hypothesis tries in a test: `count` in `make explore`, a
    third of it in `make test`, which repeats the same ones."""
    return count if fresh_seeds() else count // 3


def fresh_seeds() -> int:
    """Return the number of new seeds for each random test; 0 in `make test`."""
    return int(os.environ.get("ROCKOON_FRESH_SEEDS", "0"))
