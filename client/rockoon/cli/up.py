"""`rockoon up`: a cluster in the foreground, until Ctrl-C."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rockoon.cli.failures import FAILED
from rockoon.cli.output import print_table
from rockoon.local.cluster import LocalCluster

DEFAULT_PORT = 9876


class Stopped(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived."""


def run_up(
    directory: Path,
    *,
    nameservers: int | None,
    brokers: int | None,
    port: int,
    new_queue_rule: str | None,
    flush: str | None,
) -> int:
    """Run a cluster until a signal arrives or a node ends by itself; return the exit status."""
    settings: dict[str, dict[str, object]] = {}
    if new_queue_rule is not None:
        settings["offset"] = {"new_queue_rule": new_queue_rule}
    if flush is not None:
        settings["broker"] = {"flush": flush}
    cluster = LocalCluster(
        directory, nameservers=nameservers, brokers=brokers, port=port, settings=settings
    )
    try:
        with stopping_on_signals():
            began = time.perf_counter()
            cluster.start()
            greet(cluster, time.perf_counter() - began)
            ended = cluster.wait_node_ended()
    except Stopped:
        print("\nstopping", file=sys.stderr)
        cluster.stop()
        return 0
    print(f"rockoon: {ended}\nstopping everything else", file=sys.stderr)
    cluster.stop()
    return FAILED


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `Stopped` for the signals that ask to end; ignore further ones while ending."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    for number in numbers:
        signal.signal(number, stop)
    yield


def greet(cluster: LocalCluster, seconds: float) -> None:
    print(f"the cluster is ready ({seconds:.1f} s); data and logs are in {cluster.directory}\n")
    print_table(
        ("NODE", "ADDRESS", "PROCESS"),
        ((node.name, node.address, node.pid) for node in cluster.nodes),
        empty="",
    )
    first = cluster.nameservers[0]
    if first != f"127.0.0.1:{DEFAULT_PORT}":
        print(f"\nin another terminal, first: export ROCKOON_NAMESERVERS={first}")
        print("then:")
    else:
        print("\nin another terminal:")
    print("  rockoon topic create orders")
    print("  echo hello | rockoon produce orders")
    print("  rockoon consume orders --from first")
    print("  rockoon status")
    print("\nCtrl-C stops it; the data stays.", flush=True)
