"""The CommitLog: its files, its syncs, and readers of its bytes in order."""
