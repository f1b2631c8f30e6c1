"""Holds the first process that reaches a step of a Spark job; Python runs this module first.

HELD_STEP names the step, `MODULE:NAME@WHEN`, where WHEN is `before` or `after` a call of the
function, or `amid` its iterator, after the first item. HELD_AT is a directory with two FIFOs: the
process writes its id to `held`, and continues when `release` is opened for writing. The processes
of a job share the directory, and only the first of them is held.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# Spark puts a copy of PySpark before the installed one: an archive, which each process compiles.
sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

HELD_SECONDS_MAX = 300


def hold(at: str) -> None:
    try:
        os.close(os.open(f"{at}/reached", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    # If the test process is killed, nothing else ends this process.
    signal.alarm(HELD_SECONDS_MAX)
    with open(f"{at}/held", "w") as held:
        held.write(str(os.getpid()))
    with open(f"{at}/release"):
        signal.alarm(0)


def held(function: Callable[..., Any], when: str, at: str) -> Callable[..., Any]:
    """Return a function that holds the process at a step of another function."""

    @functools.wraps(function)
    def amid(*arguments: Any, **named: Any) -> Iterator[Any]:
        for item in function(*arguments, **named):
            yield item
            hold(at)

    @functools.wraps(function)
    def around(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            hold(at)
        result = function(*arguments, **named)
        if when == "after":
            hold(at)
        return result

    return amid if when == "amid" else around


class StepFinder(importlib.abc.MetaPathFinder):
    """Replaces the function of a step when its module is imported."""

    def __init__(self, step: str, at: str) -> None:
        self._place, _, self._when = step.partition("@")
        self._module, _, self._name = self._place.partition(":")
        self._at = at
        self._is_searching = False

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            owner, _, attribute = self._name.rpartition(".")
            place = getattr(module, owner) if owner else module
            function = getattr(place, attribute)
            setattr(place, attribute, held(function, self._when, self._at))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if step := os.environ.get("HELD_STEP"):
    sys.meta_path.insert(0, StepFinder(step, os.environ["HELD_AT"]))
