"""Compacted topics in the store: generations are verified, swapped in, and read (docs: adr/0018).

    compaction.py       entry point: the active generation, and which one to adopt next
    hold.py             the part of the log to keep because no generation has its messages
    fitting.py          whether a generation matches this log and the previous generation
    takeover.py         slow steps on a thread: find, verify, write `current`
    open_generation.py  one open generation: access by queue offset, time, key, physical offset
    reading.py          reads answered from a generation and the log after it

The owner's thread decides; the takeover thread only gets requests and returns results.
"""
