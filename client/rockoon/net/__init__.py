"""The connection to a cluster: routes, channels, and calls to any service."""
