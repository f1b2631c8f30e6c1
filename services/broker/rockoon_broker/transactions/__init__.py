"""Transactions: messages that are kept aside until their sender says what becomes of them.

half_messages.py  the records: half, committed, given up, op (pure)
half_queue.py     the half messages in the store, also in one that RocketMQ has left
put_back.py       which of RocketMQ's half messages are copies of others
check_book.py     which half messages wait, when to ask about each, when to give up (pure)
outcomes.py       how transactions have ended, for callers that ask again (pure)
op_book.py        ended half messages that are still to be told to RocketMQ's readers (pure)
checkers.py       the producers that can be asked, and whose turn it is
asking.py         the streams on which they are asked
ends.py           how a half message ends, and the answer to those that end it again
transactions.py   all of it over an open store
"""
