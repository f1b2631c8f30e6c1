"""Clients of the gateway: who is connected, and what they and the gateway tell each other."""
