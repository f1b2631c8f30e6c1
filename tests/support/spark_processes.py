"""Spark's processes in a test's hands: drivers that can be killed, Python workers."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

# Looking without a pause would take the processor from what is looked for.
LOOK_SECONDS = 0.002
TESTS = Path(__file__).parent.parent
# What runs for seconds only is not worth compiling well: two fifths of a session's processor time.
BRIEF_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    # Nor does Java have to check Spark's classes.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Java searches 280 archives in their order. Most classes of a session are in these.
_ARCHIVES_FIRST = ("scala-library", "spark-catalyst_", "spark-sql", "spark-core_", "spark-common-")
# Nor is Java worth writing that runs once.
BRIEF_SETTINGS = {
    "spark.driver.extraJavaOptions": BRIEF_JAVA,
    "spark.driver.extraClassPath": os.pathsep.join(
        str(archive)
        for name in _ARCHIVES_FIRST
        for archive in Path(pyspark.__file__).parent.glob(f"jars/{name}*.jar")
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# Where Python finds how Spark's processes save themselves work.
BRIEF_PYTHON = os.pathsep.join(
    # The second directory has pyspark_rockoon, however the packages are installed.
    [str(Path(__file__).with_name("spark_python")), str(TESTS.parent / "spark")]
)
# A stream's Python has ten seconds to import PySpark, which no setting of Spark's changes.
_WORKER_LATE = "Python worker failed to connect back"
_STARTS_MAX = 10

T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """Run a stream; again, from its checkpoint, as long as nothing was wrong but that a busy
    machine had no time for its Python worker.

    Raises:
        StreamingQueryException: anything else was wrong.
    """
    for _ in range(_STARTS_MAX - 1):
        try:
            return run()
        except StreamingQueryException as error:
            if _WORKER_LATE not in str(error):
                raise
    return run()


def run_driver(spark: SparkSession, script: str) -> int:
    """Run a script as another driver of a session's Spark, so that only Python has to start; return
    its status. What is in `tests` can be imported; its session is `attached()`."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
    }
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nsys.path[:0] = {sys.path!r}\n{textwrap.dedent(script)}",
        ],
        cwd=TESTS,
        env=environment,
        check=False,
    )
    return ended.returncode


def attached() -> SparkSession:
    """The session of a script that `run_driver` runs."""
    gateway = launch_gateway()
    java = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(conf=SparkConf(_jconf=java.getConf()), gateway=gateway, jsc=java)
    return SparkSession(context)


def python_workers(spark: SparkSession) -> list[int]:
    """Process ids of the Python workers that live."""
    return [pid for daemon in _daemons(spark) for pid in children(daemon)]


def failed_tasks(spark: SparkSession) -> int:
    """How many attempts at tasks have failed since the session began."""
    executors = spark._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(number).failedTasks()) for number in range(executors.size()))


def kill_workers(spark: SparkSession, job: threading.Thread, is_amid: Callable[[], bool]) -> None:
    """Kill the Python workers that live once a job is in its midst, until a task failed with one.

    Args:
        spark: the session.
        job: runs the job.
        is_amid: whether some tasks have ended, and others have not.
    """
    failed = failed_tasks(spark)
    # A worker may have been at none; and a task is tried four times, so it outlives three kills.
    for _ in range(3):
        while job.is_alive() and not is_amid():
            job.join(LOOK_SECONDS)
        killed = python_workers(spark)
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while job.is_alive() and failed_tasks(spark) == failed:
            if set(python_workers(spark)) - set(killed):
                break
            job.join(LOOK_SECONDS)
        if failed_tasks(spark) > failed:
            return


@contextmanager
def stopped_daemon(spark: SparkSession) -> Iterator[None]:
    """Within the block, Spark's daemon forks and kills no Python workers."""
    daemons = _daemons(spark)
    for pid in daemons:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in daemons:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def workers_with_small_files(spark: SparkSession, bytes_max: int) -> Iterator[None]:
    """Let no file that a Python worker writes grow beyond some bytes, as if the disk were full."""
    # Workers are forked by a daemon, which begins with the first of them.
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    former = {}
    for pid in [*_daemons(spark), *python_workers(spark)]:
        # Spark can end a worker at any time.
        with suppress(ProcessLookupError):
            former[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_max, former[pid][1]))
    assert former, "no process of Spark was found"
    try:
        yield
    finally:
        for pid in [*_daemons(spark), *python_workers(spark)]:
            limit = former.get(pid, next(iter(former.values())))
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def children(parent: int) -> list[int]:
    """Process ids of a process's children."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may have spaces.
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def command_of(pid: int) -> str:
    """Program and arguments of a process, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _daemons(spark: SparkSession) -> list[int]:
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    return [pid for pid in children(java) if "pyspark.daemon" in command_of(pid)]
