"""Replicated journal of the offset service."""
