"""The version of what nodes of a cluster say to each other."""

PROTOCOL = 1
"""Rises with a change that former nodes would misunderstand. Nameservers take nodes of their own
version and of former ones, so they are upgraded first."""
