"""Long work on the event loop, in slices between which other calls are answered."""

import asyncio
import time

SLICE_SECONDS = 0.01


class LoopShare:
    """Gives the event loop back when a slice of time is used up."""

    def __init__(self) -> None:
        self._end_seconds = time.monotonic() + SLICE_SECONDS

    async def pause_when_used(self) -> None:
        """To be called between two steps of the work."""
        if time.monotonic() >= self._end_seconds:
            await asyncio.sleep(0)
            self._end_seconds = time.monotonic() + SLICE_SECONDS
