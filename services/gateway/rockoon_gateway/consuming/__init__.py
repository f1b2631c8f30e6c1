"""Receiving: messages, their acknowledgements, offsets."""
