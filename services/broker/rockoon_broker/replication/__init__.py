"""Copies of the broker's log: `store_log`, the store as replication knows it."""
