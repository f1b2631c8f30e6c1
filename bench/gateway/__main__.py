"""`make bench-gateway`: comparison of the gateway with RocketMQ's own proxy, in alternating turns,
and of HTTP/2 layers as servers and clients (`--only floors`).

Gateway and proxy are started on empty stores, first with a sync before each acknowledgement and
then without. Both are warmed up with the same calls, and measured in alternating turns. A part that
this machine cannot run is skipped and listed. `--write` fills docs/measurements/gateway-bench.md
with a run of all parts, or with the layers' figures.
"""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from bench.command import parser, stores
from bench.compare.programs import ROOT, Interrupts, NotHere
from bench.gateway.comparison import PARTS, Comparison
from bench.gateway.servers import GatewaySide, ProxySide, Side
from bench.layers.comparison import LayerComparison
from bench.tables import FIGURES, told, write
from bench.usage import machine
from rockoon_format import kernel

PAGE = ROOT / "docs" / "measurements" / "gateway-bench.md"
FLOORS = "floors"
SIDES: dict[str, type[Side]] = {"gateway": GatewaySide, "proxy": ProxySide}


def main() -> int:
    options = parser("make bench-gateway", __doc__, [FLOORS, *PARTS], seconds=3.0)
    options.add_argument("--rounds", type=int, default=3, help="turns that each has")
    options.add_argument("--warm-calls", type=int, default=60_000, help="unmeasured ones before")
    options.add_argument("--side", choices=SIDES, help="one of the two alone")
    options.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    given = options.parse_args()
    interrupts = Interrupts()
    interrupts.handle()
    only = given.only or [FLOORS, *PARTS]
    command = f"make bench-gateway ROUNDS={given.rounds} SECONDS={given.seconds:g}"
    with stores(given.dir) as folder:
        made = []
        try:
            if FLOORS in only:
                layers = LayerComparison(folder, given.rounds, given.seconds, interrupts)
                made.append((FLOORS, f"{command} ONLY={FLOORS}`", measured(layers, layers.run)))
            if parts := [part for part in only if part != FLOORS]:
                sides = [SIDES[given.side]()] if given.side else [make() for make in SIDES.values()]
                comparison = Comparison(
                    sides, folder, given.rounds, given.seconds, given.warm_calls, interrupts
                )
                said = f"{command}`, {given.warm_calls:,} calls before the first measure"
                run = partial(comparison.run, parts)
                made.append((FIGURES, said, measured(comparison, run)))
        except NotHere as reason:
            told(f"not measured: {reason}")
            return 1
        except KeyboardInterrupt:
            told("interrupted; every server is stopped")
            return 130
    for block, said, found in made:
        date = datetime.now(UTC).date().isoformat()
        text = f"{date}, {machine()}, kernel: {kernel.name()}. `{said}; {found}"
        print(text)
        # A part of the comparison alone is not its table.
        if given.write and not given.side and (block == FLOORS or not given.only):
            write(PAGE, text, block)
            told(f"written: {PAGE}")
    return 0


def measured(comparison: LayerComparison | Comparison, run: Callable[[], None]) -> str:
    """Run a comparison; return its duration, versions and tables as text for the page. Raises
    NotHere."""
    began = time.monotonic()
    try:
        comparison.prepare()
        run()
    finally:
        comparison.close()
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    seconds = time.monotonic() - began
    return f"{seconds:.0f} s in all.\n\nVersions: {versions}.\n\n{comparison.text()}"


if __name__ == "__main__":
    sys.exit(main())
