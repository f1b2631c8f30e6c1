"""Parts of `jobs.export`.

sections     what one task reads of a log
rows         records as rows of Parquet files, by topic and date
target       the directory: invariants, manifests, publishing
comparison   files compared with what they should have
"""
