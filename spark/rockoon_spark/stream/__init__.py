"""Topics of a live cluster as a stream.

reader    the interface to Spark
plan      plan of the next batch; offsets of the stream, stored in Spark's checkpoint
cluster   the driver's calls to the cluster: queues, their ends, the consumer group
group_progress, listener
          progress of the consumer group; commits as soon as a batch ends
"""
