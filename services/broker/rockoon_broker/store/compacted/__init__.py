"""Compacted topics in the store: generations are verified, swapped in, and read (docs: adr/0018).

    compaction.py       the door: what is taken over next
    served.py           which generation is in force, and what the log has to keep: the hold
    fitting.py          whether a generation belongs to this log, and to the one before it
    takeover.py         the slow calls, on a thread of their own: look, verify, write `current`
    open_generation.py  one generation, open: by queue offset, time, key, physical offset
    reading.py          what readers ask, answered from a generation and the log behind it

The owner's thread decides, between two looks at what the thread has done; nothing is shared but
requests and results.
"""
