"""Idempotent producers: which sequence numbers are stored, and where."""
