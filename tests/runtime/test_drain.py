"""Time for which a stopping service accepts calls, and the rest of its time limit then."""

import asyncio

from rockoon_runtime.wire import Drain, DrainSettings
from support.waiting import DEADLINE_SECONDS

LONG_AGO = -1e9
# Allowance for another clock and a busy machine.
TOLERANCE_SECONDS = 0.005


async def seconds_until_quiet(
    settings: DrainSettings, last_call: float | None, quiet_seconds: float = 60.0
) -> float:
    """Return seconds of its wait for the last call; None for calls that never end."""
    now = asyncio.get_running_loop().time
    drain, began = Drain(settings, now), now()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await drain.wait_quiet(lambda: now() if last_call is None else last_call, quiet_seconds)
    return now() - began


async def test_a_service_that_nobody_calls_leaves_at_once() -> None:
    settings = DrainSettings(drain_seconds_max=600)
    assert await seconds_until_quiet(settings, LONG_AGO) < 10


async def test_a_service_that_was_called_just_now_waits_for_who_has_not_heard() -> None:
    settings = DrainSettings(drain_seconds_max=600)
    now = asyncio.get_running_loop().time()
    assert await seconds_until_quiet(settings, now, 0.05) >= 0.05 - TOLERANCE_SECONDS


async def test_calls_that_never_cease_are_taken_for_half_of_the_time_and_half_is_left() -> None:
    settings = DrainSettings(drain_seconds_max=0.4)
    assert await seconds_until_quiet(settings, None) >= 0.2 - TOLERANCE_SECONDS


async def test_calls_in_flight_have_what_is_left_of_the_time() -> None:
    times = iter((100.0, 103.0, 107.0))
    drain = Drain(DrainSettings(drain_seconds_max=5.0), lambda: next(times))
    assert drain.seconds_left == 2.0
    assert drain.seconds_left == 0.0
