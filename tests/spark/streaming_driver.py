"""Spark driver that streams a topic into files, one for each batch, until a test kills it.

    streaming_driver.py ENDPOINT TOPIC GROUP DIRECTORY DEADLY_BATCH

It prints `batch N` before it writes a batch; in DEADLY_BATCH it then waits to be killed.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame

from rockoon_spark.session import session


def main() -> None:
    endpoint, topic, group, directory, deadly = sys.argv[1:]
    spark = session(
        "local[2]",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__driver__memory="1g",
    )

    def keep(frame: DataFrame, batch: int) -> None:
        rows = sorted(int(row.body) for row in frame.collect())
        print(f"batch {batch}", flush=True)
        if batch == int(deadly):
            sys.stdin.read()
        Path(directory, f"{batch}.batch").write_text("\n".join(map(str, rows)))

    stream = spark.readStream.format("rockoon").options(
        endpoint=endpoint,
        topics=topic,
        consumerGroup=group,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="100",
        columns="body",
    )
    writer = stream.load().writeStream.foreachBatch(keep)
    writer.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()


if __name__ == "__main__":
    main()
