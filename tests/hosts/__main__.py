"""`make hosts`: cuts each pair of hosts apart, stops or kills each kind of process, and measures
which calls fail, and for how long.

Fills docs/measurements/availability.md and its picture. Exit status 1 if a message or progress was
lost, progress decreased, or a part of the cluster did not recover.
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path

from faults import library
from hosts.cuts import Cut, Deed, cuts_of, long_link, named
from hosts.network import apart, why_no_wires, why_not
from hosts.page import write
from hosts.shape import ONE_COPY, THREE_COPIES
from hosts.trial import Pace, go_through
from hosts.verdict import Result

PREFIX = "rockoon-hosts-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make hosts", description=__doc__)
    parser.add_argument("--cut", action="append", help="only this one; may be given again")
    parser.add_argument("--copies", type=int, choices=(1, 3), default=3, help="of each log")
    parser.add_argument("--offsets", type=int, choices=(1, 3), help="default: as many as copies")
    parser.add_argument(
        "--link-seconds", type=float, help="also one link between copies for so long, say 600"
    )
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
    # Members of the cluster come and go; the end of the trial checks the rules.
    logging.getLogger("rockoon").setLevel(logging.ERROR)
    pace = Pace(**{each.name: getattr(arguments, each.name) for each in fields(Pace)})
    shape = THREE_COPIES if arguments.copies > 1 else ONE_COPY
    shape = replace(shape, offsets=arguments.offsets or shape.offsets)
    cuts = list(possible([named(name, shape) for name in arguments.cut or ()] or cuts_of(shape)))
    if arguments.link_seconds:
        cuts.append(long_link(arguments.link_seconds))
    with own_directory() as temporary:
        directory = arguments.keep or temporary
        directory.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(go_through(directory, shape, cuts, pace, arguments.settings))
    if arguments.out is not None and not result.faults:
        write(result, shape, arguments.out, pace.cut_seconds)
    tell(result)
    return 1 if result.faults else 0


def possible(cuts: Iterable[Cut]) -> Iterator[Cut]:
    """Return the trials that this machine can run; print the reasons against the others."""
    for cut in cuts:
        reason = why_no_wires() if cut.slow else ""
        reason = library.why_not() if cut.deed is Deed.POWER else reason
        if reason:
            print(f"left out: {cut.name}: {reason}", file=sys.stderr)
        else:
            yield cut


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
    """Yield a directory that is deleted afterwards; those of killed runs are deleted now."""
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
    """The parent process has ended; the kernel ends the processes that this one has started."""
    received = b"?"
    while received:
        received = os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
