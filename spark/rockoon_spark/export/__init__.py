"""Parts of `jobs.export`.

broker_logs  the logs an export goes on with from run to run
rows         records as rows of Parquet files, by topic and date
target       the directory: invariants, manifests, publishing
comparison   files compared with what they should have
"""
