"""Parts of `jobs.index`.

linking  assignment of keys to index files; writing and comparing a file
target   the index directory: its manifest, and atomic publishing of files
"""
