"""Jobs on a standalone Spark cluster: a process is killed at each step of each job.

A process of the job is held at the step, and then the driver, the Python worker, its executor or a
broker is killed. If the job fails, it is run again. Its result is compared with the messages that
the producer sent. `python -m pytest -m soak tests/spark/oracle/test_standalone.py` needs half
an hour.
"""

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from spark.standalone_driver import BATCHES

from rockoon.arrow import scan
from rockoon.testing.disposable import DisposableCluster
from support.message_oracle import COMPACTED, KNOWN, PLAIN, MessageOracle, difference
from support.seeds import seeds
from support.standalone_spark import Driver, standalone_spark

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

DRIVER_STEPS = {
    "batch": {"plan": "rockoon_spark.source.log_reader:LogReader.partitions@after"},
    "stream": {
        "ends": "rockoon_spark.stream.reader:QueueStreamReader.latestOffset@after",
        "plan": "rockoon_spark.stream.reader:QueueStreamReader.partitions@after",
        "written": "spark.standalone_driver:write_batch@after",
    },
    "export": {
        "plan": "rockoon_spark.jobs.export:_planned@after",
        "publish": "rockoon_spark.jobs.export:publish@before",
        "moved": "rockoon_spark.export.target:ExportTarget.move@after",
    },
    "compaction": {
        "plan": "rockoon_spark.compaction.broker_target:BrokerTarget.inspect@after",
        "publish": "rockoon_spark.jobs.compact:_publish@before",
        "published": "rockoon_spark.compaction.broker_target:_IncomingUpload.publish@after",
    },
}
"""Steps of each job that the driver executes; Spark plans reads in a Python process beside it."""
WORKER_STEPS = {
    "batch": {"read": "rockoon_spark.source.log_reader:LogReader.read@amid"},
    "stream": {"read": "rockoon_spark.stream.reader:QueueStreamReader.read@amid"},
    "export": {"read": "rockoon_spark.jobs.export:read_section@amid"},
    "compaction": {
        "survey": "rockoon_spark.compaction.steps:survey@before",
        "copy": "rockoon_spark.compaction.steps:_written@before",
    },
}
"""Steps of each job that tasks execute."""
CASES = [
    (job, step, killed)
    for steps, victims in (
        (DRIVER_STEPS, ("driver", "executor", "broker")),
        (WORKER_STEPS, ("driver", "worker", "executor", "broker")),
    )
    for job, own in steps.items()
    for step in own
    for killed in victims
]
BROKER = "broker-a"
# A body is text if it is valid UTF-8, else bytes.
EXPORTED = (
    "broker",
    "queue",
    "queue_offset",
    "keys",
    "tags",
    "coalesce(body_bytes, encode(body)) AS body",
)
SCANNED = ("broker", "queue", "queue_offset", "keys", "body")


@dataclass
class Jobs:
    """Jobs over a cluster whose messages the oracle knows.

    Args:
        master: URL of the Spark master.
        scratch: directory for the results of all jobs.
    """

    cluster: DisposableCluster
    oracle: MessageOracle
    master: str
    scratch: Path
    _runs: Iterator[int] = field(default_factory=count)

    def driver(self, job: str, out: Path, step: str = "") -> Driver:
        arguments = [job, self.master, self.oracle.endpoint, str(out)]
        return Driver(arguments, self.scratch / f"run-{next(self._runs)}", step)

    def directory(self) -> Path:
        return self.scratch / f"out-{next(self._runs)}"

    def run_with_kill(self, job: str, out: Path, step: str, killed: str) -> None:
        """Kill a process at a step; run the job again if it failed."""
        driver = self.driver(job, out, step)
        driver.start()
        try:
            driver.wait_held()
            match killed:
                case "driver":
                    driver.kill()
                case "worker":
                    driver.kill_held()
                case "executor":
                    driver.kill_executor()
                case "broker":
                    self.cluster.kill(BROKER)
                    self.cluster.start_stopped()
            driver.release()
            status = driver.wait()
        finally:
            driver.close()
        assert (status == -signal.SIGKILL) == (killed == "driver"), driver.output()
        if killed in {"worker", "executor"}:
            # Spark repeats the task, so the job succeeds.
            assert status == 0, driver.output()
        if status:
            again = self.driver(job, out)
            again.start()
            assert again.wait() == 0, again.output()

    def check(self, job: str, out: Path) -> None:
        """Compare the result of a job with the messages that were sent before it."""
        ask = self.oracle.ask
        match job:
            case "batch":
                expected = ask(f"SELECT {', '.join(KNOWN)} FROM visible")
                for name in BATCHES:
                    assert difference(pq.read_table(out / name), expected) == []
            case "stream":
                found = pa.concat_tables(pq.read_table(each) for each in out.glob("batch-*"))
                query = f"SELECT {', '.join(KNOWN)} FROM log WHERE topic IN {PLAIN}"
                assert difference(found, ask(query)) == []
            case "export":
                files = ds.dataset(out, format="parquet").to_table()
                found = duckdb.from_arrow(files).project(", ".join(EXPORTED)).to_arrow_table()
                expected = ask(f"SELECT {', '.join(found.column_names)} FROM log")
                assert difference(found, expected) == []
            case "compaction":
                self.oracle.mark_compacted()
                with scan(self.oracle.endpoint, topics=[COMPACTED], columns=SCANNED) as reader:
                    found = reader.read_all()
                query = f"SELECT {', '.join(SCANNED)} FROM visible WHERE topic = '{COMPACTED}'"
                assert difference(found, ask(query)) == []


@pytest.fixture(scope="module", params=seeds(1))
def jobs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Jobs]:
    scratch = tmp_path_factory.mktemp("standalone")
    settings = {"broker": {"commit_log_file_bytes": 1 << 20}}
    with ExitStack() as stack:
        cluster = stack.enter_context(DisposableCluster(brokers=2, settings=settings))
        connection = stack.enter_context(cluster.connect())
        endpoint = ",".join(cluster.nameservers)
        chance = random.Random(request.param)
        oracle = MessageOracle(connection, endpoint, scratch / "sent.parquet", chance)
        oracle.create_topics()
        oracle.send(1200)
        yield Jobs(cluster, oracle, stack.enter_context(standalone_spark(scratch)), scratch)


@pytest.mark.parametrize(("job", "step", "killed"), CASES)
def test_a_job_with_a_killed_process_has_each_message_once(
    jobs: Jobs, job: str, step: str, killed: str
) -> None:
    jobs.oracle.send(100)
    out = jobs.directory()
    where = (DRIVER_STEPS[job] | WORKER_STEPS[job])[step]
    jobs.run_with_kill(job, out, where, killed)
    jobs.check(job, out)


def test_two_jobs_at_once_have_each_message_once(jobs: Jobs) -> None:
    drivers = {
        job: (jobs.driver(job, out), out)
        for job in ("batch", "export", "stream")
        for out in [jobs.directory()]
    }
    for driver, _ in drivers.values():
        driver.start()
    for job, (driver, out) in drivers.items():
        assert driver.wait() == 0, driver.output()
        jobs.check(job, out)
