"""The offset service in a simulated life: random operations in any order, checked at every step.

    ROCKOON_TEST_SEEDS=1234 .venv/bin/python -m pytest tests/offset/test_simulation.py

repeats the life of a failed seed.
"""

import logging
from pathlib import Path

import pytest
from offset.simulated.simulation import Simulation

from support.seeds import seeds

SHORT_OPERATIONS = 20_000
SOAK_OPERATIONS = 1_000_000


def live(seed: int, operations: int, directory: Path) -> None:
    # Its warnings are about the simulated faults.
    logging.disable(logging.ERROR)
    try:
        simulation = Simulation(seed, directory)
        try:
            simulation.run(operations)
        except BaseException as failure:
            failure.add_note(f"operation {simulation.operations}")
            raise
    finally:
        logging.disable(logging.NOTSET)


# The known seed: a group is created again while a broker's reply is under way.
@pytest.mark.parametrize("seed", seeds(1, known=(586600295,)))
def test_whatever_happens_no_place_is_lost_and_no_queue_has_two_owners(
    tmp_path: Path, seed: int
) -> None:
    live(seed, SHORT_OPERATIONS, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_a_million_operations_lose_no_place_and_make_no_second_owner(
    tmp_path: Path, seed: int
) -> None:
    live(seed, SOAK_OPERATIONS, tmp_path)
