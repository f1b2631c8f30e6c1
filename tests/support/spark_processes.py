"""Processes of Spark in tests: drivers that can be killed, and Python workers."""

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

# Checks without a pause would take processor time from the job.
LOOK_SECONDS = 0.002
TESTS = Path(__file__).parent.parent
# Java that runs for seconds needs no optimised code: this saves two fifths of a session's CPU.
BRIEF_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    # Java need not verify Spark's classes.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Java searches 280 archives in their order. Most classes of a session are in these.
_ARCHIVES_FIRST = ("scala-library", "spark-catalyst_", "spark-sql", "spark-core_", "spark-common-")
# Spark need not generate Java code for queries that run once.
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
# Directories with the modules that make Spark's Python processes start faster.
BRIEF_PYTHON = os.pathsep.join(
    # The second directory has pyspark_rockoon, however the packages are installed.
    [str(Path(__file__).with_name("spark_python")), str(TESTS.parent / "spark")]
)
# The Python process of a stream must connect within ten seconds; Spark has no setting for it.
_WORKER_LATE = "Python worker failed to connect back"
_STARTS_MAX = 10

T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """Run a stream. If its Python worker started too late, because the machine is busy, the stream
    runs again from its checkpoint.

    Raises:
        StreamingQueryException: the stream failed with another error.
    """
    for _ in range(_STARTS_MAX - 1):
        try:
            return run()
        except StreamingQueryException as error:
            if _WORKER_LATE not in str(error):
                raise
    return run()


def run_driver(spark: SparkSession, script: str) -> int:
    """Run a script as another driver in a session's Java, so that only Python starts.

    The script can import modules of `tests`, and its session is `attached()`.

    Returns:
        Its exit status.
    """
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
    """Return the session of a script that `run_driver` runs."""
    gateway = launch_gateway()
    java = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(conf=SparkConf(_jconf=java.getConf()), gateway=gateway, jsc=java)
    return SparkSession(context)


def python_workers(spark: SparkSession) -> list[int]:
    """Return the process ids of the running Python workers."""
    return [pid for daemon in _daemons(spark) for pid in children(daemon)]


def failed_tasks(spark: SparkSession) -> int:
    """Return how many attempts at tasks have failed since the session began."""
    executors = spark._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(number).failedTasks()) for number in range(executors.size()))


def kill_workers(spark: SparkSession, job: threading.Thread, is_amid: Callable[[], bool]) -> None:
    """Kill the running Python workers during a job, until one of its tasks has failed.

    Args:
        spark: the session.
        job: runs the job.
        is_amid: whether some tasks have ended, and others have not.
    """
    failed = failed_tasks(spark)
    # A worker may be idle, so one kill may not be enough; a task has four attempts, so three kills
    # do not end the job.
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
    """Limit the size of files that Python workers write, as if the disk were full."""
    # A daemon forks the workers; it starts with the first of them.
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
    """Return the process ids of a process's children."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain spaces.
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def command_of(pid: int) -> str:
    """Return program and arguments of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _daemons(spark: SparkSession) -> list[int]:
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    return [pid for pid in children(java) if "pyspark.daemon" in command_of(pid)]
