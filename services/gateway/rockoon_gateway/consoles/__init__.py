"""Admin service of the protocol: what consoles ask."""
