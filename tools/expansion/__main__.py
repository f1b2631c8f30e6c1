"""`make expansion`: every way a topic can grow under a group, and the messages the group misses.

Writes docs/measurements/expansion.md; exit status 1 if rule EXACT skipped or replayed a message.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

import uvloop

from tools.expansion import matrix, report
from tools.expansion.cell import Growth, Policy

PAGE = Path("docs/measurements/expansion.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make expansion", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="where the page goes")
    parser.add_argument(
        "--few", action="store_true", help="LAST and added queues only, the page to stdout"
    )
    arguments = parser.parse_args()
    # Warnings about restarting brokers and groups are expected; the check follows at the end.
    logging.getLogger("rockoon").setLevel(logging.ERROR)
    cells = matrix.all_cells()
    if arguments.few:
        cells = [c for c in cells if c.growth is Growth.QUEUES and c.policy is Policy.LAST]
    began = time.perf_counter()
    uvloop.run(matrix.run(cells))
    page = report.page(cells)
    if arguments.few:
        print(page)
    else:
        arguments.out.write_text(page)
    failures = matrix.failures(cells)
    for failure in failures:
        print(f"does not hold: {failure}", file=sys.stderr)
    seconds = time.perf_counter() - began
    print(f"{len(cells)} cells in {seconds:.0f} s; {len(failures)} of rule exact do not hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
