"""Members of one log under a hostile scheduler: nothing acknowledged is lost, whatever happens."""

import pytest

from replica.simulation.__main__ import run
from replica.simulation.truth import Violation
from replica.simulation.world import SHAPES
from support.seeds import seeds

# Found: a first leader that nobody followed could never vote again (2048), a leader that was the
# only voter and was to be replaced refused appends for ever (44), a session whose process was gone.
KNOWN = (44, 1623, 2048)
# A broken rule, and a seed that brings it out.
FOUND_BY = {
    "no_fence": 151,
    "elect_first": 26,
    "elect_longest": 58,
    "small_election": 20,
    "no_epoch_record": 1,
    "truncate_to_committed": 5,
    "no_truncation": 1,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(4, KNOWN))
def test_logs_are_equal_and_nothing_is_lost_taken_back_or_read_too_early(
    seed: int, shape: str
) -> None:
    run(seed, shape)


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_rule_that_is_broken_is_found(bug: str) -> None:
    with pytest.raises((Violation, ValueError, AssertionError)):
        run(FOUND_BY[bug], bug=bug)


@pytest.mark.soak
def test_ten_thousand_runs() -> None:
    for seed in range(1, 10_001):
        run(seed)
