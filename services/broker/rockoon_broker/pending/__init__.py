"""Pending messages: records that wait in the log for a due time or for a transaction's end.

pending_queue.py     one ConsumeQueue's pending entries, and how a record names its source (pure)
pending_index.py     the pending queues of an open store: completion, replay, and a snapshot
pending_records.py   the queues of one feature: read entries, append completions, retention;
                     a task runs due work in turns
pending_messages.py  delayed and half messages, with one index and one snapshot
"""
