"""Replication of the broker's log: `store_log`, the store as replication sees it; `serving`, a
broker that is a replica; `warm`, derived state of a follower, so that it can lead at once."""
