"""Clients of the gateway: connected clients, and the messages that they exchange with it."""
