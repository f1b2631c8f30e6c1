"""Repeated log lines are suppressed and counted; no line with other arguments is lost."""

import gc
import io
import logging
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from rockoon_core.repeated_lines import (
    INTERVAL_SECONDS,
    LIKE_MAX,
    SAME_MAX,
    TEMPLATES_MAX,
    RepeatFilter,
    limited,
)
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS


class Log:
    """A logger with a filter, the lines behind it, and a clock."""

    def __init__(self, name: str) -> None:
        self.now = 0.0
        self.out = io.StringIO()
        self.handler = logging.StreamHandler(self.out)
        self.filter = RepeatFilter(self.handler.handle, clock=lambda: self.now)
        self.handler.addFilter(self.filter)
        self.logger = logging.getLogger(f"test.{name}")
        self.logger.propagate = False
        self.logger.setLevel(logging.DEBUG)
        self.logger.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(request.node.name)
    yield made
    made.logger.handlers.clear()


def test_a_line_that_is_repeated_24_times_a_second_is_counted(log: Log) -> None:
    for number in range(24 * 60):
        log.now = number / 24
        log.logger.warning("log %s: %s", "broker-a", "not the leader")
    assert log.lines == ["log broker-a: not the leader"] * SAME_MAX
    log.now = INTERVAL_SECONDS
    log.logger.info("another line")
    suppressed = 24 * 60 - SAME_MAX
    assert log.lines[SAME_MAX:] == [
        f"{suppressed} more lines like this were suppressed within 60 s: "
        "log broker-a: not the leader",
        "another line",
    ]
    # A new interval.
    log.logger.warning("log %s: %s", "broker-a", "not the leader")
    assert log.lines[-1] == "log broker-a: not the leader"


def test_a_line_with_other_arguments_passes_between_repeated_ones(log: Log) -> None:
    for _ in range(100):
        log.logger.error("%s failed: %s", "orders", "full")
    log.logger.error("%s failed: %s", "payments", "full")
    assert log.lines[-1] == "payments failed: full"
    for number in range(2 * LIKE_MAX):
        log.logger.error("%s failed: %s", f"topic-{number}", "full")
    assert len(log.lines) == SAME_MAX + LIKE_MAX - 1
    log.filter.report()
    assert log.lines[-1].startswith(f"{100 - SAME_MAX + LIKE_MAX + 2} more lines")
    assert log.lines[-1].endswith(f"topic-{2 * LIKE_MAX - 1} failed: full")


def test_other_exceptions_are_other_lines(log: Log) -> None:
    for number in range(20):
        try:
            raise ValueError(number % 2)
        except ValueError:
            log.logger.exception("a handler failed")
    assert log.out.getvalue().count("ValueError: 0") == SAME_MAX
    assert log.out.getvalue().count("ValueError: 1") == SAME_MAX


def test_critical_lines_and_lines_that_cannot_be_formatted_always_pass(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    for _ in range(50):
        log.logger.critical("the end")
    assert log.lines == ["the end"] * 50
    record = logging.LogRecord("n", logging.INFO, "", 0, "%d", ("no number",), None)
    assert all(log.filter.filter(record) for _ in range(50))


def test_memory_is_bounded_whatever_is_logged(log: Log) -> None:
    for number in range(3 * TEMPLATES_MAX):
        for _ in range(SAME_MAX + 1):
            log.logger.warning("line " + str(number))  # noqa: G003 - each its own template
    assert len(log.filter._windows) == TEMPLATES_MAX
    # Lines of evicted templates are counted too.
    log.filter.report()
    assert sum("1 more lines" in line for line in log.lines) == 3 * TEMPLATES_MAX


def test_suppressed_lines_are_reported_if_no_other_line_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rockoon_core.repeated_lines.INTERVAL_SECONDS", 0.05)
    now, is_emitted = 0.0, threading.Event()
    emitted: list[str] = []

    def emit(record: logging.LogRecord) -> None:
        emitted.append(record.getMessage())
        is_emitted.set()

    # The interval ends when the test says so, however long the thread of the timer waits.
    late = RepeatFilter(emit, reports_late=True, clock=lambda: now)
    record = logging.makeLogRecord({"name": "n", "levelno": logging.INFO, "msg": "again"})
    assert sum(late.filter(record) for _ in range(100)) == SAME_MAX
    now = 0.05
    assert is_emitted.wait(DEADLINE_SECONDS)
    suppressed = 100 - SAME_MAX
    assert emitted == [f"{suppressed} more lines like this were suppressed within 0 s: again"]


def test_loggers_of_a_library_are_limited_without_handlers_of_their_own() -> None:
    logger = limited(logging.getLogger("test.library"))
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    logger.propagate = False
    for _ in range(100):
        logger.warning("cannot be pulled now")
    assert out.getvalue().count("\n") == SAME_MAX
    logger.handlers.clear()
    gc.collect()


@pytest.mark.parametrize("seed", seeds(20))
def test_each_line_is_written_or_counted(seed: int, log: Log) -> None:
    chance = random.Random(seed)
    written: Counter[str] = Counter()
    for _ in range(chance.randrange(2000)):
        log.now += chance.choice((0.0, 0.01, 1.0, 30.0))
        level = chance.choice((logging.INFO, logging.ERROR))
        text = chance.choice(("%s began", "%s ended"))
        log.logger.log(level, text, chance.randrange(chance.choice((2, 200))))
        written[text[3:]] += 1
    log.filter.report()
    found: Counter[str] = Counter()
    for line in log.lines:
        count = int(line.split()[0]) if "suppressed" in line else 1
        found[line.split()[-1]] += count
    assert found == written


class Noisy(str):
    """A text whose hash logs, as a finalizer may that the garbage collector runs at any moment."""

    logger: logging.Logger
    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        self.logger.warning("a finalizer logs")
        return str.__hash__(self)


def test_a_line_that_is_logged_while_the_filter_works_does_not_block(log: Log) -> None:
    Noisy.logger = log.logger
    worker = threading.Thread(target=log.logger.warning, args=(Noisy("a line"),), daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive()
    assert {"a finalizer logs", "a line"} <= set(log.lines)


def test_a_forked_child_logs_although_a_thread_of_its_parent_held_the_lock() -> None:
    """A separate process: only the thread that forks exists in the child."""
    program = """
import logging, os, signal, threading
from rockoon_core.repeated_lines import OF_LIBRARIES, limited
log = limited(logging.getLogger("forked"))
held, end = threading.Event(), threading.Event()

def hold():
    with OF_LIBRARIES._guard:
        held.set()
        end.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if (child := os.fork()) == 0:
    signal.alarm(5)
    log.warning("from the child")
    os._exit(0)
_, status = os.waitpid(child, 0)
end.set()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "from the child\n")
