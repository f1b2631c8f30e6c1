"""Reads of an open store, by queue offset, physical offset and time."""
