"""Machines with systemd as their first process, made of Linux namespaces on this machine.

The network is that of `hosts.network`, in the namespaces of `hosts.network.apart`: all machines end
with the process that made them, and change no file of this machine.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from hosts.network import Network

HERE = Path(__file__).resolve().parent
SYSTEMD = Path("/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup/systemd")
START_SECONDS_MAX = 180.0
LOOK_SECONDS = 0.1
ENVIRONMENT = {
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


class MachineError(Exception):
    """A machine did not start; the text has the end of its console."""


def why_no_machines() -> str:
    """Return why there can be no machines with systemd here; empty if there can."""
    if os.geteuid() != 0:
        return "machines with systemd need root"
    for program in (str(SYSTEMD), "setpriv", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"machines with systemd need {program} (Debian: systemd, util-linux)"
    if not (CGROUPS / "cgroup.procs").exists():
        return f"machines with systemd need cgroups of version 1 ({CGROUPS})"
    return ""


class Machine:
    """A machine; its files are in a folder and survive a power cut.

    Args:
        name: its host name, a host of the network.
        network: made.
        folder: of all machines.
        packages: folder with files of Debian's packages, which the machine has when it is new.
    """

    def __init__(self, name: str, network: Network, folder: Path, packages: Path) -> None:
        self.name = name
        self._network = network
        self._files = folder / name
        self._packages = packages
        self._pid_file = folder / f"{name}.pid"
        self._cgroup = CGROUPS / f"{folder.name}-{name}"
        self._holder: subprocess.Popen[bytes] | None = None

    @property
    def console(self) -> Path:
        return self._files.with_suffix(".console")

    def start(self) -> None:
        """Start systemd, and wait until it can start services.

        Raises:
            MachineError: systemd ended, or was not ready within START_SECONDS_MAX.
        """
        if not self._files.exists():
            self._files.mkdir(mode=0o755)
            shutil.copytree(self._packages / "usr", self._files / "usr", symlinks=True)
            names = {**self._network.addresses, "localhost": "127.0.0.1"}
            hosts = "".join(f"{address} {name}\n" for name, address in names.items())
            (self._files / "hosts").write_text(hosts)
        self._cgroup.mkdir(exist_ok=True)
        kinds = ("--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child=KILL")
        command = self._network.on(
            self.name,
            ["unshare", *kinds, "--", str(HERE / "first_process.sh"), self.name, str(self._files)],
        )
        # The shell joins the cgroup, whose root the machine then sees as the root of all.
        joining = ("sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(self._cgroup))
        with self.console.open("ab") as console:
            self._holder = subprocess.Popen(
                [*joining, *command], stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        self._wait_started(time.monotonic() + START_SECONDS_MAX)

    def _wait_started(self, deadline: float) -> None:
        assert self._holder is not None
        while time.monotonic() < deadline and self._holder.poll() is None:
            with suppress(OSError, ValueError):
                self._pid_file.write_text(str(self._first()))
                # Enabled services may wait for those of machines that start later.
                words = ("systemctl", "is-active", "--quiet", "basic.target")
                if subprocess.run(self.inside(*words), capture_output=True).returncode == 0:
                    return
            time.sleep(LOOK_SECONDS)
        raise MachineError(f"{self.name} did not start:\n{self.console.read_text()[-4000:]}")

    def _first(self) -> int:
        """The process id of systemd. Raises OSError or ValueError if it does not run."""
        assert self._holder is not None
        pid = self._holder.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if Path(f"/proc/{child}/comm").read_text().strip() != "systemd":
            raise ValueError(child)
        return int(child)

    def inside(self, *words: str) -> list[str]:
        """A command that runs on the machine, as root."""
        return [*entering(self._pid_file.read_text()), *words]

    def run(self, *words: str) -> str:
        """Run a command on the machine, and return its output.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        return subprocess.run(
            self.inside(*words), check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def cut_power(self) -> None:
        """Kill all processes of the machine; its files stay."""
        assert self._holder is not None
        with suppress(OSError, ValueError):
            os.kill(self._first(), signal.SIGKILL)
        self._holder.wait()
        self._holder = None
        for folder, _, _ in os.walk(self._cgroup, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()

    def lose(self) -> None:
        """Kill all processes of the machine, and delete its files."""
        self.cut_power()
        shutil.rmtree(self._files)

    @property
    def is_up(self) -> bool:
        return self._holder is not None


def entering(pid: str) -> list[str]:
    """The words before a command that runs in the namespaces of a machine."""
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    environment = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    return ["nsenter", "--target", pid, *spaces, "--", "env", "-i", *environment]
