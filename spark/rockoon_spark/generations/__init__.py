"""Compacted topics for readers of a log: first the generation, then the log.

coverage              the records that are read from the generation instead of the log
parts                 records of a generation as partitions
directory_generation  files of a generation in a store directory
broker_generation     files of a generation, read from a running broker
current               consistent partitions of the current generation and the log after it
"""
