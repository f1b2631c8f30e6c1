"""Values of each axis for a full run, a quick run, and a test."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Axes:
    """Values of each axis; predictions are tested at the last value of `queues` and `groups`."""

    seconds: float = 4.0
    """Duration of the measurement of each rate."""
    producers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    body_bytes: tuple[int, ...] = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20)
    offered: tuple[int, ...] = (100, 1_000, 5_000, 10_000, 20_000, 40_000, 80_000)
    readers: tuple[int, ...] = (1, 2, 4, 8, 16)
    members: tuple[int, ...] = (1, 4, 16, 64)
    waiting_pulls: tuple[int, ...] = (100, 1_000, 5_000)
    queues: tuple[int, ...] = (1_000, 5_000, 10_000, 50_000)
    topics: tuple[int, ...] = (500, 1_000, 2_000, 4_000)
    groups: tuple[int, ...] = (500, 1_000, 2_500, 5_000, 10_000)
    heartbeat_members: tuple[int, ...] = (1, 10, 100, 500)
    watchers: tuple[int, ...] = (100, 500, 1_000, 2_000)
    route_changes: int = 5


FULL = Axes()
MORE_QUEUES = replace(FULL, queues=(*FULL.queues, 100_000))
QUICK = Axes(
    seconds=0.7,
    producers=(1, 8),
    body_bytes=(100, 10 << 10, 1 << 20),
    offered=(500, 5_000),
    readers=(1, 4),
    members=(1, 8),
    waiting_pulls=(100, 500),
    queues=(100, 400, 1_200),
    topics=(50, 100, 200),
    groups=(50, 100, 200),
    heartbeat_members=(1, 20),
    watchers=(50, 150),
    route_changes=2,
)
