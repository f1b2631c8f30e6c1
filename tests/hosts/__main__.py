"""`make hosts`: cut each pair of services apart, heal, and see what stopped and for how long.

Writes docs/availability.md and its picture, or, with exit status 1, what was lost, went back or did
not heal.
"""

import argparse
import asyncio
import fcntl
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

from hosts.cuts import CUTS, named
from hosts.network import apart, why_no_wires, why_not
from hosts.page import write
from hosts.trial import Pace, go_through
from hosts.verdict import Result

PREFIX = "rockoon-hosts-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make hosts", description=__doc__)
    parser.add_argument("--cut", action="append", help="only this one; may be given again")
    for field in fields(Pace):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=float, default=field.default, help="default: %(default)s")
    parser.add_argument("--settings", type=json.loads, default={}, help="service → its settings")
    parser.add_argument("--out", type=Path, help="where the page goes")
    parser.add_argument("--keep", type=Path, help="directory for stores and logs")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input does")
    arguments = parser.parse_args()
    if not arguments.apart:
        reason = why_not()
        if reason:
            print(f"skipped: {reason}", file=sys.stderr)
            return 0
        command = apart([sys.executable, "-m", "hosts", *sys.argv[1:], "--apart"])
        os.execvp(command[0], command)
    if arguments.with_stdin:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    # Members of the cluster come and go; what must hold is judged at the end.
    logging.getLogger("rockoon").setLevel(logging.ERROR)
    pace = Pace(**{each.name: getattr(arguments, each.name) for each in fields(Pace)})
    cuts = [named(name) for name in arguments.cut] if arguments.cut else list(CUTS)
    if why_no_wires():
        for cut in (cut for cut in cuts if cut.slow):
            print(f"left out: {cut.name}: {why_no_wires()}", file=sys.stderr)
        cuts = [cut for cut in cuts if not cut.slow]
    with own_directory() as temporary:
        directory = arguments.keep or temporary
        directory.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(go_through(directory, cuts, pace, arguments.settings))
    if arguments.out is not None and not result.faults:
        write(result, arguments.out, pace.cut_seconds)
    tell(result)
    return 1 if result.faults else 0


def tell(result: Result) -> None:
    for outcome in result.outcomes:
        lines = ", ".join(
            f"{line.kind} {line.short_seconds():.1f} ({line.down_seconds():.1f}) s"
            for line in outcome.timelines
        )
        print(f"{outcome.cut.name:34} {lines}; healed after {outcome.heal_seconds():.1f} s")
    print(
        f"{result.acknowledged} messages acknowledged, {result.handler_calls} handler calls, "
        f"{result.duplicates} of them again"
    )
    for fault in result.faults:
        print(f"does not hold: {fault}", file=sys.stderr)


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory that goes away afterwards; those of runs that were killed go now."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), (left / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as made,
        (Path(made) / "lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(made)


def end_with_stdin() -> None:
    """Whoever started us is gone; the kernel ends what we have started."""
    received = b"?"
    while received:
        received = os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
