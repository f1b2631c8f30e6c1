"""The rules as a model, with all that the protocol may grow to: elastic sets, all copies, async."""

import pytest

from replica.model.__main__ import SHAPES, run
from replica.model.violation import Violation
from support.seeds import seeds

# A broken rule, and a seed that brings it out.
FOUND_BY: dict[str, int] = {"no_fence": 4, "volatile_promise": 122}


@pytest.mark.parametrize("seed", seeds(2 * len(SHAPES)))
def test_what_was_acknowledged_is_there_and_it_works_again(seed: int) -> None:
    assert run(seed)[1] is not False


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_rule_that_is_broken_is_found(bug: str) -> None:
    with pytest.raises(Violation):
        run(FOUND_BY[bug], bug)


@pytest.mark.soak
def test_five_thousand_runs() -> None:
    for seed in range(1, 5_001):
        assert run(seed)[1] is not False, seed
