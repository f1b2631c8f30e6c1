"""Compacted topics for readers of a log: a generation, then the log.

coverage              which records a generation answers for, so that the log need not
parts                 its records as partitions
directory_generation  its files in a store directory
broker_generation     its files from a broker that runs
in_force              both that and the log behind it, of one moment
"""
