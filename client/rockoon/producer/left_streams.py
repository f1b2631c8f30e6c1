"""Streams to processes that another one has replaced, such as a log's former leader.

A leader that hands over has answered for all that it has stored before the routes name the next
one; but the routes may be heard first. So its last answers are waited for: what is sent again
instead is stored twice.
"""

import asyncio

from rockoon.producer.append_stream import AppendStream

# Looks, not seconds: a program that did not run meanwhile finds the answers before it gives up.
_LOOKS_MAX = 2


class LeftStreams:
    """Those that have not ended yet; each does within LOOKS_MAX looks."""

    def __init__(self) -> None:
        # Each one's task, and looks since it was left.
        self._left: dict[AppendStream, tuple[asyncio.Task[None], int]] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        return [task for task, _ in self._left.values()]

    def add(self, stream: AppendStream, task: "asyncio.Task[None]") -> None:
        """Send nothing more on a stream, and hear what it answers still."""
        self._left[stream] = task, 0
        stream.leave()

    def look(self) -> None:
        """Forget those that have ended, and interrupt those that take too long."""
        for stream, (task, looks) in list(self._left.items()):
            if task.done():
                del self._left[stream]
                continue
            self._left[stream] = task, looks + 1
            if looks + 1 >= _LOOKS_MAX:
                stream.interrupt()
