"""Waiting for effects of other processes."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Time limit of all waits in tests. It is so long that only a hanging program exceeds it, also if
# ten programs share a core; a passing test never needs so long. It is shorter than the settings of
# a minute or more that tests use to show that nothing waits for them.
DEADLINE_SECONDS = 55.0
LOOK_SECONDS = 0.002
LOOK_SECONDS_MAX = 0.02


def soon() -> float:
    """Return a deadline on `time.monotonic`'s clock."""
    return time.monotonic() + DEADLINE_SECONDS


def pauses() -> Iterator[float]:
    """Yield pauses between checks, in seconds. Pauses grow with the wait: checks without a pause
    would take processor time from the awaited program."""
    seconds = LOOK_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 1.1, LOOK_SECONDS_MAX)


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Check a condition until it is true.

    Raises:
        AssertionError: it is not true within DEADLINE_SECONDS.
    """
    deadline, between = soon(), pauses()
    while not holds():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        hold_up(next(between))


def hold_up(seconds: float) -> None:
    """Block this thread for a time, without use of the processor."""
    threading.Event().wait(seconds)


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"
