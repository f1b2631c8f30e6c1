"""Spark driver that streams a topic into another topic, until a test kills it.

    sinking_driver.py ENDPOINT SOURCE TARGET CHECKPOINT PIPE

When the brokers have acknowledged batch 1, it writes the number into PIPE and waits to be killed:
Spark has not recorded the end of the batch.
"""

import sys
import threading
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from rockoon_spark.session import session
from rockoon_spark.sink import MessageStreamWriter, WriteOptions
from rockoon_spark.source.data_source import RockoonDataSource

PIPE = sys.argv[5]


class StoppingWriter(MessageStreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == 1:
            Path(PIPE).write_text("1")
            threading.Event().wait()


class StoppingSource(RockoonDataSource):
    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:  # noqa: ARG002
        return StoppingWriter(WriteOptions.parse(self.options, schema))


def main() -> None:
    endpoint, source, target, checkpoint = sys.argv[1:5]
    spark = session(
        "local[2]",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__driver__memory="1g",
    )
    spark.dataSource.register(StoppingSource)
    stream = spark.readStream.format("rockoon").options(
        endpoint=endpoint,
        topics=source,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="100",
        columns="body",
    )
    writer = stream.load().writeStream.format("stopping").options(endpoint=endpoint, topic=target)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
