"""Topics, groups, progress and stored messages: for people and tools."""
