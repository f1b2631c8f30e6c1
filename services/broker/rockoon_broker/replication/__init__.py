"""Copies of the broker's log: `store_log`, the store as replication knows it, and `serving`, a
broker that is one of the copies, ready to lead (`warm`)."""
