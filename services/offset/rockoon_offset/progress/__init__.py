"""Progress: committed offsets by reader and queue, and every way they change."""
