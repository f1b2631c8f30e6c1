"""Members of consumer groups: leases, and ownership of queues."""
