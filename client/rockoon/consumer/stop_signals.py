"""Stop signals: SIGINT and SIGTERM end `run()` of consumers after a drain.

The first signal ends each `run()` of the event loop. Later signals have their former effect, so a
second Ctrl-C interrupts the drain.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Loop → functions to call at a signal. Signal handlers are installed while a loop has an entry.
_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, "_LoopSignals"] = WeakKeyDictionary()


class _LoopSignals:
    """The handlers of one event loop, and the functions that they call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.functions: list[Callable[[], None]] = []
        self._former: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        for number in STOP_SIGNALS:
            former = signal.getsignal(number)
            self._loop.add_signal_handler(number, self._on_signal)
            self._former[number] = former

    def restore(self) -> None:
        for number, former in self._former.items():
            self._loop.remove_signal_handler(number)
            # None: a handler that was not installed from Python, which cannot be restored.
            if former is not None:
                signal.signal(number, former)
        self._former.clear()

    def _on_signal(self) -> None:
        self.restore()
        for each in list(self.functions):
            each()


@contextmanager
def loop_signals(on_stop: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` in the running loop at SIGINT or SIGTERM.

    Signals reach Python in the main thread only: in a loop of another thread nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = _listeners.setdefault(loop, _LoopSignals(loop))
    if not signals.functions:
        signals.install()
    signals.functions.append(on_stop)
    try:
        yield
    finally:
        signals.functions.remove(on_stop)
        if not signals.functions:
            signals.restore()
            # The value refers to its key, the loop, and would keep it alive.
            del _listeners[loop]


@contextmanager
def thread_signals(on_stop: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` at SIGINT or SIGTERM while the main thread waits outside of an event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)
        former.clear()

    def handle(_number: int, _frame: object) -> None:
        restore()
        on_stop()

    for number in STOP_SIGNALS:
        if (handler := signal.getsignal(number)) is not None:
            former[number] = handler
            signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
