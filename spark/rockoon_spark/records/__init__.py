"""Records found, selected and decoded as columns, without Spark."""
