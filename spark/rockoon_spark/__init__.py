"""Rockoon's data pipeline: whatever has to look at a whole log runs on Spark."""
