"""Indexing shares the processor with other work."""

import pytest

from rockoon_broker.index.follower import (
    BUSY_PAUSE_SECONDS_MAX,
    BUSY_SHARE_MAX,
    FAR_BEHIND_BYTES,
    LITTLE_PAUSE_SECONDS,
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    POLL_SECONDS,
    pause_seconds,
    piece_bytes,
)

FULL = 1 / BUSY_SHARE_MAX - 1


@pytest.mark.parametrize(
    ("work", "processor", "behind", "busy", "asked", "pause"),
    [
        (0.001, 0.001, 0.0, 0.0, False, POLL_SECONDS),
        (0.001, 0.001, 0.0, 1.0, True, POLL_SECONDS),
        (0.001, 0.001, 0.1, 1.0, True, 0.0),
        # Less than a piece waits for more, also if the processor is free.
        (0.001, 0.001, 0.01, 0.1, False, LITTLE_PAUSE_SECONDS),
        (0.5, 0.1, 0.01, 0.9, False, LITTLE_PAUSE_SECONDS),
        (0.001, 0.001, 0.01, 0.1, True, 0.0),
        # The processor is free: half of the time, or more when far behind.
        (0.001, 0.001, 0.02, 0.1, False, 0.001),
        (0.001, 0.001, 7.0, 0.1, False, 0.001 * FULL),
        # The broker needs it for other work.
        (0.001, 0.001, 0.02, 0.9, False, 0.024),
        (0.001, 0.001, 0.25, 0.9, False, 0.003),
        (0.001, 0.001, 7.0, 0.9, False, 0.001 * FULL),
        # Other processes need it.
        (0.004, 0.001, 0.02, 0.1, False, 0.096),
        (10.0, 10.0, 0.02, 0.9, False, BUSY_PAUSE_SECONDS_MAX),
    ],
)
def test_the_pause_follows_from_how_scarce_the_processor_is_and_how_far_behind_the_index(
    work: float, processor: float, behind: float, busy: float, asked: bool, pause: float
) -> None:
    found = pause_seconds(
        work,
        processor_seconds=processor,
        busy_ratio=busy,
        behind_bytes=int(behind * FAR_BEHIND_BYTES),
        somebody_waits=asked,
    )
    assert found == pytest.approx(pause, rel=1e-6)


@pytest.mark.parametrize(
    ("behind", "size"),
    [
        (0.0, PIECE_BYTES_MIN),
        (0.1, PIECE_BYTES_MIN),
        (0.5, PIECE_BYTES_MAX // 2),
        (1.0, PIECE_BYTES_MAX),
        (70.0, PIECE_BYTES_MAX),
    ],
)
def test_pieces_grow_with_what_the_index_is_behind_by(behind: float, size: int) -> None:
    assert piece_bytes(int(behind * FAR_BEHIND_BYTES)) == size
