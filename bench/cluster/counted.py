"""Runs a service and counts its Python calls, for `bench.cluster.idle`; counting slows it down.

    python -m bench.cluster.counted RESULT SETTLE_SECONDS SECONDS MODULE ARGUMENT...

runs MODULE like `python -m`, waits until it is idle, counts, and writes the counts to RESULT as
JSON.
"""

import json
import os
import runpy
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class CallCounter:
    """Counts the calls of functions in Rockoon's packages."""

    def __init__(self) -> None:
        self._counts: Counter[CodeType] = Counter()

    def start(self) -> None:
        """Start counting on this thread, and on threads that start later."""
        sys.setprofile(self._note)
        threading.setprofile(self._note)

    def stop(self) -> None:
        """Stop counting on this thread, and on threads that start later."""
        sys.setprofile(None)
        threading.setprofile(None)

    def clear(self) -> None:
        self._counts.clear()

    def calls(self, package: str = "rockoon") -> dict[str, int]:
        """Return calls by function, the most frequent first; each resume of a coroutine counts.
        `package`: prefix of the names of the packages to count."""
        return {
            f"{Path(code.co_filename).stem}.{code.co_qualname}": count
            for code, count in self._counts.copy().most_common()
            if f"{os.sep}{package}" in code.co_filename
        }

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self._counts[frame.f_code] += 1


def main() -> None:
    result, settle_seconds, seconds, module, *arguments = sys.argv[1:]
    counter = CallCounter()

    def count() -> None:
        time.sleep(float(settle_seconds))
        counter.clear()
        time.sleep(float(seconds))
        Path(result).write_text(json.dumps(counter.calls()))

    threading.Thread(target=count, name="count", daemon=True).start()
    sys.argv = [module, *arguments]
    counter.start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
