"""Finding, selecting and decoding records as Arrow columns, without Spark."""
