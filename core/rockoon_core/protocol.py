"""What nodes of a cluster and their clients say to each other besides calls."""

CLUSTER_METADATA_KEY = "rockoon-cluster"
"""Names the cluster that a caller means, in the metadata of its calls."""

PROTOCOL = 1
"""Rises with a change that former nodes would misunderstand. Nameservers take nodes of their own
version and of former ones, so they are upgraded first."""
