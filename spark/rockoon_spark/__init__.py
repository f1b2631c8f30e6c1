"""Rockoon's data pipeline: jobs that read whole logs run on Spark.

    source/           logs as Spark input; all other folders build on it. log_source is the
                      interface, store_directory and live_cluster implement it. Each task reads one
                      partition. data_source and options: reading with `format("rockoon")`
    sink              writing with `format("rockoon")`
    stream/           topics of a live cluster as a stream, and its consumer group
    generations/      compacted messages of topics, which are read before the log
    records/          partition_scan finds records; columns: records as Arrow columns; properties,
                      selection
    jobs/             one module per job, with all its steps. Parts of the jobs:
      index/            index files and their target directory
      export/           Parquet files and their target directory
      compaction/       steps of a compaction, and the stores that it compacts
    tables/           topics in Iceberg tables, without Spark
    commands/         the jobs as commands
    broker_calls      addresses of live brokers, and repeated calls
    files, publish    files of a local or remote store; atomic publishing of results
    session, java     creating the Spark session; spark_version: the supported versions

The import rules of the layers are in `pyproject.toml` at the root: this package uses only public
names of the formats and the SDK, and the modules that find and decode records do not import Spark.
"""

import rockoon as rockoon  # before gRPC: the import turns off gRPC's log output
