"""Consumption message by message: messages that receivers have acquired, until settled."""
