"""Parts of `jobs.compact`.

plan          input of a run, division into parts, covered queue offsets; copies the kept records
exchange      transport of messages on Spark; interface to the store that is compacted:
              directory_target, or broker_target over gRPC
sources       records from the log and from the previous generation
steps         the steps, as functions from messages to messages
survey        first step: the newest record of each key (newest)
"""
