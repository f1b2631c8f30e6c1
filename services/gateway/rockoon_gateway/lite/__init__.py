"""Lite topics: many small topics below a parent topic. Subscribed clients read each in order."""
