"""`make upgrade`: a former commit's data directory is used by this checkout, and back.

The first visit to the directory is the former commit's, the second this checkout's, the third the
former commit's again. Each visit continues the work that the visit before left open. The photograph
before the end of a visit and the one after the start of the next must be equal.

Exit status: 0 if all held, 1 if something was lost or changed, 2 if this machine cannot have the
former programs.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from upgrade.former import programs
from upgrade.photograph import differences, offsets_alone

from bench.compare.programs import ROOT, NotHere
from bench.layers.checkout import COMMIT

VISIT_SECONDS_MAX = 300
SHOWN_LINES = 12
SHOWN_CHARACTERS = 600
# How a local cluster reports that the offset service of its directory ended at the start.
REFUSED = re.compile(
    r"LocalClusterError: offset\S* did not start.*^\s*(rockoon-offset: [^\n]*)", re.M | re.S
)


class Way(NamedTuple):
    """How many copies the logs of a directory have, and how each visit ends."""

    copies: int
    end: str

    def __str__(self) -> str:
        copies = "one copy" if self.copies == 1 else f"{self.copies} copies"
        return f"{copies}, {'SIGKILL' if self.end == 'kill' else 'clean stop'}"


WAYS = tuple(itertools.starmap(Way, itertools.product((1, 3), ("clean", "kill"))))


class Visitor(NamedTuple):
    """A version of the programs."""

    name: str
    environment: Mapping[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make upgrade", description=__doc__)
    parser.add_argument("--commit", default=COMMIT, help="the former one; default: %(default).7s")
    parser.add_argument("--copies", type=int, choices=(1, 3), help="of each log; default: both")
    parser.add_argument("--end", choices=("clean", "kill"), help="of a visit; default: both")
    parser.add_argument("--keep", type=Path, help="directory for stores, logs and photographs")
    arguments = parser.parse_args()
    try:
        former = programs(arguments.commit)
    except NotHere as reason:
        print(f"make upgrade cannot run: {reason}", file=sys.stderr)
        return 2
    name = f"commit {arguments.commit[:7]}"
    visitors = [Visitor(name, former), Visitor("this checkout", {"PYTHONPATH": str(ROOT)})]
    visitors.append(Visitor(f"{name} again", former))
    all_held = True
    for way in WAYS:
        if arguments.copies in (None, way.copies) and arguments.end in (None, way.end):
            with directory(arguments.keep, way) as folder:
                all_held &= holds(folder, way, visitors)
    return int(not all_held)


@contextmanager
def directory(keep: Path | None, way: Way) -> Iterator[Path]:
    if keep is not None:
        folder = keep / f"{way.copies}-{way.end}"
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rockoon-upgrade-") as name:
        yield Path(name)


def holds(folder: Path, way: Way, visitors: Sequence[Visitor]) -> bool:
    """Run the visitors on one directory one after the other, print the result of each visit, and
    return whether all checks passed."""
    left: dict[str, Any] = {}
    for number, visitor in enumerate(visitors):
        failure = visit(folder, way, number, visitor)
        refusal = REFUSED.search(failure)
        goes_back = number == len(visitors) - 1
        if goes_back and refusal is not None:
            print(f"{way}: {visitor.name}: refused, so offsets are imported: {refusal.group(1)}")
            failure = visit(folder, way, number, visitor, "--imports")
        out = folder / f"{number}.json"
        photographs = json.loads(out.read_text()) if out.exists() else {}
        wrong: list[str] = []
        if found := photographs.get("found"):
            if refusal is not None:
                left, found = offsets_alone(left), offsets_alone(found)
            wrong = list(differences(left, found))
        if failure or wrong:
            lines = [f"{way}: {visitor.name}: FAILED", *wrong[:SHOWN_LINES], failure]
            print("\n    ".join(line[-SHOWN_CHARACTERS:] for line in lines if line), flush=True)
            return False
        left = photographs["left"]
        what = "all that was left is there" if number else "wrote"
        print(f"{way}: {visitor.name}: {what}, {count(found or left)} facts", flush=True)
    return True


def count(facts: object) -> int:
    """Return the number of values in a photograph."""
    if isinstance(facts, dict):
        return sum(map(count, facts.values()))
    return sum(map(count, facts)) if isinstance(facts, list) else 1


def visit(folder: Path, way: Way, number: int, visitor: Visitor, *options: str) -> str:
    """Run one visit; return an empty text, or how it failed."""
    own = {"PYTHONPATH": f"{visitor.environment['PYTHONPATH']}:{ROOT / 'tests'}"}
    command = [
        *(sys.executable, "-m", "upgrade.visit", "--directory", folder / "cluster"),
        *("--number", number, "--copies", way.copies, "--end", way.end),
        *("--handover", folder / "handover.json", "--out", folder / f"{number}.json", *options),
    ]
    log = folder / f"{number}.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [str(word) for word in command], stderr=stream, env=os.environ | own
        )
        with process:
            try:
                status = process.wait(VISIT_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                # Its cluster ends with it.
                process.kill()
                return f"the visit did not end in {VISIT_SECONDS_MAX} s"
            except BaseException:
                process.kill()
                raise
    return "" if status == 0 else log.read_text(errors="replace") or f"exit status {status}"


if __name__ == "__main__":
    sys.exit(main())
