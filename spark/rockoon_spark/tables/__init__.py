"""Topics in Iceberg tables, each message exactly once, without Spark.

sync        reads a topic, and commits its messages with their offsets
synced_table
            an Iceberg table with the offsets in its snapshots
rows        message columns, and bodies, as rows of a table
json_bodies bodies in JSON as values of Iceberg's types
commands    `rockoon table sync` and `rockoon table lag`

Needs the extra `rockoon-spark[tables]` (PyIceberg). Imports no PySpark.
"""
