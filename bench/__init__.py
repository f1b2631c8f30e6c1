"""Benchmarks of a cluster, of the Spark jobs, and of single components; each module is a
command."""
