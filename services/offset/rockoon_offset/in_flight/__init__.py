"""Consumption message by message: what receivers have acquired, until it is settled."""
