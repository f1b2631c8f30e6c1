"""Delayed messages: stored in the broker's own topics first, delivered when they are due.

rewriting.py  rewrites a record for the waiting topic or for its destination (pure)
timetable.py  which entries are due, under any clock (pure)
delayed_queues.py  the delayed messages in the store, including those of RocketMQ
delivery.py   delivers due messages, and stores again those that retention would delete
delays.py     the whole feature on an open store: accept, cancel, list
"""
