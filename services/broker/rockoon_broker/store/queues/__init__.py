"""ConsumeQueues: entries derived from the log, their checks and repair."""
