"""Benchmarks of a cluster, of Spark, and of what a cluster carries; each is a command."""
