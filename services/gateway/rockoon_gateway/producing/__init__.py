"""Sending: messages of producers, transactions, recalls of delayed messages."""
