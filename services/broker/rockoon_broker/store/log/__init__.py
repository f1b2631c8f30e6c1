"""The CommitLog: its files, syncs, and sequential readers."""
