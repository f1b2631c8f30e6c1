"""Pending records: messages that wait in the log for a time or for an outcome."""
