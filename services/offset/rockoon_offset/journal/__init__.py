"""Journal of progress: format, files, and the store of an offset service with one copy."""
