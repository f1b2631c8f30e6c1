"""Replication of the broker's log: `store_log`, the store behind the interface of a replicated log;
`serving`, a broker that is a replica, and keeps its derived state up to date as a follower."""
