"""A log as jobs take it in that must not pass over a single record (index, rebuild).

    whole_log   what they ask of a log, and how the driver sees that nothing is missing
    stored_log  the log of a store directory
    served_log  the log of a broker that runs

An export, which goes on from run to run and may pass over damage, has `export.broker_logs`;
a compaction its `compaction.places`.
"""
