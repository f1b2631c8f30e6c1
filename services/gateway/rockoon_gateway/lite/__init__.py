"""Lite topics: many small ones below a parent topic, each read in order by who subscribes to it."""
