"""How users come: Locust asks a shape every second how many there are to be."""

import math

from locust import LoadTestShape

SPAWNED_PER_SECOND = 100.0
STEPS = 4
RAMP_SHARE = 0.75


class Shape(LoadTestShape):  # type: ignore[misc]
    """What all have in common.

    Args:
        users: when all are there.
        seconds: after which the run ends.
    """

    abstract = True

    def __init__(self, users: int, seconds: float) -> None:
        super().__init__()
        self._users = users
        self._seconds = seconds
        self._is_stopped = False

    def stop(self) -> None:
        """The run ends now, as it would at its end."""
        self._is_stopped = True

    def tick(self) -> tuple[int, float] | None:
        now_seconds = self.get_run_time()
        if self._is_stopped or now_seconds >= self._seconds:
            return None
        return self.users_at(now_seconds / self._seconds), SPAWNED_PER_SECOND

    def users_at(self, share: float) -> int:
        """How many there are when a share of the time, 0 to 1, is over."""
        raise NotImplementedError


class Soak(Shape):
    """All at once, until the end: for minutes or days."""

    def users_at(self, share: float) -> int:  # noqa: ARG002
        return self._users


class Ramp(Shape):
    """One after the other for three quarters of the time: where does latency begin to grow?"""

    def users_at(self, share: float) -> int:
        return max(math.ceil(self._users * min(share / RAMP_SHARE, 1)), 1)


class Step(Shape):
    """A quarter, half, three quarters, all of them: a latency for each."""

    def users_at(self, share: float) -> int:
        return max(math.ceil(self._users * (int(share * STEPS) + 1) / STEPS), 1)


SHAPES: dict[str, type[Shape]] = {"soak": Soak, "ramp": Ramp, "step": Step}
