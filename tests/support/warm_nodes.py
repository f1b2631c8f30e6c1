"""Starts the services of local clusters as forks of a program that has already loaded them.

A service needs half a second of CPU time to load its modules, and then some hundredths to start.
Tests start more than a thousand services. This program loads all modules, starts no thread, and
forks for each service. A fork has its own session, environment, pipes and working directory, and
the process that requested it is its parent, as if `subprocess` had started it.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rockoon.local.node_maker import THREADS

PACKAGES = ("rockoon_nameserver", "rockoon_broker", "rockoon_offset", "rockoon_gateway")
TOGETHER = "rockoon_runtime.together"
PROGRAMS = {**{each: f"{each}.__main__" for each in PACKAGES}, TOGETHER: TOGETHER}
TESTS = Path(__file__).parent.parent
# Read when an interpreter or a library is loaded, so a fork would ignore other values.
AT_LOADING = ("LD_", "MALLOC_", "PYTHON", "GRPC_", "PROTOCOL_BUFFERS_", "ROCKOON_K")
REQUEST_BYTES_MAX = 1 << 20
PR_SET_CHILD_SUBREAPER = 36

StartProgram = Callable[[Sequence[str], IO[bytes], Mapping[str, str]], Any]


class Fork:
    """A forked service, with the part of `subprocess.Popen` that a node of a cluster uses.

    Attributes:
        pid: its process and session.
        stdin, stdout: this side of its pipes.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        # Guards the process id, which the system may reuse once `wait` has fetched the status.
        self._lock = threading.Lock()
        self._ended = False

    def wait(self) -> int:
        """Return the exit status, negative for a signal; called once."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            _, status = os.waitpid(self.pid, 0)
            self._ended = True
        return os.waitstatus_to_exitcode(status)

    def send_signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._ended:
                os.kill(self.pid, number)


class WarmNodes:
    """The program, started with the first service; forks services from it.

    Args:
        start_cold: starts any other program.
    """

    def __init__(self, start_cold: StartProgram) -> None:
        self._start_cold = start_cold
        self._lock = threading.Lock()
        self._environment = os.environ | THREADS
        self._program: subprocess.Popen[bytes] | None = None
        self._socket, self._theirs = socket.socketpair()

    def start(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> Any:
        """Start a program of a node, see `rockoon.local.process.start_program`."""
        is_service = tuple(command[:2]) == (sys.executable, "-m") and command[2] in PROGRAMS
        if not is_service or at_loading(environment) != at_loading(self._environment):
            return self._start_cold(command, log, environment)
        with self._lock:
            if self._program is None:
                self._program = self._load()
            return self._fork(command[2:], log, environment)

    def _load(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(TESTS), self._environment.get("PYTHONPATH")]))
        program = subprocess.Popen(
            [sys.executable, "-m", "support.warm_nodes", str(self._theirs.fileno())],
            pass_fds=[self._theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=self._environment | {"PYTHONPATH": path},
            # It ends with the tests, but not before the clusters that they stop on Ctrl-C.
            start_new_session=True,
        )
        # Otherwise the end of the program would not end the connection.
        self._theirs.close()
        return program

    def _fork(self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> Fork:
        their_input, stdin = os.pipe()
        stdout, their_output = os.pipe()
        job = json.dumps([list(words), dict(environment), str(Path.cwd())]).encode()
        answer = b""
        become_parent_of_orphans(True)
        try:
            given = [their_input, their_output, log.fileno()]
            with suppress(ConnectionError):
                socket.send_fds(self._socket, [len(job).to_bytes(4, "big"), job], given)
                answer = self._socket.recv(4)
        finally:
            become_parent_of_orphans(False)
            os.close(their_input)
            os.close(their_output)
        if not answer:
            os.close(stdin)
            os.close(stdout)
            raise OSError("the program that forks services has ended")
        pid = int.from_bytes(answer, "big")
        return Fork(pid, os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb"))

    def close(self) -> None:
        """End the program."""
        self._theirs.close()
        self._socket.close()
        if self._program is not None:
            self._program.wait()


def at_loading(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values a fork gets from its program."""
    return {name: value for name, value in environment.items() if name.startswith(AT_LOADING)}


def become_parent_of_orphans(wanted: bool) -> None:
    """Choose whether this process becomes the parent of descendants whose parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def serve(connection: socket.socket) -> Callable[[], int]:
    """Fork for each job until the connection ends; return, in each fork, its service's `main`."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            sys.exit()
        job = b""
        while len(job) < int.from_bytes(head, "big"):
            job += connection.recv(REQUEST_BYTES_MAX)
        # The parent of the service ends immediately, so that the tests' process becomes its parent.
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() > 0:
                os._exit(0)
            # The tests may kill the session as soon as they have its number.
            os.setsid()
            os.write(writing, os.getpid().to_bytes(4, "big"))
            os.close(reading)
            os.close(writing)
            connection.close()
            return become_service(descriptors, *json.loads(job))
        os.waitpid(between, 0)
        os.close(writing)
        pid = os.read(reading, 4)
        if not pid:
            sys.exit("a service could not be forked")
        connection.sendall(pid)
        for each in (*descriptors, reading):
            os.close(each)


def become_service(
    descriptors: Sequence[int], words: Sequence[str], environment: Mapping[str, str], folder: str
) -> Callable[[], int]:
    """Make this fork look like a new process; return the `main` of its program."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # The service would start its program again, to use this allocator.
    os.environ.setdefault("PYTHONMALLOC", "malloc")
    program, *options = words
    sys.argv = [program, *options]
    main: Callable[[], int] = importlib.import_module(PROGRAMS[program]).main
    return main


if __name__ == "__main__":
    for each in (*PROGRAMS.values(), *(f"{each}.server" for each in PACKAGES)):
        importlib.import_module(each)
    # A garbage collection in a fork would copy the pages of all modules.
    gc.freeze()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])))())
