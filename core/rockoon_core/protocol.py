"""Protocol of nodes and clients besides calls: its version, and metadata."""

CLUSTER_METADATA_KEY = "rockoon-cluster"
"""Name of the cluster that a caller means, in the metadata of its calls."""

PROTOCOL = 1
"""Incremented by changes that older nodes would misinterpret. Nameservers accept nodes of their own
version and of older ones, and must be upgraded first."""
