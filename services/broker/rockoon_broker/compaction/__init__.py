"""Compacted topics for the broker's callers: uploading, publishing and reading generations.

uploads.py receives files, compaction.py lets the store verify them and waits for the result,
rpc/compaction.py has the calls. Generations and how the store serves them: `store.compacted`.
"""
