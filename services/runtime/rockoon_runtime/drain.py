"""Drain: shutdown settings, and the wait until clients have stopped calling."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rockoon_runtime.settings import setting

# After leaving the routes, a service accepts calls until none has arrived for this time.
QUIET_SECONDS = 0.1


# Without slots: a class can inherit from one class with slots only, and services inherit several.
@dataclass(frozen=True, kw_only=True)
class DrainSettings:
    """The shutdown settings of a service; a base class of its settings."""

    drain_seconds_max: float = setting(
        5.0,
        "maximum time of an orderly shutdown, from the signal on; calls that run longer are cut "
        "off, seconds",
        minimum=0,
        maximum=3600,
    )


class Drain:
    """The time limit of an orderly shutdown; starts when the object is created.

    Args:
        settings: the limit.
        clock: monotonic seconds.
    """

    def __init__(self, settings: DrainSettings, clock: Callable[[], float]) -> None:
        self._began = clock()
        self._clock = clock
        self._settings = settings

    @property
    def seconds_left(self) -> float:
        """Time until running calls are cut off."""
        return max(self._began + self._settings.drain_seconds_max - self._clock(), 0.0)

    async def wait_quiet(self, last_call: Callable[[], float], quiet_seconds: float) -> None:
        """Wait until clients have stopped calling, at most half of the drain time.

        Args:
            last_call: returns the time of the last call, on the same clock.
            quiet_seconds: required time without a call.
        """
        # The other half is reserved for running calls.
        latest = self._began + self._settings.drain_seconds_max / 2
        while True:
            pause = min(last_call() + quiet_seconds, latest) - self._clock()
            if pause <= 0:
                return
            await asyncio.sleep(pause)
