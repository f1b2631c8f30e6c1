"""Sending: messages, transactions, recalls."""
