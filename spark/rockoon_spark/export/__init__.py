"""Parts of `jobs.export`.

rows    the section of a log that one task exports, as rows of Parquet files by topic and date
target  the export directory: invariants, manifests, publishing
"""
