"""Drain: the settings, and when a service's callers have stopped calling."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rockoon_runtime.settings import setting

# A service that has left the routes still takes calls until none has come for so long.
QUIET_SECONDS = 0.1


# Without slots: a class can inherit from one class with slots only, and there are other parts.
@dataclass(frozen=True, kw_only=True)
class DrainSettings:
    """The part of a service's settings that is about its end; to be inherited."""

    drain_seconds_max: float = setting(
        5.0,
        "how long an orderly end may take from the signal on; calls that run longer are cut off, "
        "seconds",
        minimum=0,
        maximum=3600,
    )


class Drain:
    """The time an orderly end may take, from the moment it is made.

    Args:
        settings: how long.
        clock: monotonic seconds.
    """

    def __init__(self, settings: DrainSettings, clock: Callable[[], float]) -> None:
        self._began = clock()
        self._clock = clock
        self._settings = settings

    @property
    def seconds_left(self) -> float:
        """Until calls that still run are cut off."""
        return max(self._began + self._settings.drain_seconds_max - self._clock(), 0.0)

    async def wait_quiet(self, last_call: Callable[[], float], quiet_seconds: float) -> None:
        """Wait until callers have learnt that the service leaves; not for ever.

        Args:
            last_call: when something was last asked of it, on the same clock.
            quiet_seconds: how long nobody must have called.
        """
        # Half of it stays for calls that run, whatever clients still ask.
        latest = self._began + self._settings.drain_seconds_max / 2
        while True:
            pause = min(last_call() + quiet_seconds, latest) - self._clock()
            if pause <= 0:
                return
            await asyncio.sleep(pause)
