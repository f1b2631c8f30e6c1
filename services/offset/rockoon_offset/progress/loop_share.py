"""Long work on the event loop, in slices of time that let other calls run."""

import asyncio
import time

SLICE_SECONDS = 0.01


class LoopShare:
    """Yields to the event loop when a slice of time is used up."""

    def __init__(self) -> None:
        self._end_seconds = time.monotonic() + SLICE_SECONDS

    async def pause_when_used(self) -> None:
        """Yield if the slice is used up. Call it between steps of the work."""
        if time.monotonic() >= self._end_seconds:
            await asyncio.sleep(0)
            self._end_seconds = time.monotonic() + SLICE_SECONDS
