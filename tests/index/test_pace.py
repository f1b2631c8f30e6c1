"""How indexing shares the processor."""

import pytest

from rockoon_broker.index.pace import BUSY_PAUSE_SECONDS_MAX, POLL_SECONDS, pause_seconds


@pytest.mark.parametrize(
    ("work", "processor", "behind", "busy", "asked", "pause"),
    [
        (0.001, 0.001, False, 0.0, False, POLL_SECONDS),
        (0.001, 0.001, False, 1.0, True, POLL_SECONDS),
        (0.001, 0.001, True, 1.0, True, 0.0),
        (0.001, 0.001, True, 0.1, False, 0.001),
        (0.001, 0.001, True, 0.9, False, 0.024),
        (0.004, 0.001, True, 0.1, False, 0.096),
        (10.0, 10.0, True, 0.9, False, BUSY_PAUSE_SECONDS_MAX),
    ],
)
def test_the_pause_follows_from_how_scarce_the_processor_is(
    work: float, processor: float, behind: bool, busy: float, asked: bool, pause: float
) -> None:
    found = pause_seconds(
        work, processor_seconds=processor, busy_ratio=busy, behind=behind, somebody_waits=asked
    )
    assert found == pytest.approx(pause)
