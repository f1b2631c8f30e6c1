"""Parts of `jobs.index`.

linking  which keys go into which index file; writing and comparing one
target   the directory: its manifest, and how files get into their places
"""
