"""Delayed messages: kept aside in the broker's own topics, delivered when they are due.

rewriting.py  a record on its way aside, to its topic, or to neither (pure)
timetable.py  which entries are due, under any clock (pure)
delays.py     a broker's delayed messages: taking, delivering, cancelling, listing
"""
