"""Functions of test modules that run in new processes, which can be killed.

A process of Python loads PyArrow and a test module in half a second. This program loads a module
once and forks for each call: `python -m support.forks` reads one JSON job a line and answers with
the exit status.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rockoon.local.node_maker import THREADS


class Forks(AbstractContextManager["Forks"]):
    """The program, and a way to call functions with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # pytest names modules relative to the root or to `tests`.
            env=os.environ | THREADS | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )

    def call(self, function: Callable[..., object], *arguments: str | int) -> int:
        """Call a function of a module in a new process; returns the process's exit status, a
        negative one if a signal ended the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = (function.__module__, function.__qualname__, arguments)
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()


def call_and_exit(function: Callable[..., object], arguments: list[Any]) -> None:
    """Call a function in this fork, which ends then."""
    status = 1
    try:
        function(*arguments)
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - the fork's root
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    for line in sys.stdin:
        module, name, arguments = json.loads(line)
        function = getattr(importlib.import_module(module), name)
        # A collection in a fork would copy the pages of all modules.
        gc.freeze()
        child = os.fork()
        if child == 0:
            call_and_exit(function, arguments)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
