"""Seeds of random tests that stand in the tests' names."""

import os
import random


def seeds(count: int) -> list[int]:
    """Those that ROCKOON_TEST_SEEDS names, separated by commas, or else some of this run."""
    named = [int(text) for text in os.environ.get("ROCKOON_TEST_SEEDS", "").split(",") if text]
    # Where several processes run tests, all have to know them by the same names.
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    return named or [chance.randrange(1 << 32) for _ in range(count)]
