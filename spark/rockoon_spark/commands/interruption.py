"""Ctrl-C in a command: it waits while Spark starts, then ends the job, and says so once."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let a Ctrl-C wait for the end of the block; a second one does not wait.

    Spark interrupted while it starts would leave its Java process behind.
    """
    if not _has_signals():
        yield
        return
    former = signal.getsignal(signal.SIGINT)
    held: list[int] = []

    def hold(number: int, _: FrameType | None) -> None:
        held.append(number)
        signal.signal(signal.SIGINT, former)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if held:
        raise KeyboardInterrupt


def interrupt_plainly() -> None:
    """From now on a Ctrl-C is an exception and nothing else.

    PySpark's own handler calls Java in the midst of another call, and tells of both.
    """
    if _has_signals():
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # What is under way breaks off, and would be logged as a failure.
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt


def _has_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
