"""Spark's wrapper of a partition, for batches and streams."""

from pyspark.sql.datasource import InputPartition

from rockoon_spark.source.log_source import LogPartition


class LogInputPartition(InputPartition):
    """Spark's wrapper of a log partition that one task reads."""

    def __init__(self, partition: LogPartition) -> None:
        super().__init__(partition)
        self.partition = partition
