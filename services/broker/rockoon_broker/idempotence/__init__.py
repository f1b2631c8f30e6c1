"""Idempotent producers: stored sequence numbers and their messages' offsets."""
