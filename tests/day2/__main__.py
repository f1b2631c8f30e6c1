"""`make day2`: tasks of an operator after the first day, on real clusters under load.

Each step prints one line for each situation. Exit status 1 if a step fails.
"""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from day2 import backups
from machines import step
from upgrade import mixed, page

# Called with an empty directory and a function that prints a line.
Step = Callable[[Path, Callable[[str], None]], Coroutine[Any, Any, None]]
STEPS: Mapping[str, Step] = {
    "backup": backups.run,
    "three-machines": step.run,
    "upgrade": mixed.run_step,
    "upgrade-page": page.run_step,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make day2", description=__doc__)
    parser.add_argument("--only", default="", help=f"steps, with commas: {', '.join(STEPS)}")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else list(STEPS)
    if unknown := [each for each in wanted if each not in STEPS]:
        parser.error(f"{unknown[0]} is no step")
    failed = []
    for name in wanted:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix=f"rockoon-day2-{name}-") as folder:
                asyncio.run(STEPS[name](Path(folder), lambda line: print(f"  {line}", flush=True)))
        except KeyboardInterrupt:
            print("interrupted: all processes have ended", file=sys.stderr)
            return 130
        except Exception:  # noqa: BLE001 - the other steps run anyway
            traceback.print_exc()
            failed.append(name)
        state = "FAILED" if name in failed else "held"
        print(f"{name}: {state} after {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
