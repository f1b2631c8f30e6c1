"""Admin service of the protocol, for RocketMQ's consoles."""
