"""Spark program with separate executors that kills one of them in the middle of a task.

    sink_kill.py ENDPOINT TOPIC GATE

The first attempt reads the pipe GATE to its end before row 18, and then kills its executor.
A segment has five rows. The last one has one to three: Spark may discard two rows.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from rockoon_spark.session import session
from support.spark_processes import BRIEF_JAVA, children


def main(endpoint: str, topic: str, gate: str) -> None:
    spark = session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="512m",
        spark__driver__memory="512m",
        spark__driver__extraJavaOptions=BRIEF_JAVA,
        spark__executor__extraJavaOptions=BRIEF_JAVA,
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__sql__execution__arrow__maxRecordsPerBatch=1,
    )

    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            (number,) = batch.column(0).to_pylist()
            if number == 18 and context.attemptNumber() == 0:
                Path(gate).read_text()
                status = Path(f"/proc/{os.getppid()}/stat").read_text()
                executor = int(status.rpartition(")")[2].split()[1])
                # Otherwise a daemon often kills the sink before it has sent its last rows.
                for daemon in children(executor):
                    os.kill(daemon, signal.SIGKILL)
                os.kill(executor, signal.SIGKILL)
            yield pa.RecordBatch.from_pydict({"body": [b"%d" % number + bytes(700 << 10)]})

    frame = spark.range(0, 20, 1, 1).mapInArrow(failing_once, "body binary")
    frame.write.format("rockoon").mode("append").options(endpoint=endpoint, topic=topic).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
