"""Topics of a live cluster as a stream.

reader           the door: what Spark asks of a stream, in the order it asks
options          what a stream can be told
plan, offsets    what the next batch reads; how far the stream is, as its checkpoint has it
cluster          queues, their ends and the group, as the driver sees them
queue_partition  what one task reads
progress         the consumer group that follows; listener: as soon as a batch ends
"""
