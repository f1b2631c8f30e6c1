"""Limits repeated log lines: a loop that fails many times a second must not fill the disk.

Invariants
- The first lines of an interval pass, and a later line states how many were suppressed.
- A line with other arguments passes, even if its template was logged often, up to LIKE_MAX.
- Memory is bounded: TEMPLATES_MAX templates with LIKE_MAX checksums each.
"""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

INTERVAL_SECONDS = 60.0
# Per interval: equal lines, and lines that only have the template in common.
SAME_MAX = 5
LIKE_MAX = 50
TEMPLATES_MAX = 500
_SUMMARY = "rockoon_suppressed"

_Template = tuple[str, int, str]


class _Interval:
    """Counters of one log template in one interval."""

    def __init__(self, began: float) -> None:
        self.began = began
        # Number of lines, by the hash of their text.
        self.counts: dict[int, int] = {}
        self.suppressed = 0
        # The last suppressed line.
        self.text = ""

    def passes(self, text: str) -> bool:
        identity = hash(text)
        count = self.counts.get(identity, 0)
        is_known = identity in self.counts
        if count < SAME_MAX and (is_known or len(self.counts) < LIKE_MAX):
            self.counts[identity] = count + 1
            return True
        self.suppressed += 1
        self.text = text
        return False


class RepeatFilter(logging.Filter):
    """Logging filter that suppresses repeated lines of a handler or logger.

    Args:
        emit: writes a line that states how many were suppressed; by default the line's own logger.
        reports_late: report suppressed lines at the end of an interval even if no line follows. A
            thread waits for that; without it the next line of any kind causes the report.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        emit: Callable[[logging.LogRecord], object] | None = None,
        *,
        reports_late: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._emit = emit or (lambda record: logging.getLogger(record.name).handle(record))
        self._reports_late = reports_late
        self._clock = clock
        # Loggers are used by any thread. Reentrant: the garbage collector may run a finalizer that
        # logs while the filter works.
        self._guard = threading.RLock()
        # Oldest first.
        self._windows: OrderedDict[_Template, _Interval] = OrderedDict()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a line may be logged; before, report the lines suppressed in ended
        intervals."""
        if hasattr(record, _SUMMARY) or record.levelno >= logging.CRITICAL:
            return True
        try:
            text = _text_of(record)
            template = (record.name, record.levelno, str(record.msg))
        except Exception:  # noqa: BLE001 - a line that cannot be formatted: its handler says so
            return True
        now = self._clock()
        with self._guard:
            reports = self._ended(now)
            window = self._windows.get(template)
            if window is None:
                window = self._windows[template] = _Interval(now)
                while len(self._windows) > TEMPLATES_MAX:
                    reports += _report(*self._windows.popitem(last=False))
            passes = window.passes(text)
            if not passes and self._reports_late:
                self._report_later()
        for report in reports:
            self._emit(report)
        return passes

    def report(self, *, all_of_them: bool = True) -> None:
        """Report suppressed lines now; by default also of intervals that have not ended."""
        with self._guard:
            self._timer = None
            reports = self._ended(float("inf") if all_of_them else self._clock())
            if self._reports_late and any(each.suppressed for each in self._windows.values()):
                self._report_later()
        for each in reports:
            self._emit(each)

    def forget(self) -> None:
        """Start new intervals, without a report."""
        with self._guard:
            self._windows.clear()

    def release_in_child(self) -> None:
        """Replace the lock in a forked child process; the thread that holds it exists only in the
        parent."""
        self._guard = threading.RLock()

    def _ended(self, now: float) -> list[logging.LogRecord]:
        reports: list[logging.LogRecord] = []
        while self._windows:
            template, window = next(iter(self._windows.items()))
            if now < window.began + INTERVAL_SECONDS:
                break
            del self._windows[template]
            reports += _report(template, window)
        return reports

    def _report_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(
                INTERVAL_SECONDS, self.report, kwargs={"all_of_them": False}
            )
            self._timer.daemon = True
            self._timer.start()


OF_LIBRARIES = RepeatFilter()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=OF_LIBRARIES.release_in_child)


def limited(logger: logging.Logger) -> logging.Logger:
    """Limit the repeated lines of a logger, for all of its handlers; return the logger."""
    logger.addFilter(OF_LIBRARIES)
    return logger


def _text_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f"\n{record.exc_info[1]!r}"
    return text


def _report(template: _Template, window: _Interval) -> list[logging.LogRecord]:
    """Return the log line that reports suppressed lines; empty if there were none."""
    if not window.suppressed:
        return []
    name, level, _ = template
    record = logging.makeLogRecord(
        {
            "name": name,
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": "%d more lines like this were suppressed within %.0f s: %s",
            "args": (window.suppressed, INTERVAL_SECONDS, window.text.partition("\n")[0]),
            _SUMMARY: window.suppressed,
        }
    )
    return [record]
