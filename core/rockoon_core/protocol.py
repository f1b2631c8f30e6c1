"""Protocol version of nodes and clients, and names of gRPC metadata."""

CLUSTER_METADATA_KEY = "rockoon-cluster"
"""Metadata key with the name of the cluster that the caller addresses."""

PROTOCOL = 1
"""Version of the protocol between nodes, incremented by changes that older nodes would
misinterpret. Nameservers accept nodes of their own version and of older ones, and must be upgraded
first."""
