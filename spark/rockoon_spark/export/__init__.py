"""Parts of `jobs.export`.

sections     reading the section of a log that one task exports
rows         records as rows of Parquet files, by topic and date
target       the export directory: invariants, manifests, publishing
comparison   comparison of the files with the log
"""
