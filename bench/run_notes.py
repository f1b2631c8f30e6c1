"""Notes of a benchmark run: the machine's state in each part, and failed measures."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.compare.__main__ import told, used_cpu_seconds
from bench.compare.figures import Round
from bench.compare.page import brief


class RunNotes:
    """Records the state of the machine, and failed measures.

    Args:
        failures: exceptions that end one measure, not the run.
    """

    def __init__(self, failures: tuple[type[Exception], ...]) -> None:
        self._failures = failures
        self._circumstances: dict[str, Round] = {}
        self._missing: dict[str, str] = {}

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Context manager that records load and other programs' CPU in a part; the part's processes
        must end in this block."""
        load, began, before = os.getloadavg()[0], time.monotonic(), used_cpu_seconds()
        yield
        now, seconds = used_cpu_seconds(), time.monotonic() - began
        others = max(now[0] - before[0] - (now[1] - before[1]), 0.0) / seconds
        self._circumstances[name] = Round(load, others, seconds)

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Context manager that records a failure of its block or its tasks; the run then
        continues."""
        try:
            yield
        except Exception as failures:
            failure: BaseException = failures
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
            if not isinstance(failure, self._failures):
                raise
            self.miss(name, str(failure))

    def miss(self, name: str, reason: str) -> None:
        """Record and print the failure of a measure."""
        self._missing[name] = " ".join(reason.split())
        told(f"  not measured: {name}: {self._missing[name]}")

    def machine_table(self) -> str:
        """Return a table of the machine's state with one line per part."""
        lines = ["| part | load before | cores that others used | seconds |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {each.load:.1f} | {each.others_cores:.1f} | {each.seconds:.0f} |"
            for name, each in self._circumstances.items()
        ]
        return "\n".join(lines)

    def missing(self) -> list[str]:
        """Return a paragraph for each failed measure."""
        lines = [f"- {name}: {brief(why)}" for name, why in self._missing.items()]
        return ["Not measured:", "\n".join(lines)] if lines else []
