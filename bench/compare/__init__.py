"""Rockoon and its peers in one run (`make compare`); see docs/measurements/compare.md."""
