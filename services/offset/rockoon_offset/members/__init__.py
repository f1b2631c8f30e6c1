"""Members of consumer groups: who is alive, who owns which queue."""
