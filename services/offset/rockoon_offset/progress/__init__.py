"""Progress: committed offsets by reader and queue, and all operations that change them."""
