"""Compacted topics for the broker's callers: uploading, publishing and reading generations.

uploads.py receives files, publishing.py lets the store verify them and waits for the result,
wire.py
translates. Generations and how the store serves them: `store.compacted`.
"""
