"""Rockoon beside its peers, in one run: `make compare`, and docs/compare.md says how to read it."""
