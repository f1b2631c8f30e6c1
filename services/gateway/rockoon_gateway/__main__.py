"""`rockoon-gateway`, or `python -m rockoon_gateway`."""

import importlib
import sys
from typing import Any

from rockoon_runtime.allocator import run_with_system_allocator


def __getattr__(name: str) -> Any:
    """Return PROGRAM. It is imported late, because `main` may restart the process first."""
    if name == "PROGRAM":
        return importlib.import_module("rockoon_gateway.server").PROGRAM
    raise AttributeError(name)


def main() -> int:
    run_with_system_allocator()
    from rockoon_runtime.process import run

    return run(__getattr__("PROGRAM"))


if __name__ == "__main__":
    sys.exit(main())
