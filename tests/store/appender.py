"""A process that appends until it is killed, and prints the acknowledged batches line by line.

A line: topic, queue id, first queue offset, count, and the number with which its bodies begin.
"""

import random
import sys
from pathlib import Path

from support.store_directory import Owner, settings


def main(root: str, flush: str, seed: str) -> None:
    choose = random.Random(int(seed))
    owner = Owner(settings(Path(root), flush=flush, commit_log_file_bytes=65_536))
    print(f"open {owner.store.recovery.reason}", flush=True)
    number = 0
    while True:
        waiting = []
        for _ in range(choose.randrange(1, 4)):
            number += 1
            topic, queue_id = f"T{choose.randrange(3)}", choose.randrange(2)
            bodies = [b"%d" % number + bytes(choose.randrange(300)) for _ in range(3)]
            waiting.append((number, topic, queue_id, owner.append(topic, queue_id, bodies)))
        if flush == "sync":
            owner.confirm(waiting[-1][3].end_offset)
        for acknowledged, topic, queue_id, appended in waiting:
            print(topic, queue_id, appended.first_queue_offset, 3, acknowledged, flush=True)
        owner.clock.time_ms += 100
        owner.store.tick(owner.clock.time_ms)


if __name__ == "__main__":
    main(*sys.argv[1:])
