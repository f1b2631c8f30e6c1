"""Counts the calls of a piece of code, by function."""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count calls in this thread: of Python functions by "file:name", of other functions by
    name."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            counts[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1
        elif event == "c_call":
            counts[argument.__qualname__] += 1

    # A garbage collection in between would call finalisers of other tests.
    gc.disable()
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        gc.enable()
        counts.pop("setprofile", None)


def of_telemetry(counts: Counter[str]) -> dict[str, int]:
    """Return calls of OpenTelemetry, and of the types of traces and metrics."""
    parts = ("opentelemetry", "/rockoon/trac", "/telemetry/metrics", "/rockoon_runtime/calls")
    return {name: count for name, count in counts.items() if any(part in name for part in parts)}
