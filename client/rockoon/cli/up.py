"""`rockoon up`: runs a cluster in the foreground until Ctrl-C."""

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rockoon.cli.output import print_table
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import secret_file
from rockoon.local.etcd import build_etcd, etcd_warning, find_etcd
from rockoon.local.supervisor import Supervisor
from rockoon_format import kernel

DEFAULT_PORT = 9876
FIRST_COMMANDS = (
    "rockoon topic create orders",
    "echo hello | rockoon produce orders",
    "rockoon consume orders --from first",
    "rockoon status",
)
FAREWELL = "Ctrl-C stops it; the data stays."


class StopSignal(BaseException):
    """Raised when SIGINT, SIGTERM or SIGHUP arrives."""


def run_up(
    directory: Path,
    *,
    new_queue_rule: str | None = None,
    flush: str | None = None,
    single: bool = False,
    **options: Any,
) -> int:
    """Run a cluster until a signal arrives; return the exit status. With `single`, this process is
    replaced by the cluster. `options`: as in `LocalCluster`."""
    settings: dict[str, dict[str, object]] = {}
    if new_queue_rule is not None:
        settings["offset"] = {"new_queue_rule": new_queue_rule}
    if flush is not None:
        settings["broker"] = {"flush": flush}
    cluster = LocalCluster(directory, settings=settings, single=single, **options)
    if single:
        cluster.become(
            lambda: (
                f"the cluster is ready; data and logs are in {cluster.directory}\n"
                f"{first_commands(cluster)}\n\n{FAREWELL}"
                + "".join(f"\nrockoon: warning: {each}" for each in filter(None, [kernel.advice()]))
            )
        )
    try:
        with stopping_on_signals():
            # Before a build that takes minutes.
            cluster.check_directory()
            build_etcd(lambda line: print(line, file=sys.stderr))
            began = time.perf_counter()
            cluster.start()
            supervisor = Supervisor(cluster, print_message)
            with supervisor.control_socket():
                greet(cluster, time.perf_counter() - began)
                for warning in filter(None, (etcd_warning(find_etcd()), kernel.advice())):
                    print_message(f"warning: {warning}")
                supervisor.run()
    except StopSignal:
        print("\nstopping", file=sys.stderr)
    finally:
        cluster.stop()
    return 0


def print_message(sentence: str) -> None:
    print(f"rockoon: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `StopSignal` for the first signal to stop, and ignore further ones during shutdown."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise StopSignal

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
    print(first_commands(cluster))
    where = f" --dir {shlex.quote(str(cluster.directory))}"
    print(f"  rockoon up kill {cluster.brokers[-1]}{where}\n\n{FAREWELL}", flush=True)


def first_commands(cluster: LocalCluster) -> str:
    exports = environment_of(cluster)
    lines = ["", "in another terminal" + (", first:" if exports else ":")]
    lines += [f"  export {name}={shlex.quote(value)}" for name, value in exports.items()]
    lines += ["then:"] if exports else []
    lines += [f"  {command}" for command in FIRST_COMMANDS]
    if cluster.gateway is not None:
        modes = "with TLS or without" if cluster.tls is None else "with TLS"
        lines += ["", f"RocketMQ's 5.x clients: endpoints {cluster.gateway}, {modes}"]
    return "\n".join(lines)


def environment_of(cluster: LocalCluster) -> dict[str, str]:
    """Return the environment variables with which a command finds and trusts the cluster.

    Variables that would have the default are left out.
    """
    found = {}
    first = cluster.nameservers[0]
    if first != f"127.0.0.1:{DEFAULT_PORT}":
        found["ROCKOON_NAMESERVERS"] = first
    if cluster.tls is not None:
        files = {"CA": cluster.tls.ca, "CERTIFICATE": cluster.tls.certificate}
        for name, path in (files | {"KEY": cluster.tls.key}).items():
            if path:
                found[f"ROCKOON_TLS_{name}"] = str(Path(path).absolute())
    if cluster.access is not None:
        found["ROCKOON_ACCESS_KEY"] = cluster.access.id
        found["ROCKOON_ACCESS_SECRET_FILE"] = str(secret_file(cluster.directory).absolute())
    return found
