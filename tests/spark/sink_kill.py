"""Spark program with separate executors; a test kills one executor in the middle of a task.

    sink_kill.py ENDPOINT TOPIC PIPE

The first attempt writes the process id of its executor into PIPE before row 15 and waits.
"""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from rockoon_spark.session import session
from support.spark_processes import BRIEF_JAVA


def main(endpoint: str, topic: str, pipe: str) -> None:
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

    def waiting_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            (number,) = batch.column(0).to_pylist()
            if number == 15 and context.attemptNumber() == 0:
                # Python's daemon, and then the executor.
                status = Path(f"/proc/{os.getppid()}/stat").read_text()
                Path(pipe).write_text(status.rpartition(")")[2].split()[1])
                threading.Event().wait()
            yield pa.RecordBatch.from_pydict({"body": [b"%d" % number + bytes(1 << 20)]})

    frame = spark.range(0, 20, 1, 1).mapInArrow(waiting_once, "body binary")
    frame.write.format("rockoon").mode("append").options(endpoint=endpoint, topic=topic).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
