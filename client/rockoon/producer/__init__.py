"""Sending: from a message to a batch on its broker."""
