"""Write the journals in this directory by the offset service of commit 8e2a733.

    git archive 8e2a733 core format protos services | tar x -C OLD
    cd tests/offset/former_journals
    export PYTHONPATH=$(printf %s: OLD/{core,format,protos,services/{node,offset,runtime}})
    python write.py .

`OLD` is an absolute path.

`NAME/` is the directory of a journal, `NAME.state` its ledger: one record a line, in sorted order.

    empty    a service that stored nothing
    first    the first generation, which has no snapshot
    later    the third generation: a snapshot and a journal each of the last two
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import encode

# A module of the former version.
Journal: Any = importlib.import_module("rockoon_offset.journal.journal").Journal
NOW_MS = 1_700_000_000_000


def write(directory: Path, changes: int, rotations: tuple[int, ...]) -> None:
    directory.mkdir()
    journal: Any = Journal(directory, lambda _: None, sys.exit)
    journal.start()
    ledger: Any = Ledger()
    for number in range(changes):
        group, queue = f"g{number % 3}", MessageQueue("T", "broker-a", number % 2)
        decision = Decision(number, StartReason.LAST, "the first start")
        records = ledger.start(group, 1, queue, 1, decision, f"m{number % 5}", NOW_MS + number)
        journal.append([encode(record) for record in [*ledger.service_started(), *records]])
        if number in rotations:
            journal.rotate(map(encode, list(ledger.snapshot())))
    journal.close()
    (directory / "reserve").unlink()
    lines = sorted(encode(record) for record in ledger.snapshot())
    directory.with_suffix(".state").write_bytes(b"".join(line + b"\n" for line in lines))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write(target / "empty", 0, ())
    write(target / "first", 7, ())
    write(target / "later", 12, (3, 8))
