"""The journal: how progress survives any end of the process."""
