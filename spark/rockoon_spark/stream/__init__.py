"""Topics of a live cluster as a stream.

reader           the interface to Spark
options          options of a stream
plan, offsets    plan of the next batch; offsets of the stream, stored in Spark's checkpoint
cluster          the driver's calls to the cluster: queues, their ends, the consumer group
queue_partition  input of one task
progress         progress of the consumer group; listener: commits as soon as a batch ends
"""
