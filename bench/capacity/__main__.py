"""`make capacity`: load limits of a cluster, saturation of each service, and predictions from both.

Every part starts a cluster of real processes and increases one axis until the cluster saturates.
Results are stored in .bench/capacity, one file per part; docs/measurements/capacity.md is generated
from all stored results.
"""

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvloop

from bench.capacity import many_groups, many_queues, messages, page
from bench.capacity.point import FULL, MORE_QUEUES, QUICK, Axes, Part, Point, read_parts
from bench.command import console, parser, stores
from bench.usage import machine

Measure = Callable[[Path, Axes], AsyncIterator[Point]]

PARTS: dict[str, Measure] = {
    "producers": messages.producers,
    "sizes": messages.sizes,
    "rates": messages.rates,
    "readers": messages.readers,
    "members": messages.members,
    "queues": many_queues.queues,
    "topics": many_queues.topics,
    "watchers": many_queues.watchers,
    "groups": many_groups.groups,
    "heartbeats": many_groups.heartbeats,
}
PAGE = Path("docs/measurements/capacity.md")
REASON_CHARACTERS_MAX = 200


async def measured(name: str, axes: Axes, folder: Path, command: str, results: Path) -> Part:
    """Measure one part of the benchmark; if it fails, store the failure and the points before it.

    Args:
        folder: directory of its cluster.
        command: the command line, which is stored.
        results: directory for the results; each point is stored immediately.
    """
    points: list[Point] = []
    began = time.perf_counter()

    def so_far(failure: str) -> Part:
        seconds = time.perf_counter() - began
        return Part(name, points, seconds, commit(), machine(), command, failure)

    failure = ""
    try:
        async for point in PARTS[name](folder, axes):
            points.append(point)
            so_far("interrupted").write(results)
            console.print(told(point))
    except Exception as error:  # noqa: BLE001 - the root of a part: the next parts are measured
        failure = reason_of(error)
        console.print(f"[red]{name} ended early: {failure}")
    part = so_far(failure)
    part.write(results)
    return part


def reason_of(error: BaseException) -> str:
    """Return the type and text of the first error in nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    # On one line, shortened for a table.
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"[:REASON_CHARACTERS_MAX]


def told(point: Point) -> str:
    rate = f"{point.rate:,.0f} /s" if point.rate else ""
    bound = f"{point.use.saturated} saturated" if point.use is not None and point.rate else ""
    p99 = f"p99 {point.latency_ms['p99']:.1f} ms" if point.latency_ms else ""
    return "  ".join(filter(None, (f"{point.measure} {point.at:,.0f}:", rate, p99, bound)))


def commit() -> str:
    """Return the commit of the working tree, with "+" if there are uncommitted changes."""

    def git(*arguments: str) -> str:
        said = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        return said.stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + (
        "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    )


def main() -> int:
    options = parser("make capacity", __doc__, PARTS)
    options.add_argument("--quick", action="store_true", help="few points: below a minute")
    options.add_argument("--more-queues", action="store_true", help="100,000 queues as well")
    options.add_argument("--page-only", action="store_true", help="measure nothing, write the page")
    options.add_argument("--out", type=Path, default=PAGE, help="the page to write")
    arguments = options.parse_args()
    axes = QUICK if arguments.quick else MORE_QUEUES if arguments.more_queues else FULL
    results = arguments.dir / ("capacity-quick" if arguments.quick else "capacity")
    names = [] if arguments.page_only else arguments.only or list(PARTS)
    failed = []
    for name in names:
        console.print(f"[bold]{name}")
        command = " ".join(
            ["python -m bench.capacity", *(f"--only {each}" for each in arguments.only or ())]
        )
        with stores(arguments.dir) as folder:
            part = uvloop.run(measured(name, axes, folder / "cluster", command, results))
        failed += [name] if part.failure else []
    if not arguments.quick or arguments.out != PAGE:
        page.write(arguments.out, read_parts(results, PARTS))
        console.print(f"{arguments.out} is written")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
