"""Reader of a batch: plans a read of logs on the driver, and reads its partitions in tasks."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rockoon_spark.source.input_partition import LogInputPartition
from rockoon_spark.source.options import SourceOptions


class LogReader(DataSourceReader):
    """Plans a read of logs, and reads its partitions in tasks.

    It must not define `pushFilters`: Spark 4.1 to 4.3 reuse the plan of a query with a condition
    for other queries of the DataFrame, which then miss rows. It would also need a setting that is
    off by default in sessions of users.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [LogInputPartition(partition) for partition in self._options.partitions()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark creates a partition of another class if there are no partitions.
        if isinstance(partition, LogInputPartition):
            yield from self._options.rows(partition.partition)
