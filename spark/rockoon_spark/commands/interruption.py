"""Handling of Ctrl-C: deferred while Spark starts, later it ends the job with one message."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Defer a Ctrl-C to the end of the block; a second Ctrl-C is handled immediately.

    If Spark were interrupted while it starts, its Java process would keep running.
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
    """Within the block, a Ctrl-C raises only KeyboardInterrupt.

    PySpark's own handler calls Java during another call, and both calls log errors.

    Raises:
        KeyboardInterrupt: on Ctrl-C, also if the interrupted call fails with another error.
    """
    if not _has_signals():
        yield
        return
    interrupts: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        # The interrupted call would log its end as a failure.
        logging.disable(logging.CRITICAL)
        interrupts.append(number)
        raise KeyboardInterrupt

    # Not restored, so that a second Ctrl-C during the exit is handled in the same way.
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        # After an interrupted call PySpark calls Java once more, which may fail.
        if interrupts:
            raise KeyboardInterrupt from error
        raise


def _has_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
