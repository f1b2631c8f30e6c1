"""A service as a node of the cluster: it finds the nameservers, registers, follows the routes."""
