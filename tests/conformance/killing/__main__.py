"""`make gateway-faults`: RocketMQ's official clients go on while the gateway, the broker and the
offset service are killed.

Exit status 1 if a promise is broken. What must hold is in `support/settle_history.py`.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from conformance.__main__ import prepared
from conformance.killing import page
from conformance.killing.conducting import run
from conformance.languages import LANGUAGES

KILLS = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gateway-faults", description=__doc__)
    parser.add_argument("--language", action="append", choices=list(LANGUAGES))
    parser.add_argument("--copies", type=int, action="append", choices=(1, 3))
    parser.add_argument("--kills", type=int, default=KILLS, help="of each kind of process")
    parser.add_argument("--seed", type=int, help="when and in which order; chosen otherwise")
    parser.add_argument("--folder", type=Path, help="keep stores and logs here")
    parser.add_argument("--out", type=Path, help="page whose table gets the figures")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    clients, _ = prepared(given.language or list(LANGUAGES))
    found = []
    with tempfile.TemporaryDirectory(prefix="rockoon-killing-") as temporary:
        for copies in given.copies or (1, 3):
            folder = (given.folder or Path(temporary)) / f"copies-{copies}"
            its = run(clients, folder, copies=copies, kills=given.kills, seed=seed)
            for each in its:
                print(f"{each.client}, copies={copies}: {each.figures}", flush=True)
                for sentence in each.broken:
                    print(f"  does not hold: {sentence}", flush=True)
            found += its
    print(f"SEED={seed}: {sum(len(each.broken) for each in found)} broken promises")
    if given.out is not None:
        page.write(found, given.out, seed)
    return 1 if any(each.broken for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
