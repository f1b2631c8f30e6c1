"""`python -m machines`: runs docs/operate/three-machines.md on machines of Linux namespaces.

Exit status: 0 if all commands worked and all promises hold, 1 if not, 2 if this machine cannot
run them.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.page_runs import PageError
from hosts.network import apart, why_not
from machines.machine import MachineError, why_no_machines
from machines.three_machines import (
    NAMES,
    Stage,
    build,
    exposures,
    run_faults,
    run_page,
    write_exposures,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m machines", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        return inside(options.inside, write=options.write)
    if reason := why_no_machines() or why_not():
        print(f"skipped: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="rockoon-machines-") as folder:
        # Services are other users than the one that made the folder.
        Path(folder).chmod(0o755)
        try:
            build(Path(folder))
        except PageError as failure:
            print(failure, file=sys.stderr)
            return 1
        command = [sys.executable, "-m", "machines", *sys.argv[1:], "--inside", folder]
        return subprocess.run(apart(command), check=False).returncode


def inside(folder: Path, *, write: bool) -> int:
    stage = Stage(folder)
    try:
        run_page(stage)
        rows = exposures(stage.machines[NAMES[0]])
        run_faults(stage)
    except (PageError, MachineError, AssertionError, subprocess.CalledProcessError) as failure:
        print(failure, file=sys.stderr)
        for name in NAMES:
            print(f"--- the console of {name}, and its journal", file=sys.stderr)
            print((folder / f"{name}.console").read_text()[-2000:], file=sys.stderr)
            words = ("journalctl", "--no-pager", "--lines=40", "--unit=rockoon-*")
            shown = subprocess.run(
                stage.machines[name].inside(*words), capture_output=True, text=True
            )
            print(shown.stdout[-6000:], file=sys.stderr)
        return 1
    finally:
        for machine in stage.machines.values():
            if machine.is_up:
                machine.cut_power()
    for unit, level, rating in rows:
        print(f"{unit}: exposure {level} {rating}")
    if write:
        write_exposures(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
