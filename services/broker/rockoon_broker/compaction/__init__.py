"""Compacted topics as the broker's callers see them: generations handed over, published, read.

uploads.py takes files in, publishing.py has the store verify them and waits for its word, wire.py
translates. What a generation is, and how the store serves one, is in `store.compacted`.
"""
