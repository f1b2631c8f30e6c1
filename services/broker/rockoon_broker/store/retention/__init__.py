"""Retention: which files are deleted, when, and what is lost with them."""
