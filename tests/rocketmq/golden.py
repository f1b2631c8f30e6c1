"""Create the small stores in `tests/format/data`: `PYTHONPATH=tests python -m rocketmq.golden`.

Two stores as a real broker leaves them, without the files that Rockoon does not read:

    rocketmq-left.tar.xz     of a broker with an IPv6 address that was killed: bodies of each
                             compression, a message that waits, twelve transactions that had ended
                             after checks, and one that had not
    rocketmq-batches.tar.xz  stopped in order: a topic with queue.type = BatchCQ, and one without
"""

import tarfile
import tempfile
from pathlib import Path

from rocketmq import real
from rocketmq.real import message, transaction
from support.waiting import wait_until

DATA = Path(__file__).parent.parent / "format" / "data"
COMPRESSIONS = ("ZLIB", "LZ4", "ZSTD")
TRANSACTIONS = 12
# From the second check on, so that each of them is put back at least once.
CHECKED_FROM = 2
KEPT = ("abort", "batchconsumequeue", "checkpoint", "commitlog", "config", "consumequeue")


def packed_body(kind: str) -> bytes:
    """Return the body that was sent with a compression."""
    return kind.encode() + 2000 * b"."


def outcome(number: int) -> str:
    """Return the end of the transaction with a number."""
    return "commit" if number % 3 else "rollback"


def leave(root: Path) -> None:
    """Write the store `rocketmq-left`."""
    with real.running(root, **real.IPV6) as broker:
        broker.topic("orders", 2)
        broker.send("orders", message(b"plain", tags="new", keys="key-1"))
        for kind in COMPRESSIONS:
            broker.send("orders", message(packed_body(kind), keys=kind), compression=kind)
        broker.send("orders", message(b"later", level=18))
        broker.do(
            "transactions",
            topic="orders",
            messages=[
                transaction(b"paid %d" % each, f"t{each}", "unknown", outcome(each), CHECKED_FROM)
                for each in range(TRANSACTIONS)
            ],
        )
        wait_until(lambda: len(broker.do("checks")) == TRANSACTIONS, "checks")
        wait_until(lambda: min(broker.do("checks").values()) >= CHECKED_FROM, "second checks")
        wait_until(lambda: broker.do("quiet"), "op records, and checks that read them")
        open_yet = transaction(b"open", "open", "unknown")
        broker.do("transactions", topic="orders", messages=[open_yet])
        wait_until(lambda: broker.do("checks").get("open", 0) >= 2, "checks of what stays open")
        broker.kill()


def batches(root: Path) -> None:
    """Write the store `rocketmq-batches`."""
    with real.running(root) as broker:
        broker.topic("orders", 1, message_type="NORMAL")
        broker.topic("inner", 1, queue_type="BatchCQ", message_type="NORMAL")
        broker.send("orders", message(b"plain"))
        broker.do("batch", topic="inner", messages=[message(b"inner %d" % n) for n in range(5)])


def pack(root: Path, target: Path) -> None:
    """Without the progress: its state on disk after a kill is random."""
    with tarfile.open(target, "w:xz") as archive:
        for name in KEPT:
            if (root / name).exists():
                archive.add(root / name, name, filter=_without_progress)


def _without_progress(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.startswith("config/consumerOffset.json") else member


def main() -> None:
    real.prepare()
    with tempfile.TemporaryDirectory() as directory:
        for name, write in (("left", leave), ("batches", batches)):
            root = Path(directory) / name
            root.mkdir()
            write(root)
            pack(root, DATA / f"rocketmq-{name}.tar.xz")


if __name__ == "__main__":
    main()
