"""Delayed messages: kept aside in the broker's own topics, delivered when they are due.

rewriting.py  a record on its way aside, to its topic, or to neither (pure)
timetable.py  which entries are due, under any clock (pure)
delayed_queues.py  the delayed messages in the store, also in one that RocketMQ has left
delivery.py   what is due delivered, what retention threatens stored once more
delays.py     all of it over an open store: taking, cancelling, listing
"""
