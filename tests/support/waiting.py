"""Waiting for what another process does."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# How long anything that must happen is waited for, here and in all tests: so long that only what
# hangs exceeds it, also where ten programs share a core; a test that passes never takes so long.
# It lies below the minute or more that settings bear where a test shows that nobody waits for them.
DEADLINE_SECONDS = 55.0
LOOK_SECONDS = 0.002
LOOK_SECONDS_MAX = 0.02


def soon() -> float:
    """A deadline on `time.monotonic`'s clock."""
    return time.monotonic() + DEADLINE_SECONDS


def pauses() -> Iterator[float]:
    """Seconds between looks. What takes long is looked at less often: whoever looks without a pause
    takes the processor from what it waits for."""
    seconds = LOOK_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 1.1, LOOK_SECONDS_MAX)


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Look at a condition until it holds.

    Raises:
        AssertionError: it does not within DEADLINE_SECONDS.
    """
    deadline, between = soon(), pauses()
    while not holds():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        hold_up(next(between))


def hold_up(seconds: float) -> None:
    """Let this thread do nothing else for a while, without taking a processor from others."""
    threading.Event().wait(seconds)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has buried yet counts as ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"
