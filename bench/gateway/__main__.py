"""`make bench-gateway`: the gateway beside RocketMQ's own proxy, in turns, both hot.

Both are started on empty stores, first with a sync before each answer and then without, make the
same unmeasured calls, and have their turns one after the other. What cannot be had here is skipped
by name. `--write` fills docs/gateway-bench.md with a run of all parts.
"""

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.capacity.processes import machine
from bench.compare.__main__ import told
from bench.compare.fetching import ROOT, NotHere
from bench.compare.page import write
from bench.compare.programs import Interrupts
from bench.gateway.comparison import PARTS, Comparison
from bench.gateway.servers import GatewaySide, ProxySide, Side
from rockoon_format import kernel

PAGE = ROOT / "docs" / "gateway-bench.md"
SIDES: dict[str, type[Side]] = {"gateway": GatewaySide, "proxy": ProxySide}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns that each has")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a rate is measured")
    parser.add_argument("--warm-calls", type=int, default=60_000, help="unmeasured ones before")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    parser.add_argument("--side", choices=SIDES, help="one of the two alone")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the stores go")
    given = parser.parse_args()
    given.dir.mkdir(exist_ok=True)
    interrupts, began = Interrupts(), time.monotonic()
    interrupts.handle()
    with tempfile.TemporaryDirectory(dir=given.dir, ignore_cleanup_errors=True) as name:
        only = given.only or PARTS
        comparison = Comparison(
            [SIDES[given.side]()] if given.side else [make() for make in SIDES.values()],
            Path(name).resolve(),
            given.rounds,
            given.seconds,
            given.warm_calls,
            interrupts,
        )
        try:
            comparison.prepare()
            comparison.run(only)
        except NotHere as reason:
            told(f"skipped: {reason}")
            return 0
        except KeyboardInterrupt:
            told("interrupted; every server is stopped")
            return 130
        finally:
            comparison.close()
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    command = f"make bench-gateway ROUNDS={given.rounds} SECONDS={given.seconds:g}"
    made = (
        f"{datetime.now(UTC).date().isoformat()}, {machine()}, kernel: {kernel.name()}. "
        f"`{command}`, {given.warm_calls:,} calls before the first measure; "
        f"{time.monotonic() - began:.0f} s in all.\n\nVersions: {versions}.\n\n{comparison.text()}"
    )
    print(made)
    if given.write and not (given.only or given.side):
        write(PAGE, made)
        told(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
