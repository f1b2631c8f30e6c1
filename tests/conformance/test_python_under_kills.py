"""RocketMQ's Python client while processes are killed: the short half of `make gateway-faults`.

It comes from its registry, so a machine without one skips this and says so.
"""

from pathlib import Path

import pytest

from bench.compare.programs import NotHere
from conformance.killing.conducting import run
from conformance.languages import python
from support.seeds import seeds


@pytest.mark.soak
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("seed", seeds(1))
def test_the_python_client_goes_on_when_each_process_is_killed(
    copies: int, seed: int, tmp_path: Path
) -> None:
    try:
        client = python()
    except NotHere as reason:
        pytest.skip(f"RocketMQ's Python client cannot be had: {reason}")
    (finding,) = run([client], tmp_path, copies=copies, kills=1, seed=seed)
    assert finding.broken == []
    # Something was there to go wrong.
    assert finding.kills.total() == 4
    assert finding.figures["settled"] > 0
    assert finding.figures["again"] > 0
