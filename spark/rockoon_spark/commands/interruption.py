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


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Within the block a Ctrl-C is an exception and nothing else, and so is what it ends in.

    PySpark's own handler calls Java in the midst of another call, and tells of both.

    Raises:
        KeyboardInterrupt: on Ctrl-C, also where another error came of it.
    """
    if not _has_signals():
        yield
        return
    interrupts: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        # What is under way breaks off, and would be logged as a failure.
        logging.disable(logging.CRITICAL)
        interrupts.append(number)
        raise KeyboardInterrupt

    # Not put back: what a second Ctrl-C meets on the way out is the same.
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        # On its way out of a call that broke off PySpark calls Java once more, which may fail.
        if interrupts:
            raise KeyboardInterrupt from error
        raise


def _has_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
