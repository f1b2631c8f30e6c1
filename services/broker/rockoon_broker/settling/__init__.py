"""Messages that wait aside for something: which of them have got it, in whatever order.

settled_queue.py  one ConsumeQueue's pending entries (pure)
sources.py        how a record says which one it was made out of (pure)
snapshot.py       the file that spares a start most of the log (pure)
settlement.py     the queues over an open store: taking in, settling, replay, snapshots
"""
