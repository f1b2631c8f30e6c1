"""Replication of the journal of progress."""
