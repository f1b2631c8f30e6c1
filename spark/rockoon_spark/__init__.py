"""Rockoon's data pipeline: whatever has to look at a whole log runs on Spark.

    source/           where logs come from, which all else builds on: log_source says what, with two
                      back ends (store_directory, live_cluster) and their partitions, one for each
                      task; `format("rockoon")`: data_source and its options
    sink              writing with `format("rockoon")`
    stream/           topics of a live cluster as a stream, and its consumer group
    generations/      what compaction left of topics, which comes before the log
    records/          partition_scan: where records are; starts proves the first, parallel_walk
                      walks the rest; columns: records as Arrow columns; properties, selection
    jobs/             the jobs, each from top to bottom; what they are made of:
      index/            index files, and the directory they get into
      export/           Parquet files, and the directory they get into
      compaction/       steps of a compaction, and the stores it works on
    commands/         the jobs as commands
    broker_addresses, brokers that run: where they are, and calls that are repeated
      broker_calls
    files, publish    a store's files, wherever they are; putting results in place
    session, java     a session for all this

The rules of the layers are in `pyproject.toml` at the root: this package uses formats and SDK as a
stranger would, and what finds and decodes records needs no Spark.
"""

import rockoon as rockoon  # before gRPC, which it keeps quiet
