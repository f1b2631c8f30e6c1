"""Deadlines of calls: one timer for all calls of a connection.

Most calls end long before their deadline. One timer per call would cost more CPU than the call.
"""

import asyncio
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

# Deadlines of ended calls are removed if there are more than this number and the open calls.
ENDED_MAX = 256


class Deadlines:
    """Ends the calls of one connection at their deadlines.

    Args:
        calls: open calls by stream number; at its deadline, `overdue` of the call is called.
        loop: event loop of the connection.
    """

    __slots__ = ("_calls", "_heap", "_loop", "_purge_at", "_timer")

    def __init__(self, calls: Mapping[int, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._loop = loop
        # Stream numbers, not calls: an answer must not be kept until its deadline.
        self._heap: list[tuple[float, int]] = []
        self._purge_at = ENDED_MAX
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: float, stream: int) -> None:
        """Set the deadline of a call, by the event loop's clock."""
        heap = self._heap
        heappush(heap, (deadline, stream))
        if self._timer is None or heap[0][0] < self._timer.when():
            self._set_timer()
        if len(heap) > self._purge_at:
            heap[:] = [each for each in heap if each[1] in self._calls]
            heapify(heap)
            self._purge_at = 2 * len(heap) + ENDED_MAX

    def stop(self) -> None:
        """Stop the timer; no further call is ended."""
        self._heap.clear()
        self._calls = {}
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._end_overdue)

    def _end_overdue(self) -> None:
        self._timer = None
        heap, now = self._heap, self._loop.time()
        while heap and (heap[0][0] <= now or heap[0][1] not in self._calls):
            _, stream = heappop(heap)
            call = self._calls.get(stream)
            if call is not None:
                call.overdue()
        if heap and self._timer is None:
            self._set_timer()
