"""Transactions: a half message is stored until its sender commits or rolls back.

half_messages.py  the records: half, committed, abandoned, op (pure)
half_queue.py     the half messages in the store, including those of RocketMQ
put_back.py       finds RocketMQ's half messages that are copies of other half messages
check_book.py     waiting half messages: times of their checks and of abandonment (pure)
asking.py         the producers that receive checks, by round robin, and their streams
ends.py           how a half message ends, answers to repeated ends, and op records for RocketMQ
transactions.py   the whole feature on an open store
"""
