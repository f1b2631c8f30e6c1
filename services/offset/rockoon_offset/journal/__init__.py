"""Single-copy journal of progress."""
