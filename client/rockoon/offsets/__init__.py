"""Progress: where a reader starts, and where its offsets are kept."""
