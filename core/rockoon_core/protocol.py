"""Protocol of nodes and clients besides calls: its version, and metadata."""

CLUSTER_METADATA_KEY = "rockoon-cluster"
"""Names the cluster that a caller means, in the metadata of its calls."""

PROTOCOL = 1
"""Rises with a change that former nodes would misunderstand. Nameservers take nodes of their own
version and of former ones, so they are upgraded first."""
