"""A standalone Spark cluster, a master and two workers, and drivers that a test can hold at a step.

All processes listen on 127.0.0.1. They end with the test; see `support.held_python` for the steps.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from rockoon_spark.java import find_java
from support.spark_processes import BRIEF_JAVA, children, command_of
from support.waiting import DEADLINE_SECONDS, wait_until

WORKERS = 2
TESTS = Path(__file__).parent.parent
SPARK_HOME = Path(pyspark.__file__).parent
HELD_PYTHON = Path(__file__).with_name("held_python")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def standalone_spark(scratch: Path) -> Iterator[str]:
    """Start a master and its workers; yield the URL of the master."""
    find_java()
    url = f"spark://127.0.0.1:{free_port()}"
    port = url.rpartition(":")[2]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        master = scratch / "master.log"
        daemons.append(_daemon(master, "master.Master", "--host", "127.0.0.1", "--port", port))
        wait_until(lambda: url in master.read_text(), "Spark's master")
        for number in range(WORKERS):
            place = scratch / f"worker-{number}"
            place.mkdir()
            options = ("--host", "127.0.0.1", "--cores", "2", "--memory", "2g")
            log = scratch / f"worker-{number}.log"
            daemons.append(_daemon(log, "worker.Worker", *options, "--work-dir", str(place), url))
        for number in range(WORKERS):
            log = scratch / f"worker-{number}.log"
            wait_until(lambda log=log: "registered with master" in log.read_text(), log.stem)
        yield url
    finally:
        # Workers first: a worker ends its executors.
        for daemon in reversed(daemons):
            assert daemon.stdin is not None
            daemon.stdin.close()
            daemon.wait()


def _daemon(log: Path, name: str, *options: str) -> "subprocess.Popen[bytes]":
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    # The shell ends the program when its input ends, so also when the test process is killed.
    command = ["sh", "-c", '"$@" </dev/null & read -r _; kill $!; wait', "sh"]
    command += [str(java), "-Xmx256m", *BRIEF_JAVA.split(), "-cp", f"{SPARK_HOME}/jars/*"]
    command += [f"org.apache.spark.deploy.{name}", "--webui-port", "0", *options]
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=os.environ
            | {
                "SPARK_HOME": str(SPARK_HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                # Spark's scripts set it; without it, the worker looks for a build of Spark.
                "SPARK_SCALA_VERSION": _scala_version(),
            },
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _scala_version() -> str:
    (library,) = SPARK_HOME.glob("jars/scala-library-*.jar")
    return ".".join(library.stem.removeprefix("scala-library-").split(".")[:2])


@dataclass
class Driver:
    """A run of `spark.standalone_driver`: a job on the standalone cluster.

    Args:
        arguments: of the program.
        scratch: directory of this run.
        step: the step at which a process of the job is held, as in `support.held_python`; empty for
            none.
    """

    arguments: list[str]
    scratch: Path
    step: str = ""
    held: int = 0
    """Process id of the held process."""
    _process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.scratch.mkdir()
        for name in ("held", "release"):
            os.mkfifo(self.scratch / name)
        python_path = os.pathsep.join([str(HELD_PYTHON), *filter(None, sys.path)])
        environment = {
            "PYTHONPATH": python_path,
            "PYSPARK_PYTHON": sys.executable,
            "HELD_STEP": self.step,
            "HELD_AT": str(self.scratch),
            "SPARK_LOCAL_DIRS": str(self.scratch),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (self.scratch / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark.standalone_driver", *self.arguments],
                cwd=TESTS,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Spark's Java is in the same group.
                start_new_session=True,
            )

    def wait_held(self) -> None:
        """Wait until a process of the job is held at the step."""
        # A descriptor that also writes never sees the end of the FIFO.
        at = os.open(self.scratch / "held", os.O_RDWR | os.O_NONBLOCK)
        assert self._process is not None
        end = os.pidfd_open(self._process.pid)
        try:
            readable, _, _ = select.select([at, end], [], [], 2 * DEADLINE_SECONDS)
            assert at in readable, f"no process reached {self.step}: {self.output()}"
            self.held = int(os.read(at, 100))
        finally:
            os.close(at)
            os.close(end)

    def release(self) -> None:
        """Let the held process continue, if it lives."""
        with suppress(OSError):
            # Without a reader, the process is gone.
            os.close(os.open(self.scratch / "release", os.O_WRONLY | os.O_NONBLOCK))

    def kill(self) -> None:
        """Kill the driver with its Java, and the held process, whose parent is gone."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with suppress(ProcessLookupError):
            os.kill(self.held, signal.SIGKILL)

    def kill_held(self) -> None:
        os.kill(self.held, signal.SIGKILL)

    def kill_executor(self) -> None:
        """Kill the executor of the held process, or any executor if the driver is held."""
        executors = [pid for pid in _all_processes() if "CoarseGrainedExecutor" in command_of(pid)]
        of_held = [pid for pid in executors if self.held in _descendants(pid)]
        os.kill((of_held or executors)[0], signal.SIGKILL)
        if of_held:
            with suppress(ProcessLookupError):
                os.kill(self.held, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end of the driver, which ends itself if it hangs; return its status."""
        assert self._process is not None
        return self._process.wait()

    def close(self) -> None:
        """Kill what is left of a failed test."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def output(self) -> str:
        return (self.scratch / "driver.log").read_text(errors="replace")[-5000:]


def _all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _descendants(pid: int) -> set[int]:
    found = {pid}
    for child in children(pid):
        found |= _descendants(child)
    return found
