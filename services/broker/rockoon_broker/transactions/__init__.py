"""Transactions: a half message is stored until its sender commits or rolls back.

half_messages.py  the records: half, committed, given up, op (pure)
half_queue.py     the half messages in the store, including those of RocketMQ
put_back.py       which of RocketMQ's half messages are copies of others
check_book.py     waiting half messages, when to ask about each, when to abandon it (pure)
asking.py         the producers that can be asked, by round robin, and their streams
ends.py           how a half message ends, answers to repeated ends, and op records for RocketMQ
transactions.py   the whole feature on an open store
"""
