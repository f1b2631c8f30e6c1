"""Retention: decides which files are deleted and when, and reports lost messages."""
