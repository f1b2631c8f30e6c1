"""The data source of `format("rockoon")`, under a name by which Spark finds it.

At the first use of a Python data source, Spark imports all modules whose names begin with
`pyspark_`, and registers their `DefaultSource`. So no program needs to register the data source.
"""

from rockoon_spark.source.data_source import RockoonDataSource as DefaultSource

__all__ = ["DefaultSource"]
