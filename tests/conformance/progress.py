"""Progress of a run: a line for each scenario that begins or ends, and the end of all by Ctrl-C."""

import threading
import time
from typing import Protocol


class Killable(Protocol):
    """A client process, or a server."""

    def kill(self) -> None:
        """Kill the process."""
        ...


class Stopped(Exception):
    """The run was interrupted."""


class Progress:
    """Counts the scenarios of one run, which are played by several threads.

    Args:
        total: scenarios of all targets and languages.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._telling = threading.Lock()
        self._stopped = threading.Event()
        self._running: set[Killable] = set()

    def say(self, text: str) -> None:
        """Print a line with the seconds since the run began."""
        with self._telling:
            print(f"{time.monotonic() - self._began:6.0f} s  {text}", flush=True)

    def begins(self, what: str) -> None:
        """A scenario begins.

        Raises:
            Stopped: the run was interrupted.
        """
        if self._stopped.is_set():
            raise Stopped
        self.say(f"{'':>{len(self._count())}}  begins            {what}")

    def ended(self, kind: str, seconds: float, what: str) -> None:
        """A scenario has ended."""
        with self._telling:
            self._done += 1
        self.say(f"{self._count()}  {kind:11}{seconds:5.1f} s  {what}")

    def _count(self) -> str:
        width = len(str(self._total))
        return f"{self._done:{width}}/{self._total}"

    def add(self, each: Killable) -> None:
        """A client or a server is to be killed if the run is interrupted."""
        with self._telling:
            self._running.add(each)
        if self._stopped.is_set():
            each.kill()

    def remove(self, each: Killable) -> None:
        """A client or a server has ended."""
        with self._telling:
            self._running.discard(each)

    def stop(self) -> None:
        """Interrupt: no scenario begins, and those that run fail since their clients are killed."""
        self._stopped.set()
        with self._telling:
            running = list(self._running)
        for each in running:
            each.kill()
