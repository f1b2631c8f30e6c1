"""Pending records: messages that wait in the log for a time or for an outcome.

pending_queue.py     one ConsumeQueue's pending entries (pure)
sources.py           how a record names the one that it was made from (pure)
snapshot.py          the file that spares a start most of the log (pure)
pending_index.py     the queues over an open store: what is completed, replay, snapshots
pending_records.py   one user's queues: taking in, appending what completes, what retention took
due_work.py          turns in which what is due is done
pending_messages.py  delayed and half messages, over one index and one snapshot
"""
