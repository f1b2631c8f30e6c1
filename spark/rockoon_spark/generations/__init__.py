"""Compacted topics for readers of a log: first the generation, then the log.

parts                 records as partitions; partitions of generation and log
directory_generation  files of a generation in a store directory
broker_generation     files of a generation, read from a running broker
"""
