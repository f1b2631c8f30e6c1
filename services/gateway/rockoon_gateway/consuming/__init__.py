"""Receiving: messages, their acknowledgements, renewals for push consumers, offsets."""
