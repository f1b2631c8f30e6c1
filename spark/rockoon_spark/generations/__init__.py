"""Compacted topics for readers of a log: a generation, then the log.

coverage           which records a generation answers for, so that the log need not
parts              its records as partitions
stored_generation  its files in a store directory
served_generation  its files from a broker that runs
"""
