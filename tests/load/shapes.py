"""Schedules of users: Locust asks a shape every second for the number of users."""

import math

from locust import LoadTestShape

SPAWNED_PER_SECOND = 100.0
STEPS = 4
RAMP_SHARE = 0.75


class Shape(LoadTestShape):  # type: ignore[misc]
    """Common part of all shapes.

    Args:
        users: number of users in the end.
        seconds: duration of the run.
    """

    abstract = True

    def __init__(self, users: int, seconds: float) -> None:
        super().__init__()
        self._users = users
        self._seconds = seconds
        self._is_stopped = False

    def stop(self) -> None:
        """End the run now, as at its normal end."""
        self._is_stopped = True

    def tick(self) -> tuple[int, float] | None:
        now_seconds = self.get_run_time()
        if self._is_stopped or now_seconds >= self._seconds:
            return None
        return self.users_at(now_seconds / self._seconds), SPAWNED_PER_SECOND

    def users_at(self, share: float) -> int:
        """Return the number of users when a share of the time, 0 to 1, has passed."""
        raise NotImplementedError


class Soak(Shape):
    """All at once, until the end: for minutes or days."""

    def users_at(self, share: float) -> int:  # noqa: ARG002
        return self._users


class Ramp(Shape):
    """One after another for three quarters of the time: shows where latency begins to grow."""

    def users_at(self, share: float) -> int:
        return max(math.ceil(self._users * min(share / RAMP_SHARE, 1)), 1)


class Step(Shape):
    """A quarter, half, three quarters, all of them: a latency for each."""

    def users_at(self, share: float) -> int:
        return max(math.ceil(self._users * (int(share * STEPS) + 1) / STEPS), 1)


SHAPES: dict[str, type[Shape]] = {"soak": Soak, "ramp": Ramp, "step": Step}
